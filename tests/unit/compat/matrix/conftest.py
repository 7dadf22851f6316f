"""A package index in a folder: real pip, no network, wheels of a few lines."""

from __future__ import annotations

import zipfile
from collections.abc import Callable

import pytest


@pytest.fixture
def index(tmp_path, monkeypatch) -> Callable[..., None]:
    """`index(distribution, version, {path: text})` puts a wheel into an index of its own."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def put(distribution: str, version: str, sources: dict[str, str]) -> None:
        name = f"{distribution.replace('-', '_')}-{version}"
        files = {
            **sources,
            f"{name}.dist-info/METADATA": (
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            ),
            f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
            f"{name}.dist-info/RECORD": "",
        }
        with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)

    return put
