"""The image that the tests run in, built once per checkout, and why there may be none."""

import os
import shutil
import subprocess

import pytest
from pbox_agent import IMAGES

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.images.store import ImageStore
from miles_periodic.plugins.pbox.node import cgroups


def base_image():
    """The image; a machine that cannot have sandboxes skips whoever asks, and says why."""
    if reason := why_no_sandboxes():
        pytest.skip(reason)
    store = ImageStore(IMAGES)
    if any("base" in image.names for image in store.all()):
        return store.get("base")
    try:
        return store.build("base")
    except PeriodicError:
        subprocess.run(["apt-get", "update", "-qq"], check=True, timeout=120)
        return store.build("base")


def why_no_sandboxes():
    """Empty where this machine can have them: what is broken beyond that fails the tests."""
    if os.geteuid() != 0:
        return "sandboxes need root, for mounts and control groups"
    if not shutil.which("runsc"):
        return "runsc is not installed; `make sandboxes` installs it on Debian and Ubuntu"
    try:
        cgroups.find("pbox-test")
    except PeriodicError as error:
        return str(error)
    return ""
