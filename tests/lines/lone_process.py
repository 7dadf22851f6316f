"""The bindings of a run, put into one process that no launcher started."""

from __future__ import annotations

import sys
from collections import Counter

from miles_periodic.compat import boot

#: Name of a binding to how often this process consulted it.
counts: Counter[str] = Counter()


class Member:
    """A place in a roll call that nobody keeps, but for the counts."""

    def __init__(self, manifest):
        self.manifest = manifest

    def report_applied(self, binding, applied):
        pass

    def count(self, name):
        counts[name] += 1

    def report_failure(self, name, reason):
        print(f"{name}: {reason}", file=sys.stderr)

    notice = print


def join(manifest) -> None:
    """Register the manifest's bindings, as the boot does in a process of a run."""
    boot._member = Member(manifest)
    boot._register_bindings(manifest)
