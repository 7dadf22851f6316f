"""Writes hooks.md from the hook specs: `python docs/make_hooks_page.py`."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from miles_periodic.hooks import (
    checkpointing,
    launching,
    rollout,
    routing,
    serving,
    sessions,
    training,
)

TITLES = {
    launching: "Launching: the driver",
    rollout: "Rollout: the processes that talk to the servers",
    sessions: "Sessions: rollouts through the session server",
    routing: "Routing: which server and rank answers",
    serving: "Serving: the servers' schedulers",
    training: "Training: who trains on what, and what steps",
    checkpointing: "Checkpointing: what a train rank writes",
}
LINE_LENGTH = 96
HEAD = """# Hooks

One hook is one decision that an upstream takes. Features implement them as methods marked
`hookimpl`; *composed* hooks take every feature's answer, the others the first one that is not
`None`.
"""


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for module, title in TITLES.items():
        parts.append(f"## {title}\n")
        for name, function in vars(module).items():
            if hasattr(function, "miles-periodic_spec"):
                parts += [f"### {name}\n", _signature(name, function), ""]
                parts += [inspect.cleandoc(function.__doc__) + "\n"]
    return "\n".join(parts)


def _signature(name: str, function: Callable[..., Any]) -> str:
    """The exact signature as code; one argument per line where it is longer than a line."""
    signature = inspect.signature(function)
    text = f"{name}{signature}"
    if len(text) > LINE_LENGTH:
        arguments = "".join(f"    {part},\n" for part in signature.parameters.values())
        text = f"{name}(\n{arguments}) -> {signature.return_annotation}"
    return f"```python\n{text}\n```".replace("'", "")


if __name__ == "__main__":
    Path(__file__).with_name("hooks.md").write_text(page(), encoding="utf-8")
