"""Writes hooks.md from the hook specs: `python docs/make_hooks_page.py`."""

import inspect
from pathlib import Path

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
                signature = str(inspect.signature(function)).replace("'", "")
                parts += [f"### `{name}{signature}`\n", inspect.cleandoc(function.__doc__) + "\n"]
    return "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("hooks.md").write_text(page(), encoding="utf-8")
