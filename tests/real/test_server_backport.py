"""SGLang 0.5.11 alone, which declares the start of routes and never reads it.

With our bindings in, `test_injected_servers.py` serves it.
"""

import base64

import numpy as np
import pytest

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer

pytestmark = pytest.mark.real

VERSION = "0.5.11"
TOKENS = list(range(20, 60))


@pytest.fixture
def server(sglang_path, tmp_path):
    model = tmp_path / "model"
    tiny_model.write(model)
    setup = ServerSetup(model, sglang_path(VERSION), flags=("--disable-overlap-schedule",))
    with SGLangServer(setup, tmp_path / "log") as running:
        yield running


def test_without_the_bindings_the_start_is_ignored(server):
    answer = server.generate(TOKENS, routed_experts_start_len=30)
    model = tiny_model.TinyModel()
    shape = (-1, model.num_hidden_layers, model.num_experts_per_tok)
    values = base64.b64decode(answer["meta_info"]["routed_experts"])
    assert len(np.frombuffer(values, np.int32).reshape(shape)) == len(TOKENS) + 4 - 1
