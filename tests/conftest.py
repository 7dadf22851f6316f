"""What all tests share: unpacked releases, and nothing skipped in silence."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from lanes import Lanes, file_of, place_of
from megatron_ranks import TREES, run_ranks

# A slow example is no failure: time is measured by `miles bench`, never asserted. Examples are the
# same in every run, so that none fails for what nobody changed; `--hypothesis-profile exploring`
# looks for others.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("exploring", **UNTIMED)
settings.register_profile("settled", **UNTIMED, derandomize=True)
settings.load_profile("settled")

# Servers and ranks of one tree start many times: what the first of them compiles is kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# One core per process: the matrices are tiny and the processes many.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CACHE = ROOT / ".cache" / "trees"
SITES = ROOT / ".cache" / "site"
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")
DOWNLOAD_TIMEOUT_SECONDS = 900


@pytest.fixture(scope="session")
def unpacked() -> Callable[[str, str, str], Path]:
    """`unpacked(distribution, version, python)`: the folder of that wheel, fetched if need be."""
    return unpacked_wheel


def unpacked_wheel(distribution: str, version: str, python: str) -> Path:
    folder = CACHE / f"{distribution}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            _unpack(_download(distribution, version, python), folder)
    return folder


def _download(distribution: str, version: str, python: str) -> Path:
    wheels = CACHE / "wheels" / f"{distribution}-{version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    command += ["--abi", f"cp{python.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    command += ["--dest", str(wheels), f"{distribution}=={version}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        pytest.fail(f"{distribution} {version} could not be downloaded:\n{done.stderr}")
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack beside and rename, so that an interrupted run leaves no half tree behind."""
    unfinished = folder.with_name(f"{folder.name}.part")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unfinished)
    wheel.unlink()
    unfinished.rename(folder)


#: What a release of SGLang needs in other versions than the rehearsal's environment has, or
#: besides it, to serve on a CPU.
SERVING = {
    "0.5.9": (
        "transformers==4.57.1",
        "tokenizers==0.22.2",
        "huggingface_hub==0.36.0",
        "soundfile==0.13.1",
    ),
    "0.5.11": (
        "transformers==5.6.0",
        "tokenizers==0.22.2",
        "huggingface_hub==1.7.0",
        "soundfile==0.13.1",
    ),
    "0.5.16": (
        "transformers==5.12.1",
        "tokenizers==0.22.2",
        "huggingface_hub==1.7.0",
        "soundfile==0.13.1",
    ),
    "0.5.23": ("soundfile==0.13.1",),
}
#: Releases that serve with what another one needs.
SERVED_LIKE = {"0.5.12": "0.5.11", "0.5.14": "0.5.16"}


@pytest.fixture(scope="session")
def sglang_path() -> Callable[[str], list[Path]]:
    """`sglang_path(version)`: what stands in front of a process's path to serve that release."""

    def path(version: str) -> list[Path]:
        tree = unpacked_wheel("sglang", version, "3.11")
        like = SERVED_LIKE.get(version, version)
        return [site(f"sglang-{like}", SERVING[like]), tree]

    return path


def site(name: str, requirements: Sequence[str]) -> Path:
    """A folder with those packages and nothing that they require."""
    folder = SITES / name
    SITES.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--target", f"{folder}.part", *requirements]
            subprocess.run(command, check=True, timeout=DOWNLOAD_TIMEOUT_SECONDS)
            Path(f"{folder}.part").rename(folder)
    return folder


@pytest.fixture
def index(tmp_path, monkeypatch) -> Callable[..., None]:
    """A package index in a folder: real pip, no network.

    `index(distribution, version, {path: text})` puts a wheel of a few lines into it.
    """
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


@pytest.fixture(scope="session")
def megatron_ranks(unpacked, tmp_path_factory) -> Callable[..., dict[int, list[dict]]]:
    """`megatron_ranks(label, script, *words, worlds=(1, 2))`: facts by world size, then by rank.

    label: one of megatron_ranks.TREES, or the folder of a checkout. script: a file of tests/lines,
    see compat/cpu/megatron_alone.py. Each is run once per session, all worlds in one go.
    """
    known: dict[tuple, dict[int, list[dict]]] = {}

    def facts(label: str, script: str, *words: str, worlds: tuple[int, ...] = (1, 2), **limits):
        asked = (label, script, words, worlds)
        if asked not in known:
            folder = tmp_path_factory.mktemp(f"{script.removesuffix('.py')}-{Path(label).name}-")
            tree = unpacked(*TREES[label]) if label in TREES else Path(label).resolve()
            known[asked] = run_ranks(tree, script, folder, *words, worlds=worlds, **limits)
        return known[asked]

    return facts


@pytest.fixture(scope="session")
def sandbox_agent(tmp_path_factory):
    """One real agent, its limits proved, for all tests of what happens in sandboxes."""
    from pbox_agent import agent
    from pbox_image import base_image

    base_image()
    cpu = max(os.sched_getaffinity(0))
    folder = tmp_path_factory.mktemp("sandboxes")
    with agent(folder, "--warm", "base=2", "--cpus", str(cpu)) as running:
        yield running


@pytest.fixture(scope="session")
def sandbox_host(sandbox_agent):
    """A job's connection to that agent."""
    with sandbox_agent.connect() as host:
        yield host


@pytest.fixture(scope="module")
def shared_box(sandbox_host):
    """One sandbox for the tests of a file that leave it as it was."""
    with sandbox_host.sandbox() as made:
        yield made


@pytest.fixture
def box(sandbox_host):
    """A sandbox of a test's own."""
    with sandbox_host.sandbox() as made:
        yield made


# Skips are counted, and in CI one is a failure.


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"{len(skipped)} skipped")
    for report in skipped:
        terminalreporter.write_line(f"  {report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # A worker, whose skips the first process counts.
        return
    if os.environ.get("CI") and reporter.stats.get("skipped") and session.exitstatus == 0:
        session.exitstatus = 1


# With `-n 2` two workers share the tests; see tests/lines/lanes.py.


def pytest_xdist_make_scheduler(config, log):
    return Lanes(config, log)


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(file_of(item.nodeid)))
