"""One process that computes a real Miles's losses: from logits, and bound without them.

    miles_loss_process.py TREE

Prints one JSON line: for each layout the largest differences of log-probabilities, entropies and
gradients, to Miles's own and to torch in FP64; and Miles's whole losses both ways.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ["TORCHDYNAMO_DISABLE"] = "1"
TREE = Path(sys.argv[1])
sys.path.insert(0, str(TREE))

import torch  # noqa: E402
from lone_process import counts, join  # noqa: E402

from miles_periodic.compat.catalog import binding_names, bindings_named  # noqa: E402
from miles_periodic.compat.cpu.pinned_memory import allocate_pageable  # noqa: E402
from miles_periodic.compat.deferred_logits import DeferredLogits  # noqa: E402
from miles_periodic.compat.manifest import FeatureReference, RunManifest  # noqa: E402
from miles_periodic.compat.tree import Tree  # noqa: E402
from miles_periodic.hooks.values import OutputHead  # noqa: E402

SLUG = "fused-linear-cross-entropy"
FEATURE = "miles_periodic.plugins.fused_linear_cross_entropy.feature:FusedLinearCrossEntropy"
HIDDEN, VOCABULARY = 16, 97
#: Prompt and response lengths; the fourth sample has no response.
SAMPLES = ((3, 4), (5, 11), (1, 2), (6, 0), (2, 9))
LONGEST = 16
LOSS_ARGUMENTS = {
    "advantage_estimator": "grpo",
    "calculate_per_token_loss": False,
    "true_on_policy_mode": False,
    "allgather_cp": False,
    "use_opsm": False,
    "use_tis": False,
    "get_mismatch_metrics": False,
    "use_rollout_logprobs": False,
    "use_kl_loss": True,
    "use_unbiased_kl": False,
    "kl_loss_type": "k3",
    "kl_loss_coef": 0.1,
    "eps_clip": 0.2,
    "eps_clip_high": 0.2,
    "log_probs_chunk_size": -1,
    "recompute_loss_function": False,
    "use_dynamic_global_batch_size": False,
    "global_batch_size": 8,
    "custom_pg_loss_reducer_function_path": None,
    "custom_tis_function_path": None,
    "skip_actor_forward_only": False,
    "observe_training_entropy": False,
}


def bind():
    """The module with the bound function, after those that take the function from it."""
    allocate_pageable(torch)
    sys.modules["sglang.srt.entrypoints.openai.encoding_dsv4"] = ModuleType("encoding_dsv4")
    names = binding_names(SLUG, "miles", Tree.at("miles", TREE))
    bindings = [b for b in bindings_named(names) if b.name.startswith("loss/")]
    settings = {"chunk_tokens": 5, "chunk_vocabulary": 10}
    features = (FeatureReference(SLUG, FEATURE, settings),)
    join(RunManifest("run", "", "", features, tuple(bindings)))
    importlib.import_module("miles.backends.training_utils.loss")
    return importlib.import_module(bindings[0].module)


def arguments(qkv_format="thd", temperature=0.7, **others):
    return SimpleNamespace(
        **{
            **LOSS_ARGUMENTS,
            "qkv_format": qkv_format,
            "rollout_temperature": temperature,
            "entropy_coef": 0.0,
            "loss_type": "policy_loss",
            **others,
        }
    )


def ranks(cp_rank, cp_size):
    """Miles's parallel state: one tensor-parallel rank of gloo, and numbers for the others."""
    from miles.backends.training_utils import parallel

    def group(rank=0, size=1, members=None):
        return SimpleNamespace(rank=rank, size=size, group=members)

    one = torch.distributed.group.WORLD
    parallel.set_parallel_state(
        SimpleNamespace(
            tp=group(members=one),
            cp=group(cp_rank, cp_size),
            intra_dp=group(members=one),
            intra_dp_cp=group(size=cp_size, members=one),
            is_ulysses_cp=False,
            is_pp_last_stage=True,
        )
    )


def batch(qkv_format, cp_size):
    """Samples, and how many positions this rank computes of them."""
    generator = torch.Generator().manual_seed(5)
    totals = [prompt + response for prompt, response in SAMPLES]
    longest = -(-LONGEST // (2 * cp_size)) * 2 * cp_size
    if qkv_format == "bshd":
        shape = (len(SAMPLES), longest // cp_size)
    else:
        padded = [-(-total // (2 * cp_size)) * 2 if cp_size > 1 else total for total in totals]
        shape = (1, sum(padded))
    return shape, {
        "unconcat_tokens": [
            torch.randint(VOCABULARY, (total,), generator=generator) for total in totals
        ],
        "total_lengths": totals,
        "response_lengths": [response for _, response in SAMPLES],
        "max_seq_lens": [longest] * len(SAMPLES) if qkv_format == "bshd" else None,
    }


def operands(shape):
    generator = torch.Generator().manual_seed(11)
    num_rows = shape[0] * shape[1]
    hidden = torch.randn(num_rows, HIDDEN, generator=generator).requires_grad_()
    weight = (torch.randn(VOCABULARY, HIDDEN, generator=generator) / 3).requires_grad_()
    return hidden, weight


def made(hidden, weight, shape):
    return (hidden @ weight.T).view(*shape, VOCABULARY)


def deferred(hidden, weight, shape):
    """As a model returns it: position by position, and then turned to sequences."""
    num_sequences, num_positions = shape
    by_position = hidden.view(*shape, HIDDEN).transpose(0, 1).flatten(0, 1)
    head = OutputHead(by_position, weight)
    return DeferredLogits(head, num_positions, num_sequences).transpose(0, 1)


def difference(left, right):
    return max((float((a - b).abs().max()) for a, b in zip(left, right, strict=True) if a.numel()))


def gradients(result, operands):
    """Of a sum in which each value has a weight of its own."""
    values = torch.cat([v for key in sorted(result) for v in result[key]])
    scale = torch.linspace(-1, 2, len(values))
    return torch.autograd.grad((values * scale).sum(), operands)


def one_layout(module, qkv_format, cp, temperature):
    cp_rank, cp_size = cp
    ranks(cp_rank, cp_size)
    shape, asked = batch(qkv_format, cp_size)
    hidden, weight = operands(shape)
    asked |= {"args": arguments(qkv_format, temperature), "with_entropy": True}
    compute = module.get_log_probs_and_entropy
    native = compute.__wrapped__
    stock = native(made(hidden, weight, shape), **asked)
    ours = compute(deferred(hidden, weight, shape), **asked)
    of_stock = gradients(stock, (hidden, weight))
    of_ours = gradients(ours, (hidden, weight))
    exact = of_exact(native, hidden, weight, shape, asked)
    return {
        "layout": [qkv_format, *cp, temperature],
        "num_log_probs": sum(len(v) for v in ours["log_probs"]),
        "same_lengths": [len(v) for v in stock["log_probs"]] == [len(v) for v in ours["log_probs"]],
        "keys": sorted(ours),
        "log_probs": difference(stock["log_probs"], ours["log_probs"]),
        "entropy": difference(stock["entropy"], ours["entropy"]),
        "gradients": difference(of_stock, of_ours) / largest(of_stock),
        "stock_gradients_from_exact": difference(exact, of_stock) / largest(exact),
        "our_gradients_from_exact": difference(exact, of_ours) / largest(exact),
    }


def largest(tensors):
    return max(float(t.abs().max()) for t in tensors)


def of_exact(native, hidden, weight, shape, asked):
    """Gradients by torch in FP64, over the rows and tokens that Miles itself slices out."""
    module = sys.modules[native.__module__]
    logits = made(hidden.double(), weight.double(), shape) / asked["args"].rollout_temperature
    rows = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(*shape, 1)
    at_one = SimpleNamespace(**{**vars(asked["args"]), "rollout_temperature": 1.0})
    names = ("unconcat_tokens", "total_lengths", "response_lengths", "max_seq_lens")
    slices = module.get_responses(rows, args=at_one, **{name: asked[name] for name in names})
    log_probs, entropies = [], []
    for chunk, tokens in slices:
        of_rows = torch.log_softmax(logits.flatten(0, 1)[chunk[:, 0].long()], -1)
        log_probs.append(of_rows.gather(1, tokens[: len(chunk), None])[:, 0])
        entropies.append(-(of_rows.exp() * of_rows).sum(1))
    return gradients({"entropy": entropies, "log_probs": log_probs}, (hidden, weight))


def whole_loss(make, loss_type, entropy_coef, samples=None):
    """Miles's `loss_function` from its dispatch to its log, and gradients."""
    loss = importlib.import_module("miles.backends.training_utils.loss")
    ranks(0, 1)
    shape, asked = batch("thd", 1)
    generator = torch.Generator().manual_seed(13)
    lengths = asked["response_lengths"]

    def per_token(scale):
        return [scale * torch.rand(length, generator=generator) for length in lengths]

    asked |= {
        "loss_masks": [(torch.arange(length) % 3 != 0).float() for length in lengths],
        "advantages": per_token(2.0),
        "log_probs": [-4 - v for v in per_token(1.0)],
        "ref_log_probs": [-4 - v for v in per_token(1.0)],
        "rollout_log_probs": [-4 - v for v in per_token(1.0)],
    }
    if samples is not None:
        asked = {k: v[samples] if isinstance(v, list) else v for k, v in asked.items()}
        shape = (1, sum(asked["total_lengths"]))
    operands_ = operands(shape)
    args = arguments(loss_type=loss_type, entropy_coef=entropy_coef)
    value, _, log = loss.loss_function(
        args, asked, 1, make(*operands_, shape), apply_megatron_loss_scaling=True
    )
    grads = torch.autograd.grad(value, operands_)
    return value.detach(), dict(zip(log["keys"], log["values"][1:].tolist(), strict=True)), grads


def both_losses(module, loss_type, entropy_coef, samples=None):
    bound = module.get_log_probs_and_entropy
    users = [m for m in list(sys.modules.values()) if vars(m).get(bound.__name__) is bound]
    for each in users:
        each.get_log_probs_and_entropy = bound.__wrapped__
    stock = whole_loss(made, loss_type, entropy_coef, samples)
    for each in users:
        each.get_log_probs_and_entropy = bound
    ours = whole_loss(deferred, loss_type, entropy_coef, samples)
    return {
        "loss": [loss_type, entropy_coef, samples is not None],
        "value": [float(stock[0]), float(ours[0])],
        "log": [stock[1], ours[1]],
        "gradients": difference(stock[2], ours[2]) / max(largest(stock[2]), 1e-9),
    }


def says(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main():
    module = bind()
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1
        )
        layouts = [
            one_layout(module, *layout)
            for layout in product(("thd", "bshd"), ((0, 1), (0, 2), (1, 2)), (1.0, 0.7))
        ]
        losses = [
            both_losses(module, *each)
            for each in (
                ("policy_loss", 0.0),
                ("policy_loss", 0.01),
                ("sft_loss", 0.0),
                ("policy_loss", 0.0, slice(3, 4)),
            )
        ]
        ranks(0, 1)
        shape, asked = batch("thd", 1)
        logits = made(*operands(shape), shape)
        compute = module.get_log_probs_and_entropy
        made_anyway = says(lambda: compute(logits, args=arguments(), **asked))
        torch.distributed.destroy_process_group()
    found = {"layouts": layouts, "losses": losses, "made_anyway": made_anyway}
    print(json.dumps({**found, "consulted": sorted(counts)}))


if __name__ == "__main__":
    main()
