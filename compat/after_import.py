"""What waits in this process for a module: put in as soon as the module has executed, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import wrapt

#: Called once with the module.
Step = Callable[[ModuleType], None]

_waiting: dict[str, list[Step]] = {}
_hooked: set[str] = set()


def register(step: Step, module: str, *, hook: bool = True) -> None:
    """Let `step` wait for a module; at once where the module is imported already.

    hook: by an import hook. Without one it waits for the module's binding point (see
    binding_point), unless another step of the same module has a hook.
    """
    if hook and module in sys.modules and module not in _waiting:
        step(sys.modules[module])
        return
    _waiting.setdefault(module, []).append(step)
    if hook and module not in _hooked:
        _hooked.add(module)
        wrapt.register_post_import_hook(run, module)


def run(module: ModuleType) -> None:
    """Take every step that waits for this module, in the order in which they were registered."""
    _hooked.discard(module.__name__)
    for step in _waiting.pop(module.__name__, ()):
        step(module)
