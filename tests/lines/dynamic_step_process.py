"""One rank of a trainer that takes explicit micro-batches, from a Miles and a Megatron as they are.

    dynamic_step_process.py RANK RANKS STORE

Miles 0.0.2 splits a batch under a token cap, bound as in a run; hands this rank its shard; makes
its iterator and its packed rows. Megatron's schedule runs them under gloo. The model is a small
torch module with causal attention inside each packed sample, in whose every forward the ranks
meet, as they do where experts are spread over them. Prints what was trained, and the gradient, as
one line of JSON.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from types import SimpleNamespace

RANK, NUM_RANKS, STORE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

import ray  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lone_process import Member, join  # noqa: E402
from miles_trees import WHEEL  # noqa: E402
from schedule_rules import arguments  # noqa: E402

from miles_periodic.compat.catalog import binding_names, bindings_named  # noqa: E402
from miles_periodic.compat.cpu.cuda_mode import CudaOnCpu  # noqa: E402
from miles_periodic.compat.manifest import FeatureReference, RunManifest  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402

SLUG = "cost-aware-packing"
FEATURE = "miles_periodic.plugins.cost_aware_packing.feature:CostAwarePacking"
MAX_TOKENS, NUM_SAMPLES, GLOBAL_BATCH_SIZE, VOCABULARY, WIDTH = 48, 32, 16, 50, 8
HANG_SECONDS = 180
KEYS = ("tokens", "total_lengths", "response_lengths", "loss_masks")


def put_in() -> None:
    Member.count = lambda self, name: None
    names = binding_names(SLUG, "miles", Tree.at("miles", WHEEL))
    wanted = [b for b in bindings_named(names) if b.name.startswith("training/")]
    # A plan that follows from the batch alone: each rank makes it for itself here.
    reference = FeatureReference(SLUG, FEATURE, {"time_budget_seconds": 0.0})
    join(RunManifest("run", "", "", (reference,), tuple(wanted)))


def stand_ins() -> None:
    """No device and no object store."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    CudaOnCpu().__enter__()
    ray.put = ray.get = lambda value, **kwargs: value


def batch() -> dict:
    """Long-tailed samples; the first token of each is its number."""
    lengths = [2 + (number * number * 7) % 45 for number in range(NUM_SAMPLES)]
    return {
        "tokens": [
            [number, *(3 * number + i for i in range(1, length))]
            for number, length in enumerate(lengths)
        ],
        "response_lengths": [1] * NUM_SAMPLES,
        "rewards": [0.0] * NUM_SAMPLES,
        "truncated": [0] * NUM_SAMPLES,
        "loss_masks": [[1]] * NUM_SAMPLES,
        "sample_indices": list(range(NUM_SAMPLES)),
    }


class Tiny(torch.nn.Module):
    """Attention inside each sample of a packed row, and a loss that is a sum over tokens."""

    def __init__(self, config, model_type) -> None:
        super().__init__()
        self.config, self.model_type = config, model_type
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.output = torch.nn.Linear(WIDTH, VOCABULARY)

    def set_input_tensor(self, tensor) -> None:
        pass

    def forward(self, row: torch.Tensor, ends: list[int]) -> torch.Tensor:
        loss = torch.zeros(())
        for start, stop in zip([0, *ends], ends, strict=False):
            inside = self.embedding(row[start:stop] % VOCABULARY)
            seen = torch.ones(stop - start, stop - start).tril().log()
            mixed = torch.softmax(inside @ inside.T + seen, dim=-1) @ inside
            loss = loss + self.output(mixed).logsumexp(-1).sum()
        return loss


def train(model: Tiny, data, refs, args, forward_backward) -> dict:
    shard = data.get_rollout_data(args, refs)
    (iterator,), num_microbatches = data.get_data_iterator(args, [model], shard)
    trained: list[list[list[int]]] = []

    def forward_step(iterator, model):
        batch = data.get_batch(iterator, KEYS, pad_multiplier=1)
        ends = torch.tensor(batch["total_lengths"]).cumsum(0).tolist()
        row = batch["tokens"][0]
        trained[-1].append([int(row[start]) for start in [0, *ends[:-1]]])
        # Where experts are spread over the ranks, tokens are exchanged in every forward.
        dist.all_reduce(torch.zeros(1))
        return model(row, ends)

    for count in num_microbatches:
        trained.append([])
        forward_backward(
            forward_step_func=scaled(forward_step, count),
            data_iterator=iterator,
            model=[model],
            num_microbatches=count,
            seq_length=MAX_TOKENS,
            micro_batch_size=1,
            forward_only=False,
        )
    return {"num_microbatches": num_microbatches, "trained": trained}


def scaled(forward_step, count: int):
    """Undo the schedule's division by the number of micro-batches: losses are sums here."""

    def step(iterator, model):
        return forward_step(iterator, model), lambda loss: (loss * count, {})

    return step


def main() -> None:
    stand_ins()
    put_in()
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig
    from miles.backends.training_utils import data
    from miles.backends.training_utils.parallel import GroupInfo, ParallelState, set_parallel_state
    from miles.ray.rollout import RolloutManager

    dist.init_process_group(
        "gloo",
        init_method=f"file://{STORE}",
        rank=RANK,
        world_size=NUM_RANKS,
        timeout=timedelta(seconds=HANG_SECONDS),
    )
    parallel_state.initialize_model_parallel(create_gloo_process_groups=True)
    alone, ranks = GroupInfo(0, 1, None), GroupInfo(RANK, NUM_RANKS, dist.group.WORLD)
    set_parallel_state(
        ParallelState(
            intra_dp=ranks, intra_dp_cp=ranks, cp=alone, tp=alone, pp=alone, ep=ranks, etp=alone
        )
    )
    args = arguments(
        max_tokens_per_gpu=MAX_TOKENS,
        global_batch_size=GLOBAL_BATCH_SIZE,
        use_dynamic_global_batch_size=False,
        context_parallel_size=1,
        pipeline_model_parallel_size=1,
        allgather_cp=False,
        qkv_format="thd",
    )
    manager = RolloutManager.__ray_metadata__.modified_class
    refs = manager._split_train_data_by_dp(SimpleNamespace(args=args), batch(), NUM_RANKS)
    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=1)
    model = Tiny(config, ModelType.encoder_or_decoder)
    result = train(model, data, refs, args, get_forward_backward_func())
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(gradient)
    alone_model = Tiny(config, ModelType.encoder_or_decoder)
    for tokens in batch()["tokens"]:
        alone_model(torch.tensor(tokens), [len(tokens)]).backward()
    expected = torch.cat([p.grad.flatten() for p in alone_model.parameters()])
    result["gradient_error"] = float((gradient - expected).norm() / expected.norm())
    result["lengths"] = [len(tokens) for tokens in batch()["tokens"]]
    print(json.dumps(result))


main()
