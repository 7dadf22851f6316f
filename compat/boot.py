"""What the .pth line starts in a Python process of a run: nothing is imported but our own hooks.

Each binding waits for the module that defines its target and is applied right after that module
executed, before anybody can bind the name; by an import hook, or by the module itself where a patch
set has put a binding point into it. What was applied goes to the roll call; a binding that
fails ends the process, and the roll call ends the run.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn

from miles_periodic.compat import after_import
from miles_periodic.compat.apply import Applied, apply_binding
from miles_periodic.compat.manifest import GATE, ManifestError, RunManifest
from miles_periodic.compat.roll_call.member import ENDED_STATUS, Member

_member: Member | None = None


def start() -> None:
    """Join the run that the environment names.

    The .pth line calls it, and a binding point where no such line was read. Python may read a .pth
    file more than once, so that a second call does nothing.
    """
    global _member
    if _member is not None:
        return
    try:
        manifest = RunManifest.decode(os.environ[GATE])
        _member = Member(manifest)
        if manifest.stand_ins:
            _register_stand_ins(manifest.stand_ins)
        _register_bindings(manifest)
        _member.join()
    except ManifestError as error:
        _stop(f"{error}; start the run again with the same miles-periodic on every node.")
    except Exception as error:  # Python goes on where a .pth line raises, without our bindings.
        _stop(f"this process cannot join its run: {type(error).__name__}: {error}.")


def _register_bindings(manifest: RunManifest) -> None:
    """The bindings, between the two halves of the meter where there is one."""
    if manifest.meter:
        from miles_periodic.compat import meter

        meter.register_inner(manifest.meter)
    for binding in manifest.bindings:
        in_sources = binding.name in manifest.in_sources
        after_import.register(partial(_on_import, binding), binding.module, hook=not in_sources)
    if manifest.meter:
        meter.register_outer(manifest.meter)


def _register_stand_ins(path: str) -> None:
    from miles_periodic.compat.cpu import boot as cpu_boot

    cpu_boot.register(path, _fail)


def member() -> Member | None:
    """This process's place in the roll call, or None outside a run."""
    return _member


def _on_import(binding, module) -> None:
    try:
        applied: Applied = apply_binding(binding, module)
    except Exception as error:
        _fail(binding.name, error)
    _member.report_applied(binding, applied)


def _fail(name: str, error: Exception) -> NoReturn:
    """Tell the roll call what is not in place, and stop."""
    _member.report_failure(name, f"{type(error).__name__}: {error}")
    _stop(f"{name} could not be put in place: {type(error).__name__}: {error}")


def _stop(message: str) -> NoReturn:
    """End this process at once: a process without its bindings must not compute anything."""
    print(f"miles-periodic: {message}", file=sys.stderr, flush=True)
    os._exit(ENDED_STATUS)
