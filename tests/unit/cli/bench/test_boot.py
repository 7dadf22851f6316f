"""What `bench boot` refuses to report."""

import subprocess
import sys
from functools import partialmethod

import pytest

from miles_periodic.cli.bench import boot as bench
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.hooks.errors import RollCallError


def without_site_packages(environment):
    """As a Python starts that runs no .pth file of ours."""
    subprocess.run([sys.executable, "-S", "-c", "pass"], env=environment, check=True)
    return 1.0


def test_a_python_that_never_ran_the_boot_line_is_no_measurement(monkeypatch):
    monkeypatch.setattr(bench, "_start", without_site_packages)
    at_once = partialmethod(RollCallServer.require_joined, patience_seconds=0.0)
    monkeypatch.setattr(RollCallServer, "require_joined", at_once)
    with pytest.raises(RollCallError, match="Install miles-periodic with pip into"):
        bench.measure(1)
