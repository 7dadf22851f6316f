"""The command line as a person uses it: exit statuses, messages, and nothing started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def periodic(*arguments, name="periodic", cwd=None, **environment):
    return subprocess.run(
        [BIN / name, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import sys; open('started', 'w').close(); print(sys.argv[1:])\n")
    return path


def test_without_plugins_a_script_runs_as_it_is(script, tmp_path):
    done = periodic(str(script), "--plugins", "-h", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['--plugins', '-h']\n")


def test_the_alias_is_the_same_command():
    assert periodic("--version", name="miles").stdout == periodic("--version").stdout


def test_help_teaches_the_main_uses():
    text = periodic("--help").stdout
    for part in ("--plugins", "plan", "rehearse", "train_async.py"):
        assert part in text


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--plugins", "periodik"], "Write 'periodic' instead of 'periodik'"),
        (["--plugins", "periodic:delta-router-reply"], "'delta-router-replay' instead of"),
        (["--plugins", "periodic:"], "names a feature that is empty"),
        (["--plugins", "periodic", "--plugin-set", "kv-preservation.slat=1"], "'salt' instead of"),
        (["--plugins", "periodic", "--plugin-set", "nonsense"], "FEATURE.KEY=VALUE"),
        (["--plugins", "periodic", "--plugin-set", "kv-preservation.salt=7up"], "salt cannot be"),
        (["--plugins", "periodic", "--plugin-config", "missing.toml"], "missing.toml cannot be"),
        (["--plugins", "periodic", "--accept-drift", "kv"], "--accept-drift names 'kv'"),
        (["--plugins", "periodic", "--allow-missing", "kv"], "--allow-missing names 'kv'"),
    ],
)
def test_a_wrong_name_is_one_clear_paragraph_and_starts_nothing(script, tmp_path, options, part):
    done = periodic(*options, str(script), cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "started").exists()
    assert part in done.stderr and "Traceback" not in done.stderr


def test_a_remedy_shows_the_brackets_of_a_table(script, tmp_path):
    (tmp_path / "run.toml").write_text("salt = false\n")
    options = ["--plugins", "periodic", "--plugin-config", "run.toml"]
    done = periodic(*options, str(script), cwd=tmp_path)
    assert "such as [delta-router-replay]." in done.stderr


def test_a_script_that_does_not_exist_is_named(tmp_path):
    done = periodic("--plugins", "periodic", "trian", cwd=tmp_path)
    assert done.returncode == 2 and "'train' instead of 'trian'" in done.stderr


def test_a_mistyped_command_is_named():
    done = periodic("rehaerse")
    assert done.returncode == 2 and "'rehearse'" in done.stderr


def test_a_script_gets_every_argument_untouched(script, tmp_path):
    done = periodic(str(script), "--", "a", "--", "--json", cwd=tmp_path)
    assert done.stdout == "['--', 'a', '--', '--json']\n"


def test_the_version_is_printed():
    done = periodic("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "miles-periodic")


def test_a_name_that_can_be_no_file_is_no_script():
    done = periodic("--plugins", "periodic", "x" * 300)
    assert done.returncode == 2 and "neither a command nor a script" in done.stderr


def test_without_plugins_nothing_stands_between_a_signal_and_the_script(tmp_path):
    (tmp_path / "kill.py").write_text("import os; print(os.getpid()); os.kill(os.getpid(), 9)\n")
    assert periodic(str(tmp_path / "kill.py")).returncode == -9


def test_a_terminal_that_cannot_show_every_sign_still_gets_the_plan():
    done = periodic("plan", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "cost-aware-packing" in done.stdout


def test_settings_may_stand_behind_the_word_plan():
    before = periodic("--plugin-set", "kv-preservation.slat=1", "plan")
    behind = periodic("plan", "--plugin-set", "kv-preservation.slat=1")
    assert before.returncode == behind.returncode == 2
    assert "'salt' instead of" in before.stderr and before.stderr == behind.stderr


def test_options_about_plugins_without_plugins_are_refused(script, tmp_path):
    done = periodic("--plugin-set", "kv-preservation.salt=false", str(script), cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "started").exists()
    assert "Add --plugins periodic" in done.stderr
