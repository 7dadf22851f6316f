"""State of each parameter in host memory: torch.optim.AdamW's layout over persistent views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from miles_periodic.plugins.chunked_optimizer_offload import exchange
from miles_periodic.plugins.chunked_optimizer_offload.residency import Residency
from miles_periodic.plugins.chunked_optimizer_offload.rules import Rule
from miles_periodic.plugins.chunked_optimizer_offload.workspace import MASTER

State = MutableMapping[Any, Any]


class Moments:
    """dtype: how moments are stored; masters are fp32. settle: returns when host memory is not
    written by a step any more."""

    def __init__(
        self,
        residency: Residency,
        rule: Rule,
        dtype: torch.dtype,
        settle: Callable[[], None],
    ) -> None:
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(
                f"moment_dtype={dtype} cannot be had: FP8 and FP16 moments need scales, which "
                "host memory would not hold. Give torch.float32 or torch.bfloat16."
            )
        self.residency, self.rule, self.dtype, self.settle = residency, rule, dtype, settle
        self._views: dict[int, dict[str, torch.Tensor]] = {}

    def kinds(self, groups: Iterable[Mapping[str, Any]]) -> dict[str, torch.dtype]:
        """What is moved under these groups, and how it is stored."""
        amsgrad = any(group.get("amsgrad") for group in groups)
        moments = exchange.MOMENTS if amsgrad else exchange.MOMENTS[:2]
        return {MASTER: torch.float32, **dict.fromkeys(moments, self.dtype)}

    def ready(self, state: State, number: int, group: Mapping[str, Any]) -> float:
        """Make a parameter's state what a step needs; how many steps it took so far.

        Moments that somebody put in the place of ours are copied into host memory.
        """
        mine = state[self.residency.params[number]]
        count = exchange.num_steps(mine, group, number)
        if not self.rule.step_in_group and not isinstance(mine.get("step"), torch.Tensor):
            mine["step"] = self._counter(count, group)
        for kind in exchange.MOMENTS if group.get("amsgrad") else exchange.MOMENTS[:2]:
            self._put(mine, number, kind)
        return count

    def count(
        self, state: State, groups: Iterable[MutableMapping[str, Any]], stepped: Iterable[int]
    ) -> None:
        """Raise the counters of a step that went through."""
        if self.rule.step_in_group:
            for group in groups:
                if group["params"]:
                    group["step"] = int(group.get("step", 0)) + 1
        else:
            for number in stepped:
                state[self.residency.params[number]]["step"] += 1

    def check_loaded(
        self, loaded: Mapping[Any, Any], groups: Sequence[MutableMapping[str, Any]]
    ) -> dict[int, float]:
        """How often each parameter with state was stepped. ValueError on what cannot be loaded."""
        counts: dict[int, float] = {}
        for group in groups:
            of_group = []
            for param in group["params"]:
                entry = loaded.get(param)
                if entry:
                    number = self.residency.number[param]
                    exchange.check_state(entry, param, group, number)
                    counts[number] = exchange.num_steps(entry, group, number)
                    of_group.append(counts[number])
            if self.rule.step_in_group:
                exchange.common_num_steps(of_group)
        return counts

    def install(
        self,
        loaded: Mapping[Any, Any],
        groups: Sequence[MutableMapping[str, Any]],
        counts: Mapping[int, float],
    ) -> State:
        """Copy checked state into host memory; what `optimizer.state` is from now on."""
        state: State = defaultdict(dict)
        state.update((k, v) for k, v in loaded.items() if k not in self.residency.number)
        for group in groups:
            numbers = [self.residency.number[param] for param in group["params"]]
            stepped = [number for number in numbers if number in counts]
            if not self.rule.step_in_group:
                group.pop("step", None)
            elif stepped:
                group["step"] = int(counts[stepped[0]])
            for number in stepped:
                param = self.residency.params[number]
                entry = {k: v for k, v in loaded[param].items() if k != "step"}
                counter = self._counter(counts[number], group)
                state[param] = entry if self.rule.step_in_group else {"step": counter, **entry}
                self.ready(state, number, group)
        return state

    def _put(self, mine: MutableMapping[str, Any], number: int, kind: str) -> None:
        views = self._views.setdefault(number, {})
        given = mine.get(kind)
        if given is not None and given is views.get(kind):
            return
        self.settle()
        if kind not in views:
            views[kind] = self._view(number, kind)
        elif given is None:
            views[kind].zero_()
        if given is not None:
            views[kind].copy_(given)
        mine[kind] = views[kind]

    def _view(self, number: int, kind: str) -> torch.Tensor:
        residency = self.residency
        residency.host.add_kind(kind, self.dtype)
        shape = residency.params[number].shape
        return residency.host.view(kind, residency.extents[number], shape)

    def _counter(self, count: float, group: Mapping[str, Any]) -> torch.Tensor:
        _, dtype = self.rule.counter(group, self.residency.device)
        return torch.tensor(count, dtype=dtype)
