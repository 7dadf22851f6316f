"""SGLang 0.5.11, which declares the start of routes and never reads it, with our bindings."""

import base64

import numpy as np
import pytest
from patched_trees import WAYS, patched_copy

from miles_periodic.compat.catalog import binding_names, bindings_named
from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer
from miles_periodic.compat.matrix.called import calls
from miles_periodic.compat.tree import Tree

pytestmark = pytest.mark.real

VERSION = "0.5.11"
SLUG = "delta-router-replay"
TOKENS = list(range(20, 60))


@pytest.fixture
def serve(sglang_path, tmp_path):
    model = tmp_path / "model"
    tiny_model.write(model)

    def start(with_bindings, patched=False):
        *site, stock = sglang_path(VERSION)
        folder = patched_copy("sglang", stock, SLUG, tmp_path / "patched") if patched else stock
        names = binding_names(SLUG, "sglang", Tree.at("sglang", folder)) if with_bindings else ()
        setup = ServerSetup(
            model,
            [*site, folder],
            bindings_named(names),
            in_sources=names if patched else (),
            flags=("--disable-overlap-schedule",),
        )
        return SGLangServer(setup, tmp_path / "log")

    return start


def rows(server, tokens, start):
    answer = server.generate(tokens, routed_experts_start_len=start)
    model = tiny_model.TinyModel()
    shape = (-1, model.num_hidden_layers, model.num_experts_per_tok)
    values = base64.b64decode(answer["meta_info"]["routed_experts"])
    return np.frombuffer(values, np.int32).reshape(shape)


@pytest.mark.parametrize("way", WAYS)
def test_a_delta_equals_the_suffix_of_all_rows_and_the_roll_call_shows_who_made_it(serve, way):
    with serve(True, patched=way == "patched") as server:
        full = rows(server, TOKENS, 0)
        assert len(full) == len(TOKENS) + 4 - 1
        delta = rows(server, TOKENS, 30)
        assert delta.tobytes() == full[30:].tobytes()
        assert len(rows(server, TOKENS, len(TOKENS))) == 3
        assert server.roll.never_consulted() == []
        (scheduler,) = [row for row in server.roll.rows() if row["role"] == "scheduler"]
        assert scheduler["in_sources"] == (scheduler["applied"] if way == "patched" else [])
        called = calls()[f"sglang-{VERSION}"]["tests/real/test_server_backport.py"]
        assert called == {binding.name for binding in server.roll.bindings}
    assert not server.roll.failures


def test_without_the_bindings_the_start_is_ignored(serve):
    with serve(False) as server:
        assert len(rows(server, TOKENS, 30)) == len(TOKENS) + 4 - 1
