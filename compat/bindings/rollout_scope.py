"""Where one rollout begins and ends: its state follows the asyncio task that generates it."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from miles_periodic.compat.bindings.per_token import keep_response
from miles_periodic.compat.bindings.route_shape import shape_of
from miles_periodic.hooks.values import EarlierTurns, RolloutState

_current: ContextVar[RolloutState | None] = ContextVar("miles_periodic_rollout", default=None)
_arguments: ContextVar[Any] = ContextVar("miles_periodic_arguments", default=None)


@dataclass(slots=True)
class Taken:
    """Rows that go to the sample when its rollout ends, past a decoder that is not bound."""

    rows: Any = None


_taken: ContextVar[Taken | None] = ContextVar("miles_periodic_taken_routes", default=None)


def current_rollout() -> RolloutState | None:
    """The state of the rollout that this task generates, or None outside one."""
    return _current.get()


def current_arguments() -> Any:
    """Miles's arguments of the rollout that this task generates, or None outside one."""
    return _arguments.get()


def asks_frozen_model(url: str) -> bool:
    """Whether a rollout's request goes to a model of the run that is not trained, such as a
    reference: its weight versions, KV and routes are none of the rollout's."""
    arguments = current_arguments()
    routers = getattr(arguments, "sglang_model_routers", None)
    file = getattr(arguments, "sglang_config", None)
    if not routers or not file:
        return False
    address = urlsplit(url).netloc
    asked = {name for name, (ip, port) in routers.items() if f"{ip}:{port}" == address}
    return bool(asked & _frozen_models(file, arguments.hf_checkpoint))


@lru_cache(maxsize=8)
def _frozen_models(file: str, checkpoint: str) -> frozenset[str]:
    """The models of a server file that get no weights, as Miles decides it."""
    from miles.backends.sglang_utils.sglang_config import SglangConfig

    return frozenset(
        model.name for model in SglangConfig.from_yaml(file).models if _is_frozen(model, checkpoint)
    )


def _is_frozen(model: Any, checkpoint: str) -> bool:
    if model.update_weights is not None:
        return not model.update_weights
    of_groups = [group.overrides.get("model_path") for group in model.server_groups]
    paths = [path or model.model_path or checkpoint for path in of_groups]
    return any(path != checkpoint for path in paths or [model.model_path or checkpoint])


def current_taken() -> Taken | None:
    """Where this rollout's rows go instead of into a response, or None where Miles decodes it."""
    return _taken.get()


def enter(wrapped, instance, args, kwargs):
    """Symptom: Miles's request helpers see token lists, not the trajectory they belong to.

    Trigger: `generate_and_rm` runs one sample, over all its turns, in a task of its own. Takes
    down: the rollout, where an interrupted sample's routes are not those of its tokens. Safe
    because tasks copy their context, so that neighbours never share a state, and a finished
    sample gets its own routes, and is cut only where an abort left tokens without routes: all
    its per-token fields alike. Upstream: radixark/miles#861 (fields cut apart).
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    state = call.get("state")
    arguments = call["args"] if state is None else state.args
    earlier = _earlier(arguments, call["sample"])
    rollout = RolloutState(earlier=earlier, rollout_id=_id_of(call))
    taken = Taken() if state is None and _decodes_inline(arguments, call["sample"]) else None
    return _generate(wrapped(*args, **kwargs), rollout, arguments, state, taken)


def _decodes_inline(arguments: Any, sample: Any) -> bool:
    """Whether Miles's older path generates by itself, with its decoder in the middle of it."""
    of_sample = getattr(sample, "generate_function_path", None)
    return not (of_sample or getattr(arguments, "custom_generate_function_path", None))


async def _generate(
    generation: Awaitable[Any],
    rollout: RolloutState,
    arguments: Any,
    state: Any,
    taken: Taken | None,
) -> Any:
    variables = {_current: rollout, _arguments: arguments, _taken: taken}
    tokens = {variable: variable.set(value) for variable, value in variables.items()}
    try:
        generated = await generation
    finally:
        for variable, token in tokens.items():
            variable.reset(token)
    if taken is not None and taken.rows is not None:
        generated.rollout_routed_experts = taken.rows
    for sample in generated if isinstance(generated, list) else [generated]:
        if _has_gap(sample):
            _end_at_the_gap(sample, (state or _older_state(arguments)).tokenizer)
    return generated


def _id_of(call: Mapping[str, Any]) -> str:
    """A rollout's id; a training sample that Miles resumes has the one that it had before."""
    sample = call["sample"]
    first = sample[0] if isinstance(sample, list) and sample else sample
    index = getattr(first, "index", None)
    is_new = index is None or call.get("evaluation")
    return uuid.uuid4().hex if is_new else f"sample-{index}"


def _earlier(arguments: Any, sample: Any) -> EarlierTurns | None:
    """What an interrupted sample had; Miles resumes it with the same tokens."""
    routes = getattr(sample, "rollout_routed_experts", None)
    if routes is None or not sample.tokens:
        return None
    return EarlierTurns(sample.tokens, routes, shape_of(arguments))


def _has_gap(sample: Any) -> bool:
    """Whether an abort left tokens at the sample's end whose routes never came."""
    routes = getattr(sample, "rollout_routed_experts", None)
    is_short = routes is not None and len(routes) < len(sample.tokens) - 1
    return is_short and sample.status is type(sample).Status.ABORTED


def _end_at_the_gap(sample: Any, tokenizer: Any) -> None:
    """Keep the response up to the last token that a known row sampled."""
    prompt_length = len(sample.tokens) - sample.response_length
    known = len(sample.rollout_routed_experts) + 1 - prompt_length
    keep_response(sample, min(max(known, 0), sample.response_length), tokenizer)


def _older_state(arguments: Any) -> Any:
    """The state of the older rollout path, of which Miles keeps one per process."""
    from miles.rollout.sglang_rollout import GenerateState

    return GenerateState(arguments)
