"""Runs what the pages show, and writes what it prints under it: `python docs/make_transcripts.py`.

In the pages of PAGES a block with a title is a file, and a block `console` is a session: each of
its lines that starts with `$` runs in a folder that holds the page's files, and what it prints
follows it. A block behind `<!-- provoked: NAME -->` is what docs/provoked.py's NAME says.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from miles_periodic.hooks.cache_folder import cache_folder

DOCS = Path(__file__).parent
PAGES = ("failures.md", "new-release.md", "own-plugin.md")
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROVOKED = re.compile(r"(<!-- provoked: (\w+) -->\n\n```text\n)(.*?)(^```$)", re.M | re.DOTALL)
NOT_ASKED_FOR = re.compile(r"(?:^[a-z-]+\n(?:\w+ +off +not asked for *\n)+\n)+", re.MULTILINE)
#: Sessions that the others rely on: what they install, and the wheels that they fetch.
FIRST = ("$ pip install", "$ miles compat add")
#: Packages that a page installs, below its folder.
SITE = "site"
TIMEOUT_SECONDS = 600
_MILES = (
    "import sys; sys.argv[0] = 'miles'; from miles_periodic.cli.main import main; sys.exit(main())"
)


def page(name: str) -> str:
    """The page with every session run anew."""
    text = (DOCS / name).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "here").resolve()
        for path, content in FILE.findall(text):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content, encoding="utf-8")
        sessions = SESSION.findall(text)
        done = {each: _run(each, folder) for each in sessions if each.startswith(FIRST)}
        rest = [session for session in dict.fromkeys(sessions) if session not in done]
        with ThreadPoolExecutor(4) as pool:
            done |= dict(zip(rest, pool.map(lambda s: _run(s, folder), rest), strict=True))
    text = SESSION.sub(lambda found: f"```console\n{done[found[1]]}```", text)
    return PROVOKED.sub(lambda found: found[1] + _provoked(found[2]) + found[4], text)


def _run(session: str, folder: Path) -> str:
    """A session's commands, each with what it prints and its status where that is not 0."""
    folder.mkdir(exist_ok=True)
    parts = []
    for line in re.findall(r"^\$ (.+)$", session, re.MULTILINE):
        status, output = _output(line, folder)
        # The process table cuts off what follows a long path.
        script = rf"\1/venv/bin/python {line.split()[-1]})"
        output = re.sub(r"(driver \(pid \d+ on [^:]+: )[^)\n]*\)", script, output)
        parts += [f"$ {line}", *_shown(output, folder)]
        parts += [f"exit status {status}"] if status else []
    return "\n".join([*parts, ""])


def _output(line: str, folder: Path) -> tuple[int, str]:
    """Exit status of a command line, and what it prints on both streams."""
    words = shlex.split(line)
    variables = {}
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    done = subprocess.run(
        _command(words),
        cwd=folder,
        env=_environment(folder) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def _command(words: list[str]) -> list[str]:
    """What is run for `miles …`, and for `pip install` without a package index."""
    if words[0] == "miles":
        return [sys.executable, "-c", _MILES, *words[1:]]
    if words[:2] == ["pip", "install"]:
        alone = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", SITE]
        return [sys.executable, "-m", "pip", "install", *alone, *words[2:]]
    raise ValueError(f"a page shows {words[0]!r}, of which only miles and pip install are run")


def _environment(folder: Path) -> dict[str, str]:
    """This process's, without its colours and without a plan or settings of anybody's."""
    left_out = ("MILES", "RAY_", "PYTEST_", "XDG_CACHE_HOME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    path = [*filter(None, kept.get("PYTHONPATH", "").split(":")), str(folder / SITE)]
    plain = {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    return kept | plain | {"PYTHONPATH": ":".join(path), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _shown(output: str, folder: Path) -> Iterator[str]:
    """The lines of some output, without what is another on each machine and in each run."""
    # A plan begins with what is installed here, and lists features that were not asked for.
    output = re.sub(r"\Apython 3\.(?:.*\n)+?(?=\w+: \w+ at )", "", output)
    output = NOT_ASKED_FOR.sub("…\n\n", output)
    plain = {
        str(folder): "/work",
        str(Path(sys.prefix)): "/venv",
        str(cache_folder()): "~/.cache/miles-periodic",
        str(Path.home() / ".cache"): "~/.cache",
        f"on {socket.gethostname()}:": "on node-1:",
    }
    for line in output.splitlines():
        for text, instead in plain.items():
            line = line.replace(text, instead)
        line = re.sub(r"\b(pid|process) \d+", r"\1 4711", line)
        line = re.sub(r"^periodic run [0-9a-f]{12}", "periodic run 5f0c4e1d9a27", line)
        line = re.sub(r"/lib/python3\.\d+/", "/lib/python3/", line)
        if not re.match(r"fetching releases |planning every feature ", line):
            yield line.rstrip()


def _provoked(name: str) -> str:
    spec = importlib.util.spec_from_file_location("provoked", DOCS / "provoked.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = getattr(module, name)()
    return "\n".join([*_shown(said, DOCS), ""])


if __name__ == "__main__":
    for each in PAGES:
        made = page(each)
        (DOCS / each).write_text(made, encoding="utf-8")
