"""The bindings of a run, put into one process that no launcher started."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace

from patched_trees import PATCHED

from miles_periodic.compat import boot
from miles_periodic.compat.manifest import GATE

#: Name of a binding to how often this process consulted it.
counts: Counter[str] = Counter()


class Member:
    """A place in a roll call that nobody keeps, but for the counts."""

    def __init__(self, manifest):
        self.manifest = manifest

    def report_applied(self, binding, applied):
        pass

    def report_in_sources(self, names):
        pass

    def count(self, name):
        counts[name] += 1

    def report_failure(self, name, reason):
        print(f"{name}: {reason}", file=sys.stderr)

    notice = print


def join(manifest) -> None:
    """Register the manifest's bindings, as the boot does in a process of a run.

    In one whose tree is patched they wait for their modules' binding points alone.
    """
    if PATCHED in sys.argv:
        manifest = replace(manifest, in_sources=tuple(b.name for b in manifest.bindings))
        os.environ[GATE] = "a run of one process"
    boot._member = Member(manifest)
    boot._register_bindings(manifest)
