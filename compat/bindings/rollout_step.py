"""A rollout step as Miles logs it: the features' last word on its samples, and their numbers."""

from __future__ import annotations

import inspect

from miles_periodic.compat.bindings import cancellation, weight_versions
from miles_periodic.compat.bindings.features import merged_answers
from miles_periodic.compat.bindings.rollout_flight import each_sample, start_of
from miles_periodic.hooks.values import RolloutStep

#: Miles's own count of groups that its data buffer dropped for their age.
_STALE_GROUPS = "rollout/fully_async/stale_groups_filtered"


def log(wrapped, instance, args, kwargs):
    """Symptom: Miles logs no number of a feature's, and nobody looks at a finished sample again.

    Trigger: a rollout step is complete and about to be logged and converted. Takes down: the
    samples that a feature refuses; their loss mask becomes zero. Safe because the numbers join
    those that a rollout function returns, so that a log function of the user gets them too, and
    `remove_sample` is Miles's own way to keep a sample out of the loss. Upstream: none.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    samples = call.arguments["samples"]
    metrics = dict(call.arguments["rollout_extra_metrics"] or {})
    cancellation.drop_finished(samples)
    num_cancelled, num_dropped = cancellation.drain_tally()
    groups = int(metrics.get(_STALE_GROUPS, 0))
    step = RolloutStep(
        start_weight_versions=tuple(
            start_of(sample) for sample in each_sample(samples) if not sample.remove_sample
        ),
        weight_version=weight_versions.newest(),
        num_cancelled=num_cancelled,
        num_dropped=num_dropped + groups * call.arguments["args"].n_samples_per_prompt,
    )
    own = merged_answers("rollout_step_metrics", step=step)
    call.arguments["rollout_extra_metrics"] = metrics | own
    return wrapped(*call.args, **call.kwargs)
