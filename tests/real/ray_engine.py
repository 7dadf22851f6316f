"""An engine as Miles has one: a Ray actor whose child is a server of SGLang.

Its name is that of Miles's class, by which a roll call tells the process's role.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence


class SGLangEngine:
    """Starts a command in the environment that Ray gave this worker, and ends it."""

    def __init__(self, command: Sequence[str], log: str) -> None:
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True
            )

    def is_running(self) -> bool:
        """Whether the first process lives."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the command and all that it started, the way the kernel does."""
        if self.is_running():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
