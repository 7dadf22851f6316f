"""How many weight versions a rollout is behind, and when that is too many."""

from __future__ import annotations

from dataclasses import dataclass

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import Cancel, RolloutStep
from miles_periodic.hooks.weight_versions import is_count
from miles_periodic.plugins.kv_preservation.settings import SLUG

SETTING = f"{SLUG}.max_off_policy_steps"


def steps_behind(start: str, current: str) -> int:
    """Weight updates between two versions, never negative.

    Miles counts its updates and tells the servers the count. PeriodicError where a version is no
    whole number, so that no count can be made of it.
    """
    return max(0, _number(current) - _number(start))


def _number(version: str) -> int:
    if is_count(version):
        return int(version)
    raise PeriodicError(
        f"The weight version {version!r} is no whole number, so that no age can be counted.",
        feature=SLUG,
        target="weight_version",
        expected="the number of weight updates so far, as Miles sets it",
        found=repr(version),
        remedy=f"Number the weight versions, or leave {SETTING} unset.",
    )


def verdict(
    start: str | None, served: str | None, current: str | None, max_steps: int | None
) -> Cancel | None:
    """Whether a rollout is too old, or was answered by weights older than those it started under.

    start: version under which the rollout started. served: version that answered it last, or None
    before its first answer. current: the newest version that any server reported.
    """
    if max_steps is None or start is None:
        return None
    if served is not None and served != start and _is_older(served, start):
        return Cancel(f"it started under weight version {start} and was answered by {served}")
    if current is None:
        return None
    if is_count(current) and not is_count(start):
        return Cancel(f"its server has the weights {start!r}, while others have version {current}")
    behind = steps_behind(start, current)
    if behind > max_steps:
        return Cancel(f"it started {behind} weight versions ago, {max_steps} are allowed")
    return None


def _is_older(served: str, start: str) -> bool:
    """Whether a server fell behind: one that was restarted reports a name instead of a count."""
    return not is_count(served) or int(served) < _number(start)


@dataclass(frozen=True, slots=True)
class Ages:
    """Weight versions between the start of each trained rollout and the end of its step."""

    of_samples: tuple[int, ...]

    def named(self, prefix: str) -> dict[str, float]:
        """Least, mean and greatest by metric name; nothing where no age is known."""
        ages = self.of_samples
        if not ages:
            return {}
        mean = sum(ages) / len(ages)
        return {
            f"{prefix}age_min": min(ages),
            f"{prefix}age_mean": mean,
            f"{prefix}age_max": max(ages),
        }


def ages_of(step: RolloutStep) -> Ages:
    """The ages in a step, where versions are counts; no metric is worth ending a run for."""
    current = step.weight_version
    if current is None or not is_count(current):
        return Ages(())
    known = (start for start in step.start_weight_versions if start and is_count(start))
    return Ages(tuple(steps_behind(start, current) for start in known))
