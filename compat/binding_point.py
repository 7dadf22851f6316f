"""What a patched module calls at its end, so that its bindings are put in.

It does at import what an import hook does right after it, by the same code, so that a patched tree
and an injected one behave alike: composed with other bindings in the catalog's order, and before
anybody can bind a name of the module. Around the definitions themselves it would come earlier than
the stand-ins and the meter of a rehearsal, and their fingerprints would be others.
"""

from __future__ import annotations

import sys


def bind(module: str, *names: str) -> None:
    """Put in whatever waits for a module, at its end; `names` stand in its sources.

    Starts this process's part in the run where the .pth line did not. A module that runs under
    another name, such as `__main__`, is not the one that bindings are made for.
    """
    from miles_periodic.compat import after_import, boot

    boot.start()
    after_import.run(sys.modules[module])
    boot.member().report_in_sources(names)
