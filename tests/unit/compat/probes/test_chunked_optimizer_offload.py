"""The probe on small trees: declared and consumed is native, declared alone is not."""

from textwrap import dedent

import pytest

from miles_periodic.compat.probes import chunked_optimizer_offload
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Inject, Native, Unsupported

OPTIMIZER = "core/optimizer/distrib_optimizer.py"
STOCK = {
    OPTIMIZER: """
        class DistributedOptimizer:
            def __init__(self, optimizer, config):
                self.optimizer = optimizer
        """,
    "core/optimizer/optimizer.py": """
        class MixedPrecisionOptimizer:
            def step_with_ready_grads(self):
                self.optimizer.step()
        """,
}
DECLARED = {
    "core/optimizer/optimizer_config.py": """
        class OptimizerConfig:
            chunked_optimizer_state_offload: bool = False
        """
}
CONSUMED = {
    OPTIMIZER: """
        class DistributedOptimizer:
            def __init__(self, optimizer, config):
                if config.chunked_optimizer_state_offload:
                    self.enable()
        """
}


@pytest.fixture
def megatron(tmp_path):
    def probe(*parts):
        for path, source in {k: v for part in parts for k, v in part.items()}.items():
            file = tmp_path / "megatron" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(source), encoding="utf-8")
        (tmp_path / "megatron" / "core").mkdir(parents=True, exist_ok=True)
        return chunked_optimizer_offload.megatron(Tree.at("megatron", tmp_path))

    return probe


def test_a_step_over_all_state_at_once_is_bound(megatron):
    decision = megatron(STOCK)
    assert isinstance(decision, Inject)
    assert "steps all state at once: self.optimizer.step()" in decision.evidence[1].what
    assert decision.bindings[0] == "training/offloaded-optimizer"


def test_a_field_that_is_declared_and_read_is_native(megatron):
    decision = megatron(STOCK, DECLARED, CONSUMED)
    assert isinstance(decision, Native)
    assert [evidence.line for evidence in decision.evidence] == [3, 4]


@pytest.mark.parametrize("half", [DECLARED, CONSUMED])
def test_a_field_that_is_only_declared_or_only_read_is_not_native(megatron, half):
    assert isinstance(megatron(STOCK, half), Inject)


def test_a_tree_without_a_distributed_optimizer_is_unsupported(megatron):
    decision = megatron({})
    assert isinstance(decision, Unsupported)
    assert decision.remedy.startswith("Use megatron-core")


def test_a_miles_whose_arguments_are_elsewhere_is_unsupported(tmp_path):
    (tmp_path / "miles" / "ray").mkdir(parents=True)
    (tmp_path / "miles" / "ray" / "rollout.py").write_text("", encoding="utf-8")
    decision = chunked_optimizer_offload.miles(Tree.at("miles", tmp_path))
    assert isinstance(decision, Unsupported)
