"""Which bindings exist, and which of them each feature needs on which upstream.

launch       the bindings of a run's start: command line, muster, the servers' arguments
rollout      those of a rollout from its start to its step, whatever it is rolled out with
sessions     those of rollouts through Miles's session server
server       those of SGLang's own processes
training     those of trainers and of the split of a batch
loss         those of what a model returns and what losses make of it
checkpoints  those of a train rank's save
weights      those of weight updates
routing      those of the choice of a server and a rank
features     what each feature, setting and hook needs of all of these
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.catalog import (
    checkpoints,
    launch,
    loss,
    rollout,
    routing,
    server,
    sessions,
    training,
    weights,
)
from miles_periodic.compat.catalog.features import (
    ALWAYS,
    FEATURE_BINDINGS,
    HOOK_BINDINGS,
    NOTHING,
    SESSION_BINDINGS,
    SETTING_BINDINGS,
    Need,
    Needs,
)
from miles_periodic.compat.tree import Tree

__all__ = [
    "ALWAYS",
    "BINDINGS",
    "FEATURE_BINDINGS",
    "HOOK_BINDINGS",
    "NOTHING",
    "SESSION_BINDINGS",
    "SETTING_BINDINGS",
    "binding_names",
    "bindings_named",
    "every_binding",
    "every_name",
    "names_for_hooks",
    "names_for_sessions",
    "names_for_settings",
    "targets_of",
    "upstream_bindings",
]

#: Name to binding. Those around one target are applied in this order: the last one is outermost.
BINDINGS: dict[str, Binding] = {
    binding.name: binding
    for room in (launch, rollout, sessions, server, training, loss, checkpoints, weights, routing)
    for binding in room.BINDINGS
}


def binding_names(slug: str, upstream: str, tree: Tree) -> tuple[str, ...]:
    """The names of the bindings that a feature needs on a tree of an upstream."""
    needs = FEATURE_BINDINGS.get(slug, {}).get(upstream, ())
    return _chosen((*needs, *(ALWAYS.get(upstream, ()) if needs else ())), tree)


def bindings_named(names: Iterable[str]) -> tuple[Binding, ...]:
    """The bindings of those names, each once, in the order in which they are applied."""
    wanted = set(names)
    return tuple(binding for name, binding in BINDINGS.items() if name in wanted)


def names_for_settings(
    slug: str, upstream: str, settings_on: Iterable[str], tree: Tree
) -> tuple[str, ...]:
    """The names of the bindings that those settings of a feature need besides its own.

    In the catalog's order, whatever the order of `settings_on`: the last one wraps the others.
    """
    by_setting = SETTING_BINDINGS.get(slug, {}).get(upstream, {})
    wanted = set(settings_on)
    needs = [need for setting, listed in by_setting.items() if setting in wanted for need in listed]
    return _chosen((*needs, *(ALWAYS.get(upstream, ()) if needs else ())), tree)


def names_for_sessions(slug: str, upstream: str, tree: Tree) -> tuple[str, ...]:
    """The names of the bindings that a feature needs besides where a run has a session server."""
    return _chosen(SESSION_BINDINGS.get(slug, {}).get(upstream, ()), tree)


def names_for_hooks(hooks: Sequence[str], tree: Tree) -> tuple[str, ...]:
    """The names of the bindings through which the tree's upstream calls those hooks."""
    here = (upstream_bindings(hook).get(tree.upstream, ()) for hook in hooks)
    needs = [need for needs in here for need in needs]
    return _chosen((*needs, *ALWAYS.get(tree.upstream, ())), tree)


def upstream_bindings(hook: str) -> dict[str, Needs]:
    """Upstream to what must be bound on it so that a hook is called."""
    by_upstream: dict[str, Needs] = {}
    for need in HOOK_BINDINGS[hook]:
        upstream = BINDINGS[every_name((need,))[0]].upstream
        by_upstream[upstream] = (*by_upstream.get(upstream, ()), need)
    return by_upstream


def every_name(needs: Iterable[Need]) -> tuple[str, ...]:
    """All names in some needs, every alternative among them."""
    listed = [(need,) if isinstance(need, str) else need for need in needs]
    return tuple(name for alternatives in listed for name in alternatives if name != NOTHING)


def every_binding(slug: str, upstream: str) -> tuple[str, ...]:
    """All that a feature may put in on an upstream, by whatever setting, tree and kind of run."""
    by_setting = SETTING_BINDINGS.get(slug, {}).get(upstream, {})
    needs = (
        *FEATURE_BINDINGS.get(slug, {}).get(upstream, ()),
        *SESSION_BINDINGS.get(slug, {}).get(upstream, ()),
        *(need for listed in by_setting.values() for need in listed),
    )
    return tuple(dict.fromkeys(every_name(needs)))


def _chosen(needs: Iterable[Need], tree: Tree) -> tuple[str, ...]:
    """One name for each need, each once.

    Where a tree has the target of no alternative, the last one is named: the plan then says that
    its target is missing.
    """
    names = (need if isinstance(need, str) else _first_in(need, tree) for need in needs)
    return tuple(name for name in dict.fromkeys(names) if name != NOTHING)


def _first_in(alternatives: Sequence[str], tree: Tree) -> str:
    there = (n for n in alternatives if n != NOTHING and tree.find(BINDINGS[n].target))
    return next(there, alternatives[-1])


def targets_of(upstream: str) -> tuple[str, ...]:
    """Every target on an upstream whose shape some binding depends on, sorted."""
    bindings = [b for b in BINDINGS.values() if b.upstream == upstream]
    return tuple(sorted({target for binding in bindings for target in binding.targets}))
