"""ChunkedAdam: torch.optim.AdamW whose masters and moments live in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from miles_periodic.plugins.chunked_optimizer_offload import exchange
from miles_periodic.plugins.chunked_optimizer_offload.gradients import gather
from miles_periodic.plugins.chunked_optimizer_offload.moments import Moments
from miles_periodic.plugins.chunked_optimizer_offload.residency import Residency
from miles_periodic.plugins.chunked_optimizer_offload.rules import AdamWRule, Rule
from miles_periodic.plugins.chunked_optimizer_offload.stepper import (
    RESTART,
    Limits,
    OnStepped,
    StepFailed,
    Stepper,
    StepReport,
)

__all__ = ["ChunkedAdam", "StepFailed", "StepReport"]

DEFAULT_WORKSPACE_BYTES = 1 << 30


class ChunkedAdam(torch.optim.AdamW):
    """torch.optim.AdamW with masters and moments in pinned host memory, streamed through the GPU.

    Takes over each parameter's fp32 data: `param.data` becomes a placeholder (NaN, stride 0) and
    `master(param)` is the data. A step moves pieces of parameters through `workspace_bytes` of
    device memory: while one chunk is stepped, the next comes in and the last goes out. Parameters
    without a gradient stay where they are. Nothing is allocated after the first step, but for what
    the arithmetic allocates and frees while it steps a chunk; that is counted in the limit.

    Arithmetic is torch's own, on views of the slots, with the flags of the group: `foreach` (the
    default on CUDA), a loop (the default on the CPU), or `fused`. So it is bit-equal to
    torch.optim.AdamW with the same flags. Without CUDA the same schedule runs in plain memory.

    A step returns before its last chunks are back in host memory. `state`, `master`, `state_dict`
    and everything else here wait for them; whoever kept a host tensor from before calls
    `synchronize()` first.

    params to fused: as in torch.optim.AdamW. `capturable` and `differentiable` are refused; a
    GradScaler unscales and checks gradients itself, also with `fused`.
    workspace_bytes, chunk_bytes: limits; `chunk_bytes` left out, four chunks fill the workspace.
    moment_dtype: torch.float32, or torch.bfloat16: loaded, widened, stepped and rounded to nearest.
    rule: whose arithmetic; `GroupStepRule` for optimizers that count steps in their groups.

    Raises ValueError on limits that hold no three chunks and on options that cannot be had,
    TypeError on parameters that are not dense fp32; no parameter has changed then.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
        chunk_bytes: int | None = None,
        moment_dtype: torch.dtype = torch.float32,
        rule: Rule | None = None,
    ) -> None:
        self._make_parts(rule or AdamWRule(), Limits(workspace_bytes, chunk_bytes), moment_dtype)
        self._constructed = False
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        # Else GradScaler would hand over `found_inf` on the device; our counters are on the host.
        self._step_supports_amp_scaling = False
        self._take_over_groups(self.param_groups)
        self._constructed = True

    @property
    def state(self) -> MutableMapping[Any, Any]:
        """Per parameter "step", "exp_avg" and "exp_avg_sq", in host memory, as last stepped."""
        self.synchronize()
        return self._state

    @state.setter
    def state(self, state: MutableMapping[Any, Any]) -> None:
        self._state = state

    @property
    def on_stepped(self) -> OnStepped | None:
        """Called with each chunk's `SteppedPiece`s while they are on the device, on the current
        stream. What it raises leaves half a step, in the first chunk, too: it may have written."""
        return self._stepper.on_stepped

    @on_stepped.setter
    def on_stepped(self, callback: OnStepped | None) -> None:
        self._stepper.on_stepped = callback

    @property
    def last_step(self) -> StepReport:
        """What the last step moved."""
        return self._stepper.last

    def device_bytes(self) -> int:
        """What is held on the device between steps: the workspace and the placeholders."""
        workspace = self._stepper.workspace
        held = self._residency.num_placeholder_bytes()
        return held + (workspace.num_bytes() if workspace else 0)

    def host_bytes(self) -> int:
        """Masters and moments in host memory; pinned memory may be rounded up."""
        return self._residency.host.num_bytes()

    def synchronize(self) -> None:
        """Return when host memory holds what the last step wrote."""
        self._stepper.synchronize()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Where the new parameters cannot be taken over, the group is not added."""
        super().add_param_group(param_group)
        if not self._constructed:
            return
        try:
            self._take_over_groups(self.param_groups[-1:])
        except BaseException:
            self.param_groups.pop()
            raise

    def make_state(self) -> None:
        """Give every parameter that has none its zero moments in host memory, as a step would."""
        for group in self.param_groups:
            for param in group["params"]:
                self._ready(self._residency.number_of(param), group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. closure: called first, with the parameters' real data on the device.

        Raises StepFailed where a chunk fails; RuntimeError where a parameter was written meanwhile,
        where it is resident or released, after a half step, and on a sparse gradient.
        """
        self._check_can_step()
        loss = None
        if closure is not None:
            with torch.enable_grad(), self.resident():
                loss = closure()
        work = gather(self.param_groups, self._residency, self._ready)
        if work:
            kinds = self._moments.kinds(self.param_groups)
            self._stepper.run(work, self.param_groups, kinds)
        self._moments.count(self._state, self.param_groups, work)
        return loss

    def master(self, param: torch.Tensor) -> torch.Tensor:
        """The fp32 data of `param` in host memory, in its shape. Writing to it is allowed."""
        number = self._residency.number_of(param)
        if number in self._residency.resident or not self._residency.taken:
            raise RuntimeError("the parameter has its real data now: read param.data.")
        self.synchronize()
        return self._residency.master(number)

    @contextmanager
    def resident(self, params: Iterable[torch.Tensor] | None = None) -> Iterator[None]:
        """Real data in `param.data` while the block runs, and back in host memory however it ends.

        params: all without it. Takes device memory for each. Blocks may be nested; no step inside.
        """
        numbers = self._residency.numbers_of(params)
        self.synchronize()
        if not self._residency.taken:
            yield
            return
        with self._residency.given(numbers):
            yield

    def release(self) -> None:
        """Real data in every parameter for good, and no workspace. Moments stay in host memory."""
        self._residency.check_none_resident("release()")
        if self._residency.taken:
            self.synchronize()
            self._residency.release()
            self._stepper.drop_workspace()

    def take_over(self) -> None:
        """The reverse of `release`. Raises before any parameter has changed."""
        if not self._residency.taken:
            self._residency.take(range(len(self._residency.params)))

    def state_dict(self) -> dict[str, Any]:
        """As of torch.optim.AdamW, and loads into it; tensors are the live ones in host memory."""
        self._check_not_half_stepped()
        self.synchronize()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state_dict of torch.optim.AdamW, too, and one with `step` in its groups.

        Tensors are copied into host memory, wherever they are; the device sees none of them.
        Raises ValueError before anything has changed.
        """
        self.synchronize()
        # Last of the hooks: others see the tensors.
        handle = self.register_load_state_dict_pre_hook(lambda _, given: exchange.hold(given))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def mark_restored(self) -> None:
        """Says that, after a half step, masters, state and what was made of them were loaded.

        Loading the state alone cannot say it: masters of two different steps would be trained on.
        """
        self._stepper.half_stepped = ""

    def advise_restart(self) -> None:
        """Errors about a half step no longer name `mark_restored`: whoever loads checkpoints into
        this optimizer asks it for its state first, which a half step refuses."""
        self._stepper.remedy = RESTART

    def __getstate__(self) -> dict[str, Any]:
        if self._residency.taken:
            raise TypeError(
                "a ChunkedAdam whose parameters are placeholders cannot be copied or pickled: "
                "save its state_dict() and the model inside resident(), or release() it first."
            )
        kept = {"defaults": self.defaults, "state": self._state, "param_groups": self.param_groups}
        kept |= {"rule": self._stepper.rule, "limits": self._stepper.limits}
        return kept | {"moment_dtype": self._moments.dtype}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "limits" in state:
            self._rebuild(state)
        else:
            self._install(state["state"], state["param_groups"])

    def _make_parts(self, rule: Rule, limits: Limits, moment_dtype: torch.dtype) -> None:
        self._residency = Residency()
        self._stepper = Stepper(self._residency, rule, limits)
        self._moments = Moments(self._residency, rule, moment_dtype, self._stepper.synchronize)

    def _rebuild(self, kept: dict[str, Any]) -> None:
        """A copy of a released optimizer: released, too."""
        self._make_parts(kept["rule"], kept["limits"], kept["moment_dtype"])
        self._constructed = True
        self._step_supports_amp_scaling = False
        self.defaults, self.param_groups = kept["defaults"], kept["param_groups"]
        self.state = kept["state"]
        torch.optim.Optimizer.__setstate__(self, {})
        self._residency.add([p for group in self.param_groups for p in group["params"]])

    def _take_over_groups(self, groups: Sequence[dict[str, Any]]) -> None:
        """Check new groups' parameters against all limits, then take them over."""
        params = [param for group in groups for param in group["params"]]
        self._residency.check(params)
        self._stepper.fit(self.param_groups, self._moments.kinds(self.param_groups))
        if self._residency.taken or not self._constructed:
            self._residency.add_and_take(params)
        else:
            self._residency.add(params)

    def _install(self, loaded: MutableMapping[Any, Any], groups: list[dict[str, Any]]) -> None:
        """Put a loaded state and its groups in the place of ours, if all of it can be had."""
        exchange.complete_groups(groups, self.param_groups)
        self._stepper.fit(groups, self._moments.kinds(groups))
        loaded = {key: exchange.released(entry) for key, entry in loaded.items()}
        counts = self._moments.check_loaded(loaded, groups)
        self.state = self._moments.install(loaded, groups, counts)
        self.param_groups = groups

    def _check_can_step(self) -> None:
        self._check_not_half_stepped()
        if not self._residency.taken:
            raise RuntimeError("step() after release(): call take_over() first.")
        self._residency.check_none_resident("step()")
        self._residency.check_all_untouched()

    def _check_not_half_stepped(self) -> None:
        if self._stepper.half_stepped:
            raise RuntimeError(f"an earlier step broke off: {self._stepper.half_stepped}")

    def _ready(self, number: int, group: Mapping[str, Any]) -> float:
        return self._moments.ready(self._state, number, group)
