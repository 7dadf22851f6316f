"""The bindings of a run, put into one process that no launcher started."""

from __future__ import annotations

import sys
from collections import Counter

from miles_periodic.compat import boot


class Member:
    """A place in a roll call that nobody keeps."""

    def __init__(self, manifest):
        self.manifest = manifest

    def report_applied(self, binding, applied):
        pass

    def count(self, name):
        pass

    def report_failure(self, name, reason):
        print(f"{name}: {reason}", file=sys.stderr)

    notice = print


class CountingMember(Member):
    """Counts how often each binding is consulted in this process."""

    counts: Counter = Counter()

    def count(self, name):
        self.counts[name] += 1


def join(manifest) -> None:
    """Register the manifest's bindings, as the boot does in a process of a run."""
    boot._member = Member(manifest)
    boot._register_bindings(manifest)
