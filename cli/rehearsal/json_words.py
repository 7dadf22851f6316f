"""The parts of the result that stay JSON, the plan and the machine, to the words people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from miles_periodic.cli.rehearsal.quantities import bytes_text


def dicts_in(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a JSON list; anything else in it has no fields to show."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A JSON value as a short phrase: lists with commas, objects as `key value`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and value.get("present") is False:
        return "not present"
    if isinstance(value, Mapping):
        pairs = ((key, text_of(item)) for key, item in value.items() if key != "present")
        known = ", ".join(f"{key} {item}" for key, item in pairs if item)
        return known or ("present" if value.get("present") else "")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(filter(None, map(text_of, value)))
    return str(value)


def place_of(evidence: Mapping[str, Any]) -> str:
    """`path:line` of a piece of evidence."""
    line = evidence.get("line")
    return text_of(evidence.get("path")) + (f":{line}" if line is not None else "")


def machine_facts(machine: dict) -> list[str]:
    """The machine as short phrases; keys that are not known are shown as they are."""
    words = {
        "cores": lambda v: f"{v} cores",
        "memory_bytes": lambda v: f"{bytes_text(v) if isinstance(v, int | float) else v} of memory",
        "python": lambda v: f"Python {v}",
        "torch": lambda v: f"torch {v}",
        "miles": str,
    }
    return [words.get(key, lambda v, k=key: f"{k} {v}")(value) for key, value in machine.items()]
