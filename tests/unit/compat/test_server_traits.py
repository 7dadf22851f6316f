"""What a tree refuses beside an argument is read from its own guards."""

import pytest

from miles_periodic.compat.server_traits import prefill_returns_routes, refusals_beside
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.values import Refusal

FLAG = "keep_prefixes"


@pytest.fixture
def refusals(tmp_path):
    def read(body):
        path = tmp_path / "sglang" / "srt" / "server_args.py"
        path.parent.mkdir(parents=True)
        lines = "\n".join(f"        {line}" for line in body.strip("\n").splitlines())
        path.write_text(f"class ServerArgs:\n    def check(self):\n{lines}\n")
        found = refusals_beside(Tree.at("sglang", tmp_path), FLAG)
        return [(r.argument, r.allowed, r.refused) for r in found]

    return read


def guarded(test):
    return f"if self.keep_prefixes:\n    if {test}:\n        raise ValueError('no')"


@pytest.mark.parametrize(
    ("test", "refusal"),
    [
        ("self.sparse", ("sparse", None, (True,))),
        ("self.backend == 'fake'", ("backend", None, ("fake",))),
        ("self.backend in ('fake', 'none')", ("backend", None, ("fake", "none"))),
        ("self.backend != 'nixl'", ("backend", ("nixl",), ())),
        ("self.backend not in ('nixl', 'mooncake')", ("backend", ("nixl", "mooncake"), ())),
        ("self.algorithm is not None", ("algorithm", (None,), ())),
        ("get_memory().sparse", ("sparse", None, (True,))),
    ],
)
def test_a_guard_inside_the_flags_branch_is_read(refusals, test, refusal):
    assert refusals(guarded(test)) == [refusal]


def test_a_guard_that_joins_flag_role_and_value_is_read(refusals):
    body = (
        "if (\n    self.disaggregation_mode == 'decode'\n    and self.keep_prefixes\n"
        "    and self.algorithm not in (None, 'EAGLE')\n):\n    raise ValueError('no')"
    )
    assert refusals(body) == [("algorithm", (None, "EAGLE"), ())]


def test_a_branch_that_only_warns_refuses_nothing(refusals):
    assert refusals("if self.keep_prefixes:\n    if self.sparse:\n        warn('slow')") == []


def test_a_guard_beside_another_flag_refuses_nothing(refusals):
    body = "if self.other and keep_prefixes:\n    if self.sparse:\n        raise ValueError('no')"
    assert refusals(body) == []


def test_a_test_of_another_form_gives_no_refusal(refusals):
    assert refusals(guarded("self.num_slots > self.limit()")) == []


@pytest.mark.parametrize(
    ("refusal", "value", "refused"),
    [
        (Refusal("a", allowed=("x",)), "y", True),
        (Refusal("a", allowed=("x",)), "x", False),
        (Refusal("a", refused=(True,)), 0.5, True),
        (Refusal("a", refused=(True,)), None, False),
        (Refusal("a", refused=("x",)), "x", True),
        (Refusal("a", refused=("x",)), "y", False),
    ],
)
def test_a_refusal_refuses_a_value(refusal, value, refused):
    assert refusal.refuses(value) is refused


def test_a_prefill_that_collects_rows_returns_them(tmp_path):
    path = tmp_path / "sglang" / "srt" / "disaggregation" / "prefill.py"
    path.parent.mkdir(parents=True)
    path.write_text("def finish(self, req):\n    self.maybe_collect_routed_experts(req)\n")
    assert prefill_returns_routes(Tree.at("sglang", tmp_path))
    path.write_text("def finish(self, req):\n    pass  # maybe_collect_routed_experts\n")
    assert not prefill_returns_routes(Tree.at("sglang", tmp_path))
