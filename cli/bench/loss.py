"""`miles bench loss`: peak memory and time of log-probabilities, with logits and without.

Every way takes the same hidden states, weight and targets in one run, forward and backward.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from miles_periodic.cli.bench.table import print_whole
from miles_periodic.compat.bench import cross_entropy
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins.fused_linear_cross_entropy.settings import (
    CHUNK_TOKENS,
    CHUNK_VOCABULARY,
)

#: What log-probabilities may be off, in roundings of the operands' dtype of the largest logit.
NUM_ROUNDINGS = 8
#: Log-probabilities are compared with FP64 on so many tokens.
CHECKED_TOKENS = 64
MET = "met"
#: Columns of a row; None where a way did not get so far.
_MEASURED = ("peak_bytes", "of_logits", "seconds", "largest_error", "rounding", "largest")


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens x vocabulary x width, and the largest block of logits that our own way makes."""

    num_tokens: int
    vocabulary: int
    width: int
    chunk_tokens: int = CHUNK_TOKENS
    chunk_vocabulary: int = CHUNK_VOCABULARY

    @property
    def logits_bytes(self) -> int:
        """Of one tensor of logits in FP32."""
        return self.num_tokens * self.vocabulary * 4


#: What is measured where a shape is not given: a CPU's, and a GPU's.
SMALL = Shape(2048, 16384, 128, chunk_tokens=256, chunk_vocabulary=2048)
LARGE = Shape(32768, 151936, 4096)
#: Hidden states, weight, targets and the shape to log-probabilities.
Way = Callable[[Any, Any, Any, Shape], Any]


def loss_command(
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a micro-batch.")] = None,
    vocabulary: Annotated[int | None, typer.Option(min=2, help="Entries of it.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Of a hidden state.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each way.")] = 3,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure memory and time of log-probabilities and their gradients, with logits and without.

    On a GPU 32,768 tokens x 151,936 entries in BF16, on a CPU less, in FP32. Exits 1 where a way of
    ours holds as much as the logits, is above 0 or off by more than rounding.
    """
    base = LARGE if _device() == "cuda" else SMALL
    shape = Shape(
        tokens or base.num_tokens,
        vocabulary or base.vocabulary,
        width or base.width,
        base.chunk_tokens,
        base.chunk_vocabulary,
    )
    result = measure(shape, repeats=repeats)
    if json_output:
        typer.echo(json.dumps(result, indent=2))
    else:
        print_whole(table(result))
    raise typer.Exit(0 if result["verdict"] == MET else 1)


def measure(shape: Shape, ways: Sequence[str] | None = None, repeats: int = 3) -> dict[str, Any]:
    """A row per way: `peak_bytes` beyond the operands, `of_logits` (that over FP32 logits),
    `seconds` (median of `repeats`), `largest_error` and `largest` log-probability, or why it
    does not run. The facts beside them: `device`, `logits_bytes`, `verdict`.
    """
    device = _device()
    offered = _ways(device)
    for way in ways or ():
        if way not in offered:
            raise PeriodicError(f"No way is named {way!r}.", remedy=did_you_mean(way, offered))
    with cross_entropy.one_rank(device):
        rows = [_row(way, offered[way], shape, device, repeats) for way in ways or offered]
    return {
        "rows": rows,
        "device": device,
        "shape": f"{shape.num_tokens} x {shape.vocabulary} x {shape.width}",
        "logits_bytes": shape.logits_bytes,
        "verdict": verdict(rows, device),
    }


def table(result: dict[str, Any]) -> Table:
    """The result of `measure` to print."""
    shown = Table(title="log-probabilities, forward and backward", box=box.SIMPLE_HEAD)
    for column in ("way", "peak, MiB", "of logits", "s", "error", "rounding"):
        shown.add_column(column, justify="left" if column == "way" else "right")
    for row in result["rows"]:
        if row["outcome"] == "ran":
            shown.add_row(
                row["way"],
                f"{row['peak_bytes'] / 2**20:,.0f}",
                f"{row['of_logits']:.2f}",
                f"{row['seconds']:.3f}",
                f"{row['largest_error']:.1e}",
                f"{row['rounding']:.1e}",
            )
        else:
            shown.add_row(row["way"], row["outcome"])
    logits = f"{result['logits_bytes'] / 2**20:,.0f} MiB"
    shown.caption = f"{result['shape']} on {result['device']}, logits in FP32: {logits}\n"
    shown.caption += f"goals: {result['verdict']}"
    return shown


def verdict(rows: Sequence[dict[str, Any]], device: str) -> str:
    """`met`, or what a way of ours misses."""
    for row in rows:
        if not row["way"].startswith("ours"):
            continue
        if row["outcome"] != "ran":
            return f"{row['way']}: {row['outcome']}"
        if row["of_logits"] >= 1:
            return f"{row['way']} holds {row['of_logits']:.2f} times the logits"
        if row["largest"] > 0:
            return f"{row['way']} gives a log-probability of {row['largest']:.3g}"
        if row["largest_error"] > row["rounding"]:
            return f"{row['way']} is off by {row['largest_error']:.3g}"
    return MET


def _ways(device: str) -> dict[str, Way]:
    """Name to a function of hidden, weight, targets and the shape that gives log-probabilities."""
    ways: dict[str, Way] = {"logits by torch": _by_torch}
    if cross_entropy.is_there():
        ways["logits by Megatron"] = _by_megatron
    ways["ours, torch"] = _ours("torch")
    if device == "cuda" and importlib.util.find_spec("liger_kernel") is not None:
        ways["ours, liger"] = _ours("liger")
    return ways


def _by_torch(hidden: Any, weight: Any, targets: Any, shape: Shape) -> Any:
    import torch

    rows = torch.log_softmax((hidden @ weight.T).float(), -1)
    return rows.gather(1, targets[:, None])[:, 0]


def _by_megatron(hidden: Any, weight: Any, targets: Any, shape: Shape) -> Any:
    # The clone is Miles's: Megatron overwrites what it is given.
    return cross_entropy.log_probs((hidden @ weight.T).float().clone(), targets)


def _ours(kernel: str) -> Way:
    def compute(hidden: Any, weight: Any, targets: Any, shape: Shape) -> Any:
        from miles_periodic.plugins.fused_linear_cross_entropy import token_log_probs

        return token_log_probs(
            hidden,
            weight,
            targets,
            chunk_tokens=shape.chunk_tokens,
            chunk_vocabulary=shape.chunk_vocabulary,
            kernel=kernel,
        )

    return compute


def _row(way: str, compute: Way, shape: Shape, device: str, repeats: int) -> dict[str, Any]:
    import torch

    row: dict[str, Any] = {"way": way, "outcome": "ran"}
    operands = _operands(shape, device)
    try:
        _once(compute, operands, shape)  # whatever is compiled or tuned on first use
        row["peak_bytes"] = _peak_bytes(compute, operands, shape, device)
        row["of_logits"] = row["peak_bytes"] / shape.logits_bytes
        row["seconds"] = statistics.median(
            _seconds(compute, operands, shape, device) for _ in range(repeats)
        )
        row |= _errors(compute, operands, shape)
    except torch.OutOfMemoryError:
        row["outcome"] = "out of memory"
    except (ArithmeticError, ValueError, ImportError) as error:
        row["outcome"] = str(error)
    return row | {key: None for key in _MEASURED if key not in row}


def _operands(shape: Shape, device: str) -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    options = {"generator": generator, "device": device}
    hidden = torch.randn(shape.num_tokens, shape.width, **options).to(dtype).requires_grad_()
    weight = torch.randn(shape.vocabulary, shape.width, **options) * shape.width**-0.5
    targets = torch.randint(shape.vocabulary, (shape.num_tokens,), **options)
    return hidden, weight.to(dtype).requires_grad_(), targets


def _once(compute: Way, operands: tuple[Any, Any, Any], shape: Shape) -> Any:
    """Log-probabilities, and gradients by an upstream gradient of each token's own."""
    import torch

    hidden, weight, targets = operands
    log_probs = compute(hidden, weight, targets, shape)
    upstream = torch.linspace(-1, 1, len(targets), device=log_probs.device)
    torch.autograd.grad(log_probs, (hidden, weight), upstream)
    return log_probs.detach()


def _peak_bytes(compute: Way, operands: tuple[Any, Any, Any], shape: Shape, device: str) -> int:
    """The most bytes beyond the operands: of the allocator on a GPU, of live tensors on a CPU."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _once(compute, operands, shape)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from miles_periodic.cli.bench.live_bytes import LiveBytes

    with LiveBytes(operands) as live:
        _once(compute, operands, shape)
    return live.peak


def _seconds(compute: Way, operands: tuple[Any, Any, Any], shape: Shape, device: str) -> float:
    import torch

    began = time.perf_counter()
    _once(compute, operands, shape)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _errors(compute: Way, operands: tuple[Any, Any, Any], shape: Shape) -> dict[str, float]:
    """How far some tokens are from FP64, what rounding allows, and the largest of all tokens."""
    import torch

    hidden, weight, targets = operands
    with torch.no_grad():
        found = compute(hidden, weight, targets, shape).double()
        at = torch.linspace(0, len(targets) - 1, min(CHECKED_TOKENS, len(targets)))
        at = at.round().long().to(targets.device)
        logits = torch.cat([row @ weight.double().T for row in hidden[at].double().split(8)])
        exact = torch.log_softmax(logits, -1).gather(1, targets[at][:, None])[:, 0]
        rounding = NUM_ROUNDINGS * torch.finfo(hidden.dtype).eps * float(logits.abs().max())
    error = float((found[at] - exact).abs().max())
    return {"largest_error": error, "rounding": rounding, "largest": float(found.max())}


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
