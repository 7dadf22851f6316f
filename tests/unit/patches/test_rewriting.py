"""All files or none: whatever fails or is killed, wherever, and whoever comes next."""

import os
import subprocess
import sys
import textwrap

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches import rewriting
from miles_periodic.patches.rewriting import FOLDER, Rewrite, alone_in, put_back, rewrite

FILES = ("a.py", "sub/b.py", "sub/c.py")
REWRITES = [Rewrite(file, f"old {file}".encode(), f"new {file}\r\n".encode()) for file in FILES]
OLD = {each.file: each.before for each in REWRITES}
NEW = {each.file: each.after for each in REWRITES}
#: Every call that changes the disk, so that each of its calls can fail.
CALLS = ("os.replace", "os.link", "os.fsync", "shutil.copymode", "pathlib.Path.unlink")


@pytest.fixture
def root(tmp_path):
    for each in REWRITES:
        path = tmp_path / each.file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(each.before)
    (tmp_path / "a.py").chmod(0o755)
    return tmp_path


def there(root):
    return {file: (root / file).read_bytes() for file in FILES}


def everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_every_file_gets_its_bytes_and_keeps_its_mode(root):
    rewrite(root, REWRITES)
    assert there(root) == NEW
    assert everything(root) == sorted(FILES)
    assert (root / "a.py").stat().st_mode & 0o777 == 0o755


def test_a_file_that_shares_its_bytes_with_a_cache_leaves_the_cache_alone(root, tmp_path_factory):
    cached = tmp_path_factory.mktemp("cache") / "a.py"
    os.link(root / "a.py", cached)
    rewrite(root, REWRITES)
    assert cached.read_bytes() == OLD["a.py"]


CODE = """
import os, shutil, pathlib, sys
from miles_periodic.patches import rewriting
sys.path.insert(0, {here!r})
from test_rewriting import REWRITES

name, number, kill = {name!r}, {number}, {kill}
holder = eval(name.rpartition(".")[0])
native, calls = getattr(holder, name.rpartition(".")[2]), []

def failing(*arguments, **options):
    calls.append(1)
    if len(calls) == number:
        if kill:
            os._exit(9)
        raise OSError("no space left on device")
    return native(*arguments, **options)

setattr(holder, name.rpartition(".")[2], failing)
try:
    rewriting.rewrite(pathlib.Path({root!r}), REWRITES)
except Exception as error:
    print(type(error).__name__, error)
print(len(calls), "calls")
"""


def interrupted(root, name, number, *, kill):
    here = os.path.dirname(__file__)
    code = CODE.format(here=here, name=name, number=number, kill=kill, root=str(root))
    words = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def in_this_process(monkeypatch, root, name, number):
    """The same without a kill; the number of calls that were made."""
    holder = {"os": os, "shutil": rewriting.shutil, "pathlib.Path": rewriting.Path}[
        name.rpartition(".")[0]
    ]
    attribute = name.rpartition(".")[2]
    native, calls = getattr(holder, attribute), []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == number:
            raise OSError("no space left on device")
        return native(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(holder, attribute, failing)
        try:
            rewrite(root, REWRITES)
            return len(calls), None
        except PeriodicError as error:
            return len(calls), error


@pytest.mark.parametrize("name", CALLS)
def test_a_failure_at_any_write_leaves_every_file_as_it_was(monkeypatch, root, name):
    for number in range(1, 50):
        calls, error = in_this_process(monkeypatch, root, name, number)
        if calls < number:
            break
        if error is None:  # such as a link: a file system without them is none of our errors
            assert there(root) == NEW
            rewrite(root, [Rewrite(r.file, r.after, r.before) for r in REWRITES])
        else:
            assert "every file is as it was" in str(error)
        assert there(root) == OLD
        assert everything(root) == sorted(FILES)
    assert there(root) == NEW and number > 1


@pytest.mark.parametrize(
    ("name", "number"),
    [("os.fsync", 2), ("os.replace", 1), ("os.replace", 2), ("os.replace", 4), ("os.link", 3)],
)
def test_after_a_kill_the_next_command_finds_every_file_as_it_was(root, name, number):
    assert interrupted(root, name, number, kill=True).returncode == 9
    with alone_in(root) as num_put_back:
        assert there(root) == OLD
    assert num_put_back == {("os.replace", 4): 2, ("os.link", 3): 2}.get((name, number), 0)
    if (name, number) == ("os.replace", 2):
        assert num_put_back == 0
    assert everything(root) == sorted(FILES)


def test_a_kill_after_the_last_word_leaves_every_file_as_it_was_to_be(root):
    assert interrupted(root, "shutil.rmtree", 1, kill=True).returncode == 9
    assert put_back(root) == 0
    assert there(root) == NEW
    assert everything(root) == sorted(FILES)


def test_what_somebody_wrote_after_a_kill_is_not_overwritten(root):
    assert interrupted(root, "os.link", 3, kill=True).returncode == 9
    (root / "a.py").write_bytes(b"mine")
    with pytest.raises(PeriodicError, match="a.py was changed after"), alone_in(root):
        pass
    assert (root / "a.py").read_bytes() == b"mine"
    assert (root / FOLDER).is_dir()


@pytest.mark.parametrize("found", [b"other", None])
def test_a_file_that_is_not_the_one_that_was_looked_at_stops_all(root, found):
    (root / "sub/c.py").unlink()
    if found is None:
        (root / "sub/c.py").symlink_to(root / "a.py")
    else:
        (root / "sub/c.py").write_bytes(found)
    with pytest.raises(PeriodicError, match="sub/c.py is not the file") as caught:
        rewrite(root, REWRITES)
    assert ("link" in caught.value.parts["remedy"]) == (found is None)
    assert (root / "a.py").read_bytes() == OLD["a.py"]
    assert not (root / FOLDER).exists()


def test_two_commands_do_not_patch_one_folder_at_once(root):
    with (
        alone_in(root),
        pytest.raises(PeriodicError, match="Wait until it has ended"),
        alone_in(root),
    ):
        pass


def test_without_hard_links_the_old_files_are_copies(monkeypatch, root):
    def refuse(*arguments):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    rewrite(root, REWRITES)
    assert there(root) == NEW
