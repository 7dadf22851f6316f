"""A vocabulary that is split over ranks, and what is held at once."""

import json

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from miles_periodic.plugins.fused_linear_cross_entropy import token_log_probs

NUM_RANKS = 2
#: Rows of the vocabulary on each rank; not the same on purpose.
PARTS = (13, 24)
NUM_TOKENS, WIDTH = 11, 6


def operands():
    generator = torch.Generator().manual_seed(2)
    options = {"generator": generator, "dtype": torch.float64}
    hidden = torch.randn(NUM_TOKENS, WIDTH, **options)
    weight = torch.randn(sum(PARTS), WIDTH, **options)
    targets = torch.randint(sum(PARTS), (NUM_TOKENS,), generator=generator)
    targets[4] = -100
    upstream = torch.randn(2, NUM_TOKENS, **options)
    return hidden, weight, targets, upstream


def computed(hidden, weight, targets, upstream, **how):
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    found = token_log_probs(
        hidden,
        weight,
        targets,
        temperature=0.7,
        ignore_index=-100,
        chunk_tokens=4,
        chunk_vocabulary=5,
        with_entropy=True,
        **how,
    )
    total = (torch.stack(found) * upstream).sum()
    return [*found, *torch.autograd.grad(total, (hidden, weight))]


def on_a_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=NUM_RANKS
    )
    hidden, weight, targets, upstream = operands()
    start = sum(PARTS[:rank])
    part = weight[start : start + PARTS[rank]].clone()
    how = {"vocab_start": start, "tp_group": dist.group.WORLD}
    found = computed(hidden, part, targets, upstream, **how)
    torch.save(found, folder / f"rank_{rank}.pt")
    said = []
    for wrong, first in ((sum(PARTS), start), (3, 0)):
        targets[0] = wrong
        try:
            computed(hidden, part, targets, upstream, **how | {"vocab_start": first})
        except ValueError as error:
            said.append(str(error))
    (folder / f"rank_{rank}.json").write_text(json.dumps(said), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.start_processes(
        on_a_rank, (folder,), nprocs=NUM_RANKS, start_method="fork"
    )
    return folder


@pytest.fixture(scope="module")
def split(ranks):
    return [torch.load(ranks / f"rank_{rank}.pt") for rank in range(NUM_RANKS)]


@pytest.fixture(scope="module")
def whole():
    return computed(*operands())


def test_every_rank_has_the_values_of_the_whole_vocabulary(split, whole):
    for of_rank in split:
        torch.testing.assert_close(of_rank[:2], whole[:2], rtol=1e-12, atol=1e-12)


def test_every_rank_has_the_whole_gradient_of_hidden_states(split, whole):
    for of_rank in split:
        torch.testing.assert_close(of_rank[2], whole[2], rtol=1e-11, atol=1e-11)


def test_a_rank_has_the_gradient_of_its_own_rows_of_the_weight(split, whole):
    joined = torch.cat([of_rank[3] for of_rank in split])
    torch.testing.assert_close(joined, whole[3], rtol=1e-11, atol=1e-11)


def test_a_target_that_no_rank_holds_or_two_do_is_refused_on_every_rank(ranks):
    for rank in range(NUM_RANKS):
        nobody, both = json.loads((ranks / f"rank_{rank}.json").read_text())
        assert f"target {sum(PARTS)} of token 0 is in the vocabulary of 0 ranks" in nobody
        assert "of 2 ranks" in both


class Sizes(TorchDispatchMode):
    """The elements of every result that is made."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self.largest = max(self.largest, each.numel())
        return result


def test_no_result_is_larger_than_an_operand_or_a_block_forward_or_backward():
    hidden = torch.randn(300, 4, requires_grad=True)
    weight = torch.randn(500, 4, requires_grad=True)
    targets = torch.randint(500, (300,))
    with Sizes() as sizes:
        found, entropy = token_log_probs(
            hidden, weight, targets, chunk_tokens=40, chunk_vocabulary=30, with_entropy=True
        )
        (found.sum() + entropy.sum()).backward()
    assert sizes.largest == 500 * 4 < 300 * 500
