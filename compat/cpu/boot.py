"""Registers the CPU stand-ins in a process of a rehearsal."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType

from miles_periodic.compat import after_import

#: Called with the stand-in's name and what went wrong; does not return.
Fail = Callable[[str, Exception], None]


def register(path: str, fail: Fail) -> None:
    """Let every stand-in of the catalog at `path` (`module:attribute`) wait for its module.

    Only those that belong into this process; the stub of `sgl_kernel` is installed at once.
    """
    from miles_periodic.compat.cpu import sgl_kernel, start_up

    module, _, attribute = path.partition(":")
    start_up.collect_garbage_rarely()
    sgl_kernel.install()
    for stand_in in getattr(importlib.import_module(module), attribute):
        if stand_in.belongs(os.environ):
            hook = partial(_apply, stand_in, fail)
            after_import.register(hook, stand_in.module)


def _apply(stand_in, fail: Fail, module: ModuleType) -> None:
    try:
        stand_in.apply(module)
    except Exception as error:
        fail(stand_in.name, error)
