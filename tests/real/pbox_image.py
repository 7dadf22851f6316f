"""The image that the tests run in, built once per checkout from Debian's packages."""

import subprocess

from pbox_agent import IMAGES

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.images.store import ImageStore


def base_image():
    store = ImageStore(IMAGES)
    if any("base" in image.names for image in store.all()):
        return store.get("base")
    try:
        return store.build("base")
    except PeriodicError:
        subprocess.run(["apt-get", "update", "-qq"], check=True, timeout=120)
        return store.build("base")
