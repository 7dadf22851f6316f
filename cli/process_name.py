"""The name in the process table, set before anything else happens.

Miles's launch helper ends leftovers of earlier runs with `pkill -9 miles`, and a console script is
called what its file is called: without this, `miles --plugins … scripts/run_x.py` would be killed
by the run it started.
"""

from __future__ import annotations

import ctypes
import sys

NAME = b"periodic"
_PR_SET_NAME = 15


def set_process_name() -> None:
    """Be called `periodic` in the process table; does nothing where there is no prctl."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, NAME, 0, 0, 0)
