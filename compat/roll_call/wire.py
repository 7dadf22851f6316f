"""The messages of the roll call: one JSON object per line, each with its `kind`."""

from __future__ import annotations

import json
from typing import Any

HELLO = "hello"  # token, run_id, host, pid, title
APPLIED = "applied"  # binding
IN_SOURCES = "in-sources"  # bindings: those applied by the module itself, which is patched
FAILED = "failed"  # binding, reason
CONSULTED = "consulted"  # counts: binding -> calls so far, title
MUSTER = "muster"  # roles: those that not every run has and this one does; answered with `missing`
PHASE = "phase"  # name, step, began (seconds since the epoch), seconds
NOTICE = "notice"  # text: something that the user must read

MAX_LINE_BYTES = 1 << 20


def pack(kind: str, **parts: Any) -> bytes:
    """One message as a line."""
    return json.dumps({"kind": kind, **parts}, separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes) -> dict[str, Any]:
    """The message in a line; ValueError where it is none."""
    message = json.loads(line)
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("a roll call line is an object with a kind")
    return message
