"""Losses and gradients of one real Megatron-core over two ranks: its own, and ours.

See compat/cpu/megatron_alone.py, which runs it. For each case the facts are the largest
differences, and the largest tensor that each way ever made. A model of one layer is built by
Megatron's own GPTModel; native means the same object with the unbound method.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from lone_process import counts, join
from loss_model import (
    HIDDEN,
    NUM_POSITIONS,
    NUM_SEQUENCES,
    VOCABULARY,
    Largest,
    build,
    inputs,
    native,
    norms_of_torch,
    parallel,
)

from miles_periodic.compat.catalog import binding_names, bindings_named
from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.tree import Tree

SLUG = "fused-linear-cross-entropy"
FEATURE = "miles_periodic.plugins.fused_linear_cross_entropy.feature:FusedLinearCrossEntropy"
TEMPERATURE = 0.7


def before_import() -> None:
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    tree = Tree.at("megatron", Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]))
    settings = {"chunk_tokens": 24, "chunk_vocabulary": 300}
    features = (FeatureReference(SLUG, FEATURE, settings),)
    bindings = bindings_named(binding_names(SLUG, "megatron", tree))
    join(RunManifest("run", "", "", features, bindings))
    norms_of_torch()


def facts(rank: Rank) -> dict:
    cases = []
    for tensor_size, sequence, tied, dtype in product(
        (1, 2), (False, True), (False, True), (torch.float32, torch.bfloat16)
    ):
        if sequence and (tensor_size == 1 or tied):
            continue
        if tensor_size == 1 and tied != (dtype == torch.bfloat16):
            continue
        with parallel(tensor_model_parallel_size=tensor_size):
            model = build(tensor_size, sequence, tied, dtype)
            model.is_whole = tensor_size == 1
            case = {
                "tensor_parallel": tensor_size,
                "sequence_parallel": sequence,
                "tied": tied,
                "dtype": str(dtype),
            }
            cases += [
                case | both_ways(model, how) for how in (of_labels, of_masked_labels, of_log_probs)
            ]
    with parallel(tensor_model_parallel_size=1, pipeline_model_parallel_size=2):
        schedules = through_the_schedules()
    with parallel(tensor_model_parallel_size=1):
        refused = {name: refusal(**{name: value}) for name, value in REFUSED.items()}
        left_alone = value_head()
    return {
        "cases": cases,
        "schedules": schedules,
        "refused": refused,
        "left_alone": left_alone,
        "hooks": hooks_run(),
        "consulted": sorted(counts),
    }


def of_labels(model):
    """Megatron's own per-token loss of labels, weighted."""
    tokens, labels, weights, mask, positions = inputs()
    losses = model(tokens, positions, mask, labels=labels)
    return losses, (losses.float() * weights).sum()


def of_masked_labels(model):
    """The same where some labels lie outside of the vocabulary, and no mask spares them."""
    tokens, labels, weights, mask, positions = inputs()
    labels = labels.clone()
    labels[0, ::3], labels[1, ::4], labels[1, 1::4] = -100, -1, VOCABULARY + 5
    losses = model(tokens, positions, mask, labels=labels)
    return losses, (losses.float() * (weights + 0.1)).sum()


def of_log_probs(model):
    """Log-probabilities at a temperature from what the model returns without labels."""
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    from miles_periodic.compat.bindings.features import manager

    tokens, labels, weights, mask, positions = inputs()
    logits = model(tokens, positions, mask)
    if isinstance(logits, torch.Tensor):
        losses = vocab_parallel_cross_entropy(logits.float() / TEMPERATURE, labels)
    else:
        log_probs, _ = manager().hook.token_log_probs(
            head=logits.flat_head(),
            targets=labels.flatten(),
            temperature=TEMPERATURE,
            any_target=False,
            with_entropy=False,
        )
        losses = -log_probs.view(labels.shape)
    return losses, (losses * weights).sum()


def exact_losses(model):
    """What `of_log_probs` gives, from the same hidden states in FP64; the vocabulary is whole."""
    tokens, labels, _, mask, positions = inputs()
    head = model(tokens, positions, mask).flat_head()
    logits = head.hidden.double() @ head.weight.double().T / TEMPERATURE
    losses = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none")
    return losses.view(labels.shape).detach()


def run(model, how):
    model.zero_grad(set_to_none=True)
    with Largest() as largest:
        losses, total = how(model)
        total.backward()
    gradients = {name: p.grad.float().clone() for name, p in model.named_parameters()}
    return losses.detach().float(), gradients, largest


def both_ways(model, how):
    with native():
        losses, gradients, stock = run(model, how)
    our_losses, our_gradients, ours = run(model, how)
    exact = {}
    if how is of_log_probs and vars(model).get("is_whole"):
        reference = exact_losses(model)
        exact["stock_from_exact"] = float((losses - reference).abs().max())
        exact["ours_from_exact"] = float((our_losses - reference).abs().max())
    scale = {name: g.abs().max().clamp(min=1e-6) for name, g in gradients.items()}
    return {
        "what": how.__name__,
        "loss": float((losses - our_losses).abs().max()),
        "gradients": max(
            float((gradients[name] - our_gradients[name]).abs().max() / scale[name])
            for name in gradients
        ),
        "num_gradients": len(gradients),
        "smallest_loss": float(our_losses.min()),
        "stock_numel": stock.numel,
        "our_numel": ours.numel,
        "our_shape": ours.shape,
        **exact,
    }


def through_the_schedules():
    """Two pipeline stages under Megatron's 1F1B, training and forward only, both ways."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    model = build(pre_process=first, post_process=last)
    tokens, _, _, mask, positions = inputs()

    def loss(output, non_loss_data=False):
        value = output_loss(output)
        return {"loss": value.detach()} if non_loss_data else (value, {"loss": value.detach()})

    def step(iterator, model):
        return model(tokens, positions, mask), loss

    def schedule(forward_only):
        model.zero_grad(set_to_none=True)
        done = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(()),
            model=model,
            num_microbatches=3,
            seq_length=NUM_POSITIONS,
            micro_batch_size=NUM_SEQUENCES,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        losses = torch.tensor([float(each["loss"]) for each in done] or [0.0] * 3)
        dist.all_reduce(losses)
        grads = [p.grad.abs().sum() for p in model.parameters() if p.grad is not None]
        total = torch.stack([*grads, torch.zeros(())]).sum()
        dist.all_reduce(total)
        return losses.tolist(), float(total)

    def everything_once():
        return [schedule(False), schedule(True)]

    with native():
        stock = everything_once()
    return {"stock": stock, "ours": everything_once()}


def output_loss(output):
    """The loss of the same labels from logits, or from what is there in their place."""
    from miles_periodic.compat.bindings.output_logits import _losses

    _, labels, weights, _, _ = inputs()
    if isinstance(output, torch.Tensor):
        losses = torch.nn.functional.cross_entropy(
            output.flatten(0, 1), labels.flatten(), reduction="none"
        ).view(labels.shape)
    else:
        losses = _losses(output, labels)
    return (losses * weights).sum()


REFUSED = {
    "mtp_num_layers": 1,
    "overlap_moe_expert_parallel_comm": True,
    "config_logger_dir": "somewhere",
}


def refusal(**setting):
    """What a model says whose config was set so after it was built."""
    model = build()
    for name, value in setting.items():
        setattr(model.config, name, value)
    try:
        of_log_probs(model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def value_head():
    """The shape that a model with a value head of Miles's kind returns."""
    model = build()

    class ValueHead(torch.nn.Linear):
        def forward(self, input_, weight=None, runtime_gather_output=None):
            return super().forward(input_).float(), None

    model.output_layer = ValueHead(HIDDEN, 1)
    tokens, _, _, mask, positions = inputs()
    return list(model(tokens, positions, mask).shape)


def hooks_run():
    """Whether the output layer's pre-hooks run, as they must for gathered parameters."""
    seen = []
    with parallel(tensor_model_parallel_size=1):
        model = build()
        model.output_layer.register_forward_pre_hook(lambda module, inputs: seen.append(1))
        of_log_probs(model)
        of_labels(model)
    return len(seen)
