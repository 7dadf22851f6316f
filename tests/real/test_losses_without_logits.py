"""Losses and gradients of real Megatron-core releases under gloo, with logits and without.

Tensor parallel 1 and 2, sequence parallel, tied and untied weights, FP32 and BF16, and pipeline
parallel 2 under Megatron's own schedules; two ranks of one process for each release.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from megatron_ranks import TREES
from patched_trees import PATCHED, patched_copy

from miles_periodic.compat.matrix.called import calls
from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject
from miles_periodic.plugins import features

SLUG = "fused-linear-cross-entropy"
CHECKOUT = os.environ.get("MEGATRON_TREE")
#: What is compared is compared again with the adapter in the sources of the newest release.
AS_PATCHED = "0.19.2"
#: Of losses near 5, and of a gradient's largest element. Megatron rounds logits to BF16.
LARGEST = {"torch.float32": (4e-6, 4e-6), "torch.bfloat16": (0.04, 0.06)}


@pytest.fixture(
    scope="module",
    params=[*TREES, f"{AS_PATCHED}-patched", *([CHECKOUT] if CHECKOUT else [])],
)
def label(request, unpacked, tmp_path_factory):
    """A release, or the folder of a tree."""
    if not request.param.endswith("-patched"):
        return request.param
    stock = unpacked(*TREES[AS_PATCHED])
    return str(patched_copy("megatron", stock, SLUG, tmp_path_factory.mktemp("patched")))


@pytest.fixture(scope="module")
def computed(label, megatron_ranks):
    """What the first of two ranks found out."""
    words = [PATCHED] if Path(label).name.startswith("patched") else []
    return megatron_ranks(label, "losses_without_logits.py", *words, worlds=(2,))[2][0]


def test_the_plan_injects_into_shapes_that_are_known(label, unpacked):
    tree = unpacked(*TREES[label]) if label in TREES else Path(label)
    trees = {"megatron": Tree.at("megatron", tree)}
    rows = make_plan(features(), [SLUG], trees, environment={}).rows_of(SLUG)
    decision = next(row.decision for row in rows if row.upstream == "megatron")
    assert isinstance(decision, Inject) and decision.bindings == ("loss/output",)


def test_the_binding_is_called_and_stands_on_file(label, computed):
    called = set(computed["consulted"])
    assert called == {"loss/output"}
    if label in TREES:
        release = "-".join(TREES[label][:2])
        assert called == calls()[release]["tests/real/test_losses_without_logits.py"]


def test_losses_and_every_gradient_are_those_that_megatron_computes_from_logits(computed):
    assert len(computed["cases"]) == 24
    for case in computed["cases"]:
        loss, gradient = LARGEST[case["dtype"]]
        assert case["loss"] <= loss and case["gradients"] <= gradient, case
        assert case["num_gradients"] >= 16


def test_bf16_log_probabilities_are_exact_where_those_from_logits_are_rounded(computed):
    (case,) = (
        c for c in computed["cases"] if "ours_from_exact" in c and c["dtype"] == "torch.bfloat16"
    )
    assert case["ours_from_exact"] < 1e-5 < 1e-3 < case["stock_from_exact"]


def test_no_tensor_of_tokens_times_vocabulary_is_ever_made(computed):
    for case in computed["cases"]:
        logits = 64 * 1024 // case["tensor_parallel"]
        assert case["our_numel"] < logits <= case["stock_numel"], case


def test_a_loss_is_never_below_0(computed):
    assert all(case["smallest_loss"] >= 0 for case in computed["cases"])


def test_the_schedules_of_a_pipeline_take_what_stands_for_logits(computed):
    stock, ours = computed["schedules"]["stock"], computed["schedules"]["ours"]
    assert stock[0][1] > 0
    for of_stock, of_ours in zip(stock, ours, strict=True):
        assert of_ours[0] == pytest.approx(of_stock[0], rel=1e-5)
        assert of_ours[1] == pytest.approx(of_stock[1], rel=1e-5)


def test_a_model_that_needs_its_logits_is_refused_by_name(computed):
    for name, said in computed["refused"].items():
        assert name in said and f"-{SLUG}" in said


def test_a_value_head_is_left_alone(computed):
    assert computed["left_alone"] == [2, 32, 1]


def test_the_hooks_of_the_output_layer_run_so_that_its_parameters_are_gathered(computed):
    assert computed["hooks"] == 2
