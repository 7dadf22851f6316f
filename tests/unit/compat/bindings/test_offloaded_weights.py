"""Which weights an offloaded optimizer writes, and the configurations that cannot have one."""

from types import SimpleNamespace

import pytest
import torch

from miles_periodic.compat.bindings.offloaded_weights import (
    make_room,
    masters_of_weights,
    refuse,
)
from miles_periodic.hooks import PeriodicError


def distributed(config=None, ddp_config=None, shards=None):
    shards = shards or [[torch.zeros(4, dtype=torch.bfloat16)]]
    masters = [[shard.float() for shard in group if shard is not None] for group in shards]
    whole = torch.nn.Parameter(torch.arange(6.0))
    own = whole.view(-1)[2:5]
    own.shared = True
    return SimpleNamespace(
        config=SimpleNamespace(**config or {}),
        ddp_config=SimpleNamespace(**ddp_config or {}),
        shard_float16_groups=[list(group) for group in shards],
        shard_fp32_from_float16_groups=masters,
        shard_fp32_groups=[[own]],
        optimizer=SimpleNamespace(param_groups=[{"params": [own, *masters[0]]}]),
        whole=whole,
    )


@pytest.mark.parametrize(
    ("holder", "field"),
    [
        ("config", "use_precision_aware_optimizer"),
        ("config", "optimizer_cpu_offload"),
        ("config", "reuse_grad_buf_for_mxfp8_param_ag"),
        ("config", "optimizer_cuda_graph"),
        ("config", "offload_optimizer_states"),
        ("ddp_config", "use_megatron_fsdp"),
        ("ddp_config", "fp4_param_gather"),
    ],
)
def test_a_configuration_that_cannot_be_had_is_refused_by_its_field(holder, field):
    with pytest.raises(PeriodicError, match=rf"{holder}\.{field}"):
        refuse(distributed(**{holder: {field: True}}))


class Quantised(torch.Tensor):
    """A shard of a tensor that is not what it shows."""


@pytest.mark.parametrize("shard", [None, torch.zeros(4).as_subclass(Quantised)])
def test_weights_that_are_quantised_without_saying_so_are_refused(shard):
    with pytest.raises(PeriodicError, match=r"ddp_config\.fp8_param_gather"):
        refuse(distributed(shards=[[shard]]))


@pytest.mark.parametrize("recipe", ["mxfp8", "custom"])
def test_weights_of_a_recipe_with_a_call_of_its_own_are_refused(recipe):
    optimizer = distributed({"fp8_recipe": recipe}, {"fp8_param_gather": True}, [[None]])
    with pytest.raises(PeriodicError, match=r"config\.fp8_recipe\n.*tensorwise"):
        refuse(optimizer)


@pytest.mark.parametrize("recipe", [None, "delayed", "tensorwise", "blockwise"])
def test_weights_of_the_recipes_that_share_a_call_are_not_refused(recipe):
    refuse(distributed({"fp8_recipe": recipe}, {"fp8_param_gather": True}, [[None]]))


def test_a_quantised_weight_has_no_shard_that_a_step_writes():
    quantised = torch.zeros(4).as_subclass(Quantised)
    optimizer = distributed(shards=[[quantised]])
    weights = masters_of_weights(optimizer)
    assert weights[optimizer.shard_fp32_from_float16_groups[0][0]] is None


def test_a_workspace_that_holds_no_quantised_weights_master_is_refused_with_what_would_do():
    class Small:
        def lent_workspace(self, least_bytes):
            raise ValueError(f"set it to at least {least_bytes}.")

    with pytest.raises(PeriodicError, match=r"at least 1024\..*\n.*\n.*workspace_bytes"):
        make_room(Small(), [torch.zeros(200)])


def test_nothing_is_refused_where_a_tree_has_none_of_the_fields():
    refuse(distributed())


def test_a_master_belongs_to_the_shard_of_its_weight():
    optimizer = distributed()
    weights = masters_of_weights(optimizer)
    (master,) = optimizer.shard_fp32_from_float16_groups[0]
    assert weights[master] is optimizer.shard_float16_groups[0][0]


def test_an_fp32_weight_gets_a_master_apart_over_the_same_memory():
    optimizer = distributed()
    weights = masters_of_weights(optimizer)
    (leaf,) = optimizer.shard_fp32_groups[0]
    assert leaf.is_leaf and leaf.shared and not leaf.requires_grad
    assert optimizer.optimizer.param_groups[0]["params"][0] is leaf
    leaf.data = torch.full((3,), torch.nan)
    weights[leaf].copy_(torch.tensor([7.0, 8.0, 9.0]))
    assert optimizer.whole.tolist() == [0.0, 1.0, 7.0, 8.0, 9.0, 5.0]
