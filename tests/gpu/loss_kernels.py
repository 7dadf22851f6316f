"""Which kernel computes log-probabilities fastest and in the least memory, on one GPU or two.

    python tests/gpu/loss_kernels.py
    python tests/gpu/loss_kernels.py --tokens 8192 32768 --vocabulary 151936 --width 4096 --gpus 2

For each number of tokens: each kernel that is installed, with and without entropy, and torch's in
several sizes of blocks, forward and backward in BF16. Prints one JSON line per row; `outcome` says
what did not run. `error` is the largest difference to FP64 on 64 tokens, `gradient_error` that of a
gradient to torch's in blocks, over its largest element.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist

from miles_periodic.plugins.fused_linear_cross_entropy import token_log_probs

PACKAGES = {"torch": "torch", "liger": "liger_kernel"}
BLOCKS = ((1024, 16384), (4096, 4096), (4096, 16384), (4096, 65536), (16384, 16384))
DEFAULT_BLOCK = (4096, 16384)
TEMPERATURE = 0.8
CHECKED_TOKENS = 64


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


class Rank:
    """One rank's operands, the same hidden states on all, its own rows of the weight."""

    def __init__(self, args, rank, group):
        self.args, self.group = args, group
        self.device = f"cuda:{rank}" if args.device == "cuda" else args.device
        self.rows = args.vocabulary // args.gpus
        self.start = rank * self.rows
        generator = torch.Generator(self.device).manual_seed(1 + rank)
        options = {"generator": generator, "device": self.device}
        weight = torch.randn(self.rows, args.width, **options) * args.width**-0.5
        self.weight = weight.bfloat16().requires_grad_()

    def operands(self, num_tokens):
        generator = torch.Generator(self.device).manual_seed(0)
        options = {"generator": generator, "device": self.device}
        hidden = torch.randn(num_tokens, self.args.width, **options).bfloat16().requires_grad_()
        vocabulary = self.rows * self.args.gpus
        return hidden, torch.randint(vocabulary, (num_tokens,), **options)

    def once(self, hidden, targets, kernel, block, with_entropy):
        """Log-probabilities, and the gradients of hidden and of this rank's weight."""
        answer = token_log_probs(
            hidden,
            self.weight,
            targets,
            temperature=TEMPERATURE,
            vocab_start=self.start,
            tp_group=self.group,
            chunk_tokens=block[0],
            chunk_vocabulary=block[1],
            with_entropy=with_entropy,
            kernel=kernel,
        )
        values = answer if with_entropy else (answer,)
        upstream = torch.linspace(-1, 1, len(targets), device=self.device)
        total = sum((value * upstream).sum() for value in values)
        return values[0].detach(), torch.autograd.grad(total, (hidden, self.weight))

    def exact(self, hidden, targets, at):
        """Log-probabilities of the tokens `at` in FP64, where the vocabulary is whole."""
        with torch.no_grad():
            logits = hidden[at].double() @ self.weight.double().T / TEMPERATURE
            return torch.log_softmax(logits, -1).gather(1, targets[at][:, None])[:, 0]

    def settle(self):
        if self.args.device == "cuda":
            torch.cuda.synchronize()
        if self.group is not None:
            dist.barrier()


def measured(rank, num_tokens, kernel, block, with_entropy, reference):
    hidden, targets = rank.operands(num_tokens)
    call = (hidden, targets, kernel, block, with_entropy)
    log_probs, gradients = rank.once(*call)
    row = {"largest": float(log_probs.max())}
    if rank.group is None:
        at = torch.linspace(0, num_tokens - 1, min(CHECKED_TOKENS, num_tokens)).round().long()
        at = at.to(rank.device)
        exact = rank.exact(hidden, targets, at)
        row["error"] = float((log_probs[at].double() - exact).abs().max())
    if reference is not None:
        row["gradient_error"] = max(
            float((found.float() - right.float()).abs().max() / right.float().abs().max())
            for found, right in zip(gradients, reference, strict=True)
        )
    kept = gradients if reference is None else None
    del log_probs, gradients
    rank.settle()
    before = 0
    if rank.args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds = []
    for _ in range(rank.args.repeats):
        began = time.perf_counter()
        rank.once(*call)
        rank.settle()
        seconds.append(time.perf_counter() - began)
    if rank.args.device == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return row | {"seconds": statistics.median(seconds), "fastest": min(seconds)}, kept


def plans():
    """Torch's in the default blocks without entropy first: the others are compared with it."""
    yield "torch", DEFAULT_BLOCK, False
    for kernel in PACKAGES:
        for with_entropy in (False, True):
            for block in BLOCKS if kernel == "torch" and not with_entropy else (DEFAULT_BLOCK,):
                if (kernel, block, with_entropy) != ("torch", DEFAULT_BLOCK, False):
                    yield kernel, block, with_entropy


def of_rank(number, args, port):
    group = None
    if args.device == "cuda":
        torch.cuda.set_device(number)
    if args.gpus > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        backend = "nccl" if args.device == "cuda" else "gloo"
        dist.init_process_group(backend, rank=number, world_size=args.gpus)
        group = dist.group.WORLD
    rank = Rank(args, number, group)
    for num_tokens in args.tokens:
        reference = None
        for kernel, block, with_entropy in plans():
            row = {"tokens": num_tokens, "gpus": args.gpus, "kernel": kernel, "block": block}
            row |= {"entropy": with_entropy, "logits_bytes": num_tokens * rank.rows * 4}
            if importlib.util.find_spec(PACKAGES[kernel]) is None:
                row["outcome"] = "not installed"
            else:
                against = None if with_entropy else reference
                try:
                    found, kept = measured(rank, num_tokens, kernel, block, with_entropy, against)
                    reference = reference or (None if with_entropy else kept)
                    row |= found | {"outcome": "ran"}
                except Exception as error:  # a row that does not run must not end the others
                    row["outcome"] = f"{type(error).__name__}: {error}"[:400]
            if number == 0:
                print(json.dumps(row), flush=True)
    if group is not None:
        dist.destroy_process_group()


def main():
    args = arguments()
    if args.gpus == 1:
        of_rank(0, args, 0)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(of_rank, (args, port), nprocs=args.gpus)


if __name__ == "__main__":
    main()
