"""An OCI image becomes an image of sandboxes, with what its programs want to find."""

import hashlib
import json
import shutil
import subprocess

import pytest
from pbox_image import base_image

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.images.store import ImageStore

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A folder in OCI's layout: one layer that holds the base image, and a variable of its own."""
    absent = [name for name in ("skopeo", "umoci") if not shutil.which(name)]
    root = base_image().root
    if absent:
        pytest.skip(f"{', '.join(absent)} not installed; `make sandboxes` installs them on Debian")
    folder = tmp_path_factory.mktemp("oci")
    layer = folder / "layer.tar"
    parts = ["usr/bin", "usr/lib/python3.11/encodings", "bin", "etc"]
    subprocess.run(["tar", "-C", root, "-cf", layer, *parts], check=True)
    (folder / "blobs/sha256").mkdir(parents=True)
    config = {
        "architecture": "amd64", "os": "linux", "history": [{}],
        "config": {"Env": ["PATH=/opt/tools:/usr/bin:/bin", "FLAVOUR=plain", "HOME=/nowhere"]},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer.read_bytes())]},
    }  # fmt: skip
    manifest = {
        "schemaVersion": 2,
        "config": blob(folder, json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(folder, layer.read_bytes(), "layer.v1.tar")],
    }
    entry = blob(folder, json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return f"oci:{folder}:latest"


def digest_of(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob(folder, data, kind):
    digest = digest_of(data)
    (folder / "blobs/sha256" / digest.partition(":")[2]).write_bytes(data)
    media_type = f"application/vnd.oci.image.{kind}"
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def test_an_image_is_unpacked_once_per_digest_and_keeps_its_variables(archive, tmp_path):
    store = ImageStore(tmp_path / "images")
    image = store.pull("mine", archive)
    assert (image.root / "usr/bin/busybox").exists() and (image.root / "work").is_dir()
    assert image.environment == {"PATH": "/opt/tools:/usr/bin:/bin", "FLAVOUR": "plain"}
    again = store.pull("same", archive)
    assert (again.digest, again.made_at, again.names) == (
        image.digest,
        image.made_at,
        ("mine", "same"),
    )


def test_an_image_that_is_not_there_is_an_error_that_says_how_to_name_one(archive, tmp_path):
    store = ImageStore(tmp_path / "images")
    with pytest.raises(PeriodicError, match="oci-archive:FILE"):
        store.pull("mine", f"oci:{tmp_path}/nowhere:latest")
    assert store.all() == []
    assert [path.name for path in (tmp_path / "images").iterdir()] == []
