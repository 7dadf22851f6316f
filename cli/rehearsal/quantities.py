"""Numbers to the words that people read: bytes, counts, seconds, costs, shares and times."""

from __future__ import annotations

import math
from datetime import datetime, timezone

NOT_MEASURED = "not measured"
_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def bytes_text(num_bytes: float | None) -> str:
    """Bytes in decimal units: `1.24 MB`."""
    if num_bytes is None:
        return NOT_MEASURED
    for factor, prefix in _SI:
        if abs(num_bytes) >= factor:
            return f"{_three_digits(num_bytes / factor)} {prefix}B"
    return f"{num_bytes:.0f} B"


def count_text(count: float | None) -> str:
    """A whole number with its thousands apart: `12,345`."""
    return NOT_MEASURED if count is None else f"{count:,.0f}"


def cost_text(cost: float, unit: str) -> str:
    """A cost in its unit: `1.52 GFLOPs`."""
    for factor, prefix in _SI:
        if abs(cost) >= factor:
            return f"{_three_digits(cost / factor)} {prefix}{unit}"
    return f"{_three_digits(cost)} {unit}".rstrip()


def seconds_text(seconds: float | None) -> str:
    """A duration: `0.4 s`, `48.2 s`, `4 min 43 s`."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def milliseconds_text(seconds: float | None) -> str:
    """A short duration: `4.7 ms`, `41 ms`."""
    return NOT_MEASURED if seconds is None else f"{_three_digits_at_most(1e3 * seconds)} ms"


def time_text(moment: str) -> str:
    """A moment in ISO 8601 as `2026-11-30 04:00 UTC`; anything else as it stands."""
    try:
        parsed = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return moment
    return parsed.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def share_text(part: float, whole: float) -> str:
    """A part of a whole in per cent; empty where there is no whole."""
    return f"{100 * part / whole:.0f} %" if whole else ""


def number_text(value: float | None) -> str:
    """A metric with four digits that say something: `0.00412`."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.4g}" if math.isfinite(value) else "not a number"


def ratio_text(ratio: float | None) -> str:
    """Slot time over its lower bound: `1.03×`."""
    return NOT_MEASURED if ratio is None else f"{ratio:.2f}×"


def change_text(before: float, after: float, less: str, more: str, tolerance: float = 0.0) -> str:
    """How `after` compares with `before`: `3.1× fewer`, `12 % more`, `no difference`.

    `tolerance` is the relative change that is no difference yet.
    """
    if before == after or (before > 0 and abs(after / before - 1) <= tolerance):
        return "no difference"
    word = less if after < before else more
    small, large = sorted((before, after))
    if small <= 0:
        return f"100 % {word}" if after < before else f"{word}, from none"
    if large / small >= 1.5:
        return f"{large / small:.1f}× {word}"
    return f"{_percent(abs(after - before) / before)} {word}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"


def _three_digits_at_most(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
