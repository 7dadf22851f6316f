"""Follow a field from its declaration to what consumes it, or to where it stops."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from miles_periodic.compat.places import Carried, Consumed, Place, reads_in
from miles_periodic.compat.scopes import FUNCTIONS, Scopes, types_of
from miles_periodic.compat.tree import SourceModule, Tree
from miles_periodic.compat.uses import uses_of
from miles_periodic.hooks.decisions import Evidence


@dataclass(frozen=True, slots=True)
class Trail:
    """How far a field's value gets.

    name: `Class.field`, as asked.
    hops: the declaration, then each place that carries the value on, to the last one seen; empty
        where the class declares no such field.
    consumer: what decides something by the value, or None where nothing does.
    missing: where there is no consumer, one sentence on what is not there.
    unreached: classes that have the field under its last name but never receive the value.
    """

    name: str
    hops: tuple[Evidence, ...]
    consumer: Evidence | None
    missing: str = ""
    unreached: tuple[Evidence, ...] = ()

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Hops, then the consumer, or the classes that the value never reaches."""
        return (*self.hops, self.consumer) if self.consumer else (*self.hops, *self.unreached)


@dataclass(frozen=True)
class _Step:
    """A place that the value reached, what showed it, and from where it came."""

    place: Place
    shown: Evidence
    before: _Step | None = None
    passed: bool = False

    @property
    def path(self) -> tuple[Evidence, ...]:
        return (*self.before.path, self.shown) if self.before else (self.shown,)


@dataclass
class _Search:
    """One walk over a tree; `reached` are the classes that hold the value under some name.

    lenient: whether a value of which the source says nothing may be what holds the field, where
        the read hands it to another class.
    """

    scopes: Scopes
    through: str
    lenient: bool
    reached: set[tuple[str, str]] = field(default_factory=set)

    def run(self, start: _Step) -> tuple[_Step, Evidence | None]:
        """The last step and the consumer, or the deepest step and None.

        Whether an untyped `x.field` may be read depends on which classes hold the value, so the
        walk is repeated until no further class is reached.
        """
        while True:
            known = set(self.reached)
            last, consumer = self._walk(start)
            if consumer or self.reached == known:
                return last, consumer

    def _walk(self, start: _Step) -> tuple[_Step, Evidence | None]:
        waiting, seen, last = deque([start]), {(start.place, start.passed)}, start
        while waiting:
            step = waiting.popleft()
            if len(step.path) >= len(last.path):
                last = step
            for module, read, certain in self._reads(step.place):
                for use in uses_of(read, step.place.name, module, self.scopes):
                    if not certain and not _class_given(use):
                        continue
                    shown = module.evidence(use.node, _described(module, use))
                    if isinstance(use, Consumed):
                        if step.passed or not self.through:
                            return step, shown
                        continue
                    following = self._next(step, use, shown)
                    if (following.place, following.passed) not in seen:
                        seen.add((following.place, following.passed))
                        waiting.append(following)
        return last, None

    def _next(self, step: _Step, use: Carried, shown: Evidence) -> _Step:
        place = replace(use.place, derived=use.place.derived or step.place.derived)
        if place.owner:
            self.reached.add((place.owner, place.name))
        passed = step.passed or self._is_through(place)
        return _Step(place, shown, step, passed)

    def _is_through(self, place: Place) -> bool:
        return bool(self.through) and _class_of(place) == self.through

    def _reads(self, place: Place) -> Iterator[tuple[SourceModule, ast.expr, bool]]:
        """Every expression that reads a place, and whether it is certain that it does."""
        if place.scope is not None and place.module is not None:
            for read in reads_in(place):
                yield place.module, read, True
            return
        home = [module for module, _ in self.scopes.classes(place.owner or "")]
        modules = self.scopes.mentioning(place.name)
        for module in sorted(modules, key=lambda module: module not in home):
            for read in module.attribute_loads.get(place.name, ()):
                certain = self._is_of(place, read, module)
                if certain is not None:
                    yield module, read, certain

    def _is_of(self, place: Place, read: ast.expr, module: SourceModule) -> bool | None:
        """Whether `x.field` reads the class that holds the value: True, False for perhaps, None.

        Where the source gives a type for `x`, or calls values of one class so, that decides. Where
        it does not, `x` could be of any class that has the attribute: it is certain when all of
        them hold the value.
        """
        if place.owner is None:
            return True
        receiver = read.value if isinstance(read, ast.Attribute) else read.args[0]
        known = [t for t in types_of(receiver, module) if self.scopes.classes(t)]
        name = receiver.id if isinstance(receiver, ast.Name) else getattr(receiver, "attr", "")
        called = self.scopes.named(name, place.name) if name else frozenset()
        if known or len(called) == 1:
            related = any(self.scopes.related(t, place.owner) for t in known or called)
            return True if related else None
        owners = self.scopes.owners(place.name)
        if all((owner, place.name) in self.reached for owner in owners):
            return True
        free = isinstance(receiver, ast.Name) and not called & set(owners)
        return False if self.lenient and free else None


def _class_of(place: Place) -> str:
    """The class that a place is an attribute of, or whose method it is a variable of."""
    if place.module and place.scope is not None:
        return place.module.qualname(place.scope).rpartition(".")[0].partition(".")[0]
    return place.owner or ""


def _class_given(use: Carried | Consumed) -> bool:
    """Whether a use hands the value to a class's constructor."""
    if not isinstance(use, Carried):
        return False
    scope = use.place.scope
    return scope.name == "__init__" if isinstance(scope, FUNCTIONS) else bool(use.place.owner)


def _described(module: SourceModule, use: Carried | Consumed) -> str:
    where = module.qualname(use.node) or "the module"
    return f"{where} {use.how}"


def follow(
    tree: Tree,
    owner: str,
    name: str,
    folders: Sequence[str],
    *,
    without: Sequence[str] = (),
    through: str = "",
) -> Trail:
    """Follow `owner.name` over the modules below `folders` (relative to the package).

    without: files and folders that are side paths: what only they deliver is not delivered.
    through: a class that the value must get into; what is done with it before is not consumption.

    Carrying is not consuming: a keyword of a constructor, another name, an attribute, a result.
    Nor is checking: a comparison whose branch only refuses, reports or leaves, a message, a log
    line. A slice, a subscript, a branch, a result made by arithmetic or an argument of a function
    that the folders do not define is.
    """
    stamp = tree.stamp(*folders)
    return _followed(tree, owner, name, tuple(folders), tuple(without), through, stamp)


@lru_cache(maxsize=64)
def _followed(
    tree: Tree,
    owner: str,
    name: str,
    folders: tuple[str, ...],
    without: tuple[str, ...],
    through: str,
    stamp: int,
) -> Trail:
    """`follow`, once per state of the tree: a probe and the ledger ask for the same trails."""
    scopes = Scopes(tree, folders, without)
    label = f"{owner}.{name}"
    declared = scopes.owners(name).get(owner)
    if declared is None:
        others = tuple(scopes.owners(name).values())
        missing = f"{owner} declares no field {name}"
        return Trail(label, (), None, missing, others[:3])
    start = _Step(Place(name, owner), replace(declared, what=f"{label} is declared"))
    trails = [_trail(label, _Search(scopes, through, False, {(owner, name)}), start)]
    if trails[0].consumer is None:
        trails.append(_trail(label, _Search(scopes, through, True, {(owner, name)}), start))
    return max(trails, key=lambda trail: (trail.consumer is not None, len(trail.hops)))


def _trail(label: str, search: _Search, start: _Step) -> Trail:
    last, consumer = search.run(start)
    if consumer:
        return Trail(label, last.path, consumer)
    return Trail(label, last.path, None, *_why_not(search, last))


def _why_not(search: _Search, last: _Step) -> tuple[str, tuple[Evidence, ...]]:
    place = last.place
    missing = f"nothing consumes {place} or hands it on"
    held = {owner for owner, name in search.reached if name == place.name}
    others = [e for o, e in search.scopes.owners(place.name).items() if o not in held]
    unreached = [
        replace(e, what=f"{e.what} exists, but nothing gives it the value") for e in others
    ]
    return missing, tuple(unreached[:3]) if place.scope is None else ()
