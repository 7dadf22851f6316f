"""One rehearsal for all tests that read it: the real stack, features off and on."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
LIMIT_SECONDS = 900
#: Settings under which a plan depends on its batch alone, a state is many chunks and a save many
#: waves.
EXACT = {
    "cost-aware-packing": {"time_budget_seconds": 0},
    "chunked-optimizer-offload": {"workspace_bytes": 1 << 18},
    "chunked-checkpoint-staging": {"staging_bytes": 1 << 20},
}


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal left."""

    done: subprocess.CompletedProcess
    folder: Path

    @property
    def result(self) -> dict:
        return json.loads((self.folder / "result.json").read_text(encoding="utf-8"))

    @property
    def report(self) -> str:
        return (self.folder / "report.html").read_text(encoding="utf-8")


def rehearse(
    folder: Path, *options: str, plugins="periodic", settings=None, **environment
) -> Rehearsal:
    """Run the command as a user does, and keep what it wrote.

    settings: slug to what is set besides the defaults.
    """
    assignments = [
        f"{slug}.{key}={value}"
        for slug, table in (settings or {}).items()
        for key, value in table.items()
    ]
    command = [
        BIN / "periodic", "--plugins", plugins,
        *(word for each in assignments for word in ("--plugin-set", each)),
        "rehearse", *options,
        "--json", folder / "result.json", "--report", folder / "report.html",
        "--work-dir", folder / "work",
    ]  # fmt: skip
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, **environment},
    )
    return Rehearsal(done, folder)


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory) -> Rehearsal:
    """Every feature, those that are on by name only, too, in a run that saves after each step."""
    from miles_periodic.plugins import features

    made = rehearse(
        tmp_path_factory.mktemp("rehearsal"),
        "--steps",
        "2",
        plugins="periodic:" + ",".join(feature.slug for feature in features()),
        settings=EXACT,
    )
    assert made.done.returncode == 0, made.done.stdout + made.done.stderr
    return made


@pytest.fixture
def cpu_run(tmp_path, monkeypatch):
    """`cpu_run(*slugs, shape=…, site=…)`: one run of the rehearsal's loop, and its outcome.

    slugs: the features that are on. site: text of a `sitecustomize` for every process of the run.
    settings: slug to what is set besides the defaults.
    """

    def run(*slugs, shape=None, site="", settings=None):
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(site, encoding="utf-8")
        path = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
        return run_on_cpu(tmp_path / "work", slugs, shape, settings)

    return run


def run_on_cpu(folder: Path, slugs, shape=None, settings=None):
    """One run of the rehearsal's loop in `folder`, and its outcome; see `cpu_run`."""
    from miles_periodic.cli.rehearsal.one_run import run_once
    from miles_periodic.cli.rehearsal.workspace import workspace
    from miles_periodic.cli.selected import Selected
    from miles_periodic.compat.catalog import bindings_named
    from miles_periodic.compat.cpu import game, tiny_model
    from miles_periodic.compat.cpu.flags import CpuRun, prompts_file
    from miles_periodic.compat.plan import make_plan
    from miles_periodic.compat.tree import Tree
    from miles_periodic.plugins import features

    shape = shape or CpuRun(num_rollouts=1)
    on = tuple(feature for feature in features() if feature.slug in slugs)
    chosen = {f.slug: f.settings_model(**(settings or {}).get(f.slug, {})) for f in on}
    trees = {name: Tree.installed(name) for name in ("miles", "megatron")}
    plan = make_plan(features(), slugs, trees, environment={}, settings=chosen)
    decisions = [row.decision for row in plan.rows if row.upstream in trees]
    names = {name for made in decisions for name in getattr(made, "bindings", ())}
    with workspace(folder) as space:
        tiny_model.write(space.folder / "model")
        (space.folder / "on").mkdir()
        game.write_prompts(prompts_file(space.folder / "on"), shape.num_prompts)
        return run_once(
            "on",
            Selected(on, chosen, ()),
            bindings_named(names),
            model=space.folder / "model",
            folder=space.folder / "on",
            ray=space.ray,
            shape=shape,
            on_phase=lambda phase: None,
        )
