"""What a sandbox's client refuses before the agent hears of it."""

import asyncio
import os

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.client.box import Box


def test_a_pipe_is_refused_where_it_would_arrive_as_an_empty_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PeriodicError, match="neither a file nor a folder"):
        asyncio.run(Box("box", "base", None).upload(tmp_path / "pipe", "there"))
