"""Runs of the rehearsal's loop for tests: which features are on, and one run by itself."""

import os
from pathlib import Path

import pytest

#: Features that a trainer has by name only.
BY_NAME = (
    "chunked-optimizer-offload",
    "chunked-checkpoint-staging",
    "fused-linear-cross-entropy",
)
#: Settings under which a plan depends on its batch alone, and a state is many chunks and waves.
EXACT = {
    "cost-aware-packing": {"time_budget_seconds": 0},
    "chunked-optimizer-offload": {"workspace_bytes": 1 << 18},
    "chunked-checkpoint-staging": {"staging_bytes": 1 << 20},
}


def slugs_of_a_rehearsal() -> set[str]:
    """The features that are on by themselves with servers of its kind, and those of a trainer."""
    from miles_periodic.plugins import features

    alone = [each for each in features() if each.default]
    served = {f.slug for f in alone if not f.server_roles or "regular" in f.server_roles}
    return {*served, *BY_NAME}


def run_on_cpu(folder: Path, slugs, *, shape=None, site="", settings=None):
    """One run of the rehearsal's loop in `folder`, and its outcome.

    slugs: the features that are on. site: text of a `sitecustomize` for every process of the run.
    settings: slug to what is set besides the defaults.
    """
    from miles_periodic.cli.rehearsal.one_run import run_once
    from miles_periodic.cli.rehearsal.workspace import workspace
    from miles_periodic.compat.cpu import game, tiny_model
    from miles_periodic.compat.cpu.flags import CpuRun, prompts_file

    shape = shape or CpuRun(num_rollouts=1)
    with workspace(folder) as space, pytest.MonkeyPatch.context() as patch:
        model, work, sites = (space.folder / name for name in ("model", "on", "site"))
        sites.mkdir()
        (sites / "sitecustomize.py").write_text(site, encoding="utf-8")
        patch.setenv("PYTHONPATH", str(sites), prepend=os.pathsep)
        tiny_model.write(model)
        work.mkdir()
        game.write_prompts(prompts_file(work), shape.num_prompts)
        where = {"model": model, "folder": work, "ray": space.ray}
        on = _selected(slugs, settings or {})
        return run_once("on", *on, **where, shape=shape, on_phase=lambda phase: None)


def _selected(slugs, settings):
    """The features, and what binds them in trainers and around the servers."""
    from miles_periodic.cli.selected import Selected
    from miles_periodic.compat.catalog import bindings_named
    from miles_periodic.compat.plan import make_plan
    from miles_periodic.compat.tree import Tree
    from miles_periodic.plugins import features

    on = tuple(feature for feature in features() if feature.slug in slugs)
    chosen = {f.slug: f.settings_model(**settings.get(f.slug, {})) for f in on}
    trees = {name: Tree.installed(name) for name in ("miles", "megatron")}
    plan = make_plan(features(), slugs, trees, environment={}, settings=chosen)
    decisions = [row.decision for row in plan.rows if row.upstream in trees]
    names = {name for made in decisions for name in getattr(made, "bindings", ())}
    return Selected(on, chosen, ()), bindings_named(names)
