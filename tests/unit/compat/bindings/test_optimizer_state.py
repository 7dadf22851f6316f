"""Whose masters a distributed optimizer's own code sees, and what a writer is handed."""

from types import SimpleNamespace

import pytest
import torch

from miles_periodic.compat.bindings import optimizer_state
from miles_periodic.compat.bindings.copied_state import copy_for_writer
from miles_periodic.compat.bindings.optimizer_state import (
    load_state_of_weight,
    read_weights,
    state_of_weight,
    write_weights,
)
from miles_periodic.plugins.chunked_optimizer_offload.settings import (
    ChunkedOptimizerOffloadSettings,
)
from miles_periodic.plugins.chunked_optimizer_offload.take_over import in_place_of


class Distributed(SimpleNamespace):
    """The four methods of Megatron's that are wrapped, over two 16-bit weights and one FP32."""

    is_stub_optimizer = False

    def shown(self):
        return [list(group) for group in self.shard_fp32_from_float16_groups]

    def write(self):
        for masters, models in (
            (self.shard_fp32_from_float16_groups, self.model_float16_groups),
            (self.shard_fp32_groups, self.model_fp32_groups),
        ):
            for group, weights in zip(masters, models, strict=True):
                for master, weight in zip(group, weights, strict=True):
                    weight.copy_(master)
                    self.copies.append(weight)

    def read(self):
        (masters,), (weights,) = self.shard_fp32_from_float16_groups, self.model_float16_groups
        for master, weight in zip(masters, weights, strict=True):
            master.data.copy_(weight)

    def get(self, model_param):
        group, order = self.model_param_group_index_map[model_param]
        master = self.optimizer.param_groups[group]["params"][order]
        return {"param": master, **self.optimizer.state[master]}

    def set(self, model_param, tensors):
        group, order = self.model_param_group_index_map[model_param]
        self.optimizer.param_groups[group]["params"][order].copy_(tensors["param"])


@pytest.fixture
def distributed(monkeypatch):
    weights = [torch.randn(n).bfloat16() for n in (4, 6)]
    whole = torch.randn(5)
    masters = [weight.float() for weight in weights]
    own = whole.view(-1).detach()
    made = Distributed(
        config=SimpleNamespace(),
        ddp_config=SimpleNamespace(),
        model_float16_groups=[weights],
        shard_float16_groups=[weights],
        shard_fp32_from_float16_groups=[masters],
        model_fp32_groups=[[whole]],
        shard_fp32_groups=[[own]],
        optimizer=torch.optim.AdamW([own, *masters], lr=0.1),
        model_param_group_index_map={
            whole: (0, 0),
            **{weight: (0, n + 1) for n, weight in enumerate(weights)},
        },
        copies=[],
    )
    settings = ChunkedOptimizerOffloadSettings()
    hook = SimpleNamespace(offloaded_optimizer=lambda optimizer: in_place_of(optimizer, settings))
    monkeypatch.setattr(optimizer_state, "manager", lambda: SimpleNamespace(hook=hook))
    optimizer_state.attach(lambda *args, **kwargs: None, made, (), {})
    return made


def params(made):
    return made.optimizer.param_groups[0]["params"]


def step(made):
    for param in params(made):
        param.grad = torch.ones_like(param)
    made.optimizer.step()


def test_a_step_writes_every_weight_and_megatron_none_again(distributed):
    before = [weight.clone() for weight in distributed.model_param_group_index_map]
    step(distributed)
    write_weights(distributed.write, distributed, (), {})
    assert distributed.copies == []
    for old, (weight, (_, order)) in zip(
        before, distributed.model_param_group_index_map.items(), strict=True
    ):
        master = distributed.optimizer.master(params(distributed)[order])
        assert torch.equal(weight, master.to(weight.dtype)) and not torch.equal(weight, old)


def test_megatron_writes_all_weights_where_no_step_has(distributed):
    step(distributed)
    write_weights(distributed.write, distributed, (), {})
    write_weights(distributed.write, distributed, (), {})
    assert len(distributed.copies) == 3


def test_a_weight_that_a_step_left_out_is_written_by_megatron(distributed):
    own, first, second = params(distributed)
    first.grad = torch.ones_like(first)
    distributed.optimizer.step()
    write_weights(distributed.write, distributed, (), {})
    assert [weight.numel() for weight in distributed.copies] == [second.numel(), own.numel()]


def test_pairs_of_masters_and_weights_are_back_after_megatron_raised(distributed):
    before = distributed.shown()
    with pytest.raises(ValueError, match="on purpose"):
        read_weights(raising, distributed, (), {})
    after = distributed.shown()
    assert all(one is other for one, other in zip(before[0], after[0], strict=True))


def raising(*args, **kwargs):
    raise ValueError("on purpose")


def test_loaded_weights_become_masters_in_host_memory(distributed):
    (weights,) = distributed.model_float16_groups
    for weight in weights:
        weight.fill_(3)
    read_weights(distributed.read, distributed, (), {})
    for param in params(distributed)[1:]:
        assert distributed.optimizer.master(param).eq(3).all() and param.isnan().all()


def test_a_checkpoint_sees_the_master_in_host_memory(distributed):
    weight = distributed.model_float16_groups[0][1]
    tensors = state_of_weight(distributed.get, distributed, (weight,), {})
    assert torch.equal(tensors["param"], weight.float())
    assert set(tensors) == {"param", "step", "exp_avg", "exp_avg_sq"}


def test_a_loaded_fp32_weight_is_its_own_master_still(distributed):
    ((whole,),) = distributed.model_fp32_groups
    load_state_of_weight(distributed.set, distributed, (whole, {"param": torch.ones(5)}), {})
    assert whole.eq(1).all() and distributed.optimizer.master(params(distributed)[0]).eq(1).all()


def test_what_a_broken_step_had_written_is_written_again_after_a_load(distributed):
    optimizer_state.placed_in(distributed).written.update(params(distributed))
    ((whole,),) = distributed.model_fp32_groups
    load_state_of_weight(distributed.set, distributed, (whole, {"param": torch.ones(5)}), {})
    write_weights(distributed.write, distributed, (), {})
    assert len(distributed.copies) == 3


def test_a_writer_gets_copies_of_offloaded_state_and_the_rest_as_it_is(distributed):
    step(distributed)
    param, other = params(distributed)[1], torch.ones(3)
    ours = [distributed.optimizer.master(param), distributed.optimizer.state[param]["exp_avg"]]
    buckets = [("file", "key", ([], [("item", tensor) for tensor in (*ours, other)]))]
    ((name, key, (_, handed)),) = copy_for_writer(lambda *args: buckets, None, (buckets,), {})
    held = [tensor.clone() for tensor in ours]
    step(distributed)
    distributed.optimizer.synchronize()
    assert (name, key) == ("file", "key")
    for (_, tensor), before, now in zip(handed, held, ours, strict=False):
        assert torch.equal(tensor, before) and not torch.equal(tensor, now)
    assert handed[2][1] is other


def test_an_optimizer_that_no_feature_takes_is_left_in_place(monkeypatch, distributed):
    hook = SimpleNamespace(offloaded_optimizer=lambda optimizer: None)
    monkeypatch.setattr(optimizer_state, "manager", lambda: SimpleNamespace(hook=hook))
    weight = torch.ones(2).bfloat16()
    native = torch.optim.AdamW([weight.float()])
    stock = Distributed(
        config=SimpleNamespace(),
        ddp_config=SimpleNamespace(),
        shard_float16_groups=[[weight]],
        shard_fp32_from_float16_groups=[native.param_groups[0]["params"]],
        shard_fp32_groups=[[]],
        optimizer=native,
    )
    optimizer_state.attach(lambda *args, **kwargs: None, stock, (), {})
    assert stock.optimizer is native and optimizer_state.placed_in(stock) is None
