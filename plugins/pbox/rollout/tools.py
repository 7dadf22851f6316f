"""A shell and Python for a model, each call in the sandbox of its rollout.

    --generate-tool-specs-path miles_periodic.plugins.pbox.rollout.tools.SPECS
    --generate-execute-tool-function-path miles_periodic.plugins.pbox.rollout.tools.execute

Whatever the model writes is answered in words, its mistakes too: they are its to learn from.
"""

from __future__ import annotations

from typing import Any

from miles_periodic.plugins.pbox.outcomes import (
    Exited,
    Killed,
    OutOfMemory,
    OutputTruncated,
    Result,
    TimedOut,
)
from miles_periodic.plugins.pbox.rollout.box import RolloutBox, rollout_box

CALL_SECONDS = 60.0
OUTPUT_BYTES = 16 << 10


def _spec(name: str, meaning: str, parameter: str) -> dict[str, Any]:
    text = {"type": "object", "properties": {parameter: {"type": "string"}}}
    function = {
        "name": name,
        "description": meaning,
        "parameters": text | {"required": [parameter]},
    }
    return {"type": "function", "function": function}


SPECS = [
    _spec("shell", "Run a shell command in /work; files stay for later calls.", "command"),
    _spec("python", "Run a Python program in /work; files stay for later calls.", "code"),
]
_PARAMETERS = {"shell": "command", "python": "code"}


async def execute(name: str, parameters: dict[str, Any]) -> str:
    """Run one call of a tool; what the model is told. Raises InfrastructureFailure."""
    wanted = _PARAMETERS.get(name)
    if wanted is None:
        return f"There is no tool {name!r}; there are: {', '.join(_PARAMETERS)}."
    text = parameters.get(wanted) if isinstance(parameters, dict) else None
    if not isinstance(text, str) or "\0" in text:
        return f"{name} takes one parameter, {wanted}: a text without NUL."
    clean = text.encode(errors="replace").decode()  # JSON may hold halves of characters
    return told(await _run(rollout_box(), name, clean))


async def _run(box: RolloutBox, name: str, text: str) -> Result:
    """A program goes in as input, for a word may not be long; a shell's would read on from it."""
    words, stdin = (["sh", "-c", text], "") if name == "shell" else (["python3", "-"], text)
    return await box.exec(
        words,
        stdin=stdin.encode(),
        timeout_seconds=CALL_SECONDS,
        output_limit_bytes=OUTPUT_BYTES,
    )


def told(result: Result) -> str:
    """Both streams as text, and how the command ended where that is no plain success."""
    written = (result.stdout + result.stderr).decode(errors="replace")
    ending = _ending(result)
    if not result.sandbox_lives:
        ending += " The sandbox was started anew: its files are gone."
    return "\n".join(part for part in (written.rstrip("\n"), ending) if part) or "(no output)"


def _ending(result: Result) -> str:
    match result.outcome:
        case Exited(0):
            return ""
        case Exited(code):
            return f"(exit status {code})"
        case Killed(signal, by):
            return f"(ended by signal {signal}{', at the limit of processes' if by else ''})"
        case TimedOut(seconds):
            return f"(stopped after {seconds:.0f} seconds)"
        case OutOfMemory(limit_bytes):
            return f"(stopped at {limit_bytes >> 20} MiB of memory)"
        case OutputTruncated(limit_bytes):
            return f"(stopped after {limit_bytes} bytes of output)"
