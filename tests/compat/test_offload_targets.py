"""The targets of chunked-optimizer-offload have known shapes on every tree that it trains on."""

import pytest
from megatron_ranks import TREES

from miles_periodic.compat.plan import make_plan
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Inject
from miles_periodic.plugins import features

SLUG = "chunked-optimizer-offload"


@pytest.mark.parametrize("label", sorted(TREES))
def test_every_target_of_the_offload_is_of_a_known_shape(unpacked, label):
    trees = {"megatron": Tree.at("megatron", unpacked(*TREES[label]))}
    rows = make_plan(features(), [SLUG], trees, environment={}).rows_of(SLUG)
    decision = next(row.decision for row in rows if row.upstream == "megatron")
    assert isinstance(decision, Inject), decision
