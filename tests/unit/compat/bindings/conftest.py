"""A process of a run with features of the test's own, and a Miles that is only stubs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest

from miles_periodic.compat.bindings import (
    cancellation,
    rollout_flight,
    rollout_scope,
    rollout_traffic,
    weight_versions,
)
from miles_periodic.compat.bindings import features as features_module
from miles_periodic.hooks.manager import build_manager


class Status(Enum):
    """Of a sample, as Miles names them."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass
class Sample:
    """What the bindings use of Miles's sample."""

    metadata: dict = field(default_factory=dict)
    response_length: int = 0
    remove_sample: bool = False
    group_index: int | None = None
    status: Status = Status.PENDING

    Status = Status


@dataclass
class Process:
    """The member of a run: what it was told."""

    notices: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    def notice(self, text):
        self.notices.append(text)

    def report_failure(self, name, reason):
        self.failures.append(reason)


@pytest.fixture
def process(monkeypatch):
    """`process.use(feature, …)` makes these the features that are on."""
    weight_versions.forget()
    cancellation.drain_tally()
    cancellation._watches.clear()
    process = Process()
    monkeypatch.setattr(cancellation, "member", lambda: process)
    features_module.manager.cache_clear()

    def use(*features):
        made = build_manager(features)
        for module in (cancellation, features_module, rollout_traffic):
            monkeypatch.setattr(module, "manager", lambda: made)

    process.use = use
    return process


@pytest.fixture
def stub(monkeypatch):
    """`stub("miles.part", name=value)` puts a module of that name in for the test."""

    def put_in(name, **parts):
        packages = name.split(".")
        for end in range(1, len(packages)):
            parent = ".".join(packages[:end])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        module = ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)

    return put_in


@pytest.fixture
def sample():
    return Sample


@pytest.fixture
def bound():
    """A generate function within the scope of a rollout, bound as in a run."""

    def bind(generate, cancellable=True):
        async def generate_and_rm(args, sample, sampling_params, evaluation=False):
            return await generate(sample)

        def scoped(*args, **kwargs):
            return rollout_scope.enter(generate_and_rm, None, args, kwargs)

        def started(args, sample, sampling_params, evaluation=False):
            given = (args, sample, sampling_params, evaluation)
            return rollout_flight.keep_start(as_miles(scoped), None, given, {})

        def ended(sample, evaluation=False):
            given = (SimpleNamespace(name="arguments"), sample, {}, evaluation)
            return cancellation.make_cancellable(started, None, given, {})

        def unbounded(sample, evaluation=False):
            return started(None, sample, {}, evaluation)

        return ended if cancellable else unbounded

    def as_miles(function):
        async def generate_and_rm(args, sample, sampling_params, evaluation=False):
            return await function(args, sample, sampling_params, evaluation)

        return generate_and_rm

    return bind
