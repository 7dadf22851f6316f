"""`miles reshard`: a Megatron checkpoint as a folder that Hugging Face's tools load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import Progress, Report, reshard
from miles_periodic.plugins.fast_resharding.element_policy import FROM_ORIGIN
from miles_periodic.plugins.fast_resharding.settings import SHARD_BYTES


def reshard_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A torch_dist checkpoint, or a run's folder of them: the newest is taken.",
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="The folder to make; it must not exist.")
    ],
    config: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The model that training started from, in Hugging Face's form. Its config.json "
            "and tokenizer are carried over; its weights, if they are there, say which tensors "
            "there are and of which element types.",
        ),
    ],
    model_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE", help="The family of models, in place of config.json's model_type."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key that config.json has; VALUE is JSON or text. Repeatable.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Ray actors that convert, spread over the nodes; 0 for threads of this process, "
            "without Ray.",
        ),
    ] = 0,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the Ray cluster for --workers, which it needs; without it, Ray is "
            "started on this machine.",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Element type of what is written. origin: each tensor's own in DIR's weights, "
            "else config.json's; source: as the checkpoint stores it; or float64, float32, "
            "float16 or bfloat16. A router's correction bias stays FP32 unless one of the first "
            "two says otherwise.",
        ),
    ] = FROM_ORIGIN,
    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEME",
            help="fp8: matrices of attention, MLPs and experts as E4M3 in blocks of 128 by 128 "
            "with FP32 scales, the form of DeepSeek-V3's own files.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave out keys of the checkpoint that are no weights: a regular expression that "
            "matches whole keys. Optimizers, random states and Megatron's extra states are left "
            "out without it. A pattern that matches no key is an error. Repeatable.",
        ),
    ] = None,
    shard_bytes: Annotated[
        int,
        typer.Option(min=1, help="Most bytes of tensors in one file, a larger tensor alone aside."),
    ] = SHARD_BYTES,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Before TARGET appears, read both sides again and compare checksums."
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with what a run that ended early has left, after reading it back.",
        ),
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON and nothing else.")
    ] = False,
) -> None:
    """Convert a Megatron checkpoint (torch_dist) to Hugging Face safetensors.

    Metadata alone decide where every tensor goes; then each byte moves from its chunk into its
    place in a safetensors file. Either all tensors of the model are written exactly once and
    TARGET appears by one rename, or the exit status is not 0 and there is no TARGET; what was done
    by then lies beside it for --resume.

    [bold]miles reshard SOURCE TARGET --config DIR --verify[/bold]
    """
    with _progress(quiet=json_output) as on_progress:
        report = reshard(
            source,
            target,
            config=config,
            model_type=model_type,
            changes=_changes(changes or ()),
            workers=workers,
            address=address,
            dtype=dtype,
            quantize=quantize,
            ignore=ignore or (),
            verify=verify,
            resume=resume,
            shard_bytes=shard_bytes,
            on_progress=on_progress,
        )
    typer.echo(json.dumps(asdict(report), indent=2) if json_output else _sentence(report))


def _changes(assignments: Sequence[str]) -> dict[str, Any]:
    changes = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise PeriodicError(
                f"{assignment!r} is no change to a config.",
                remedy="Write --set KEY=VALUE, such as --set num_nextn_predict_layers=0.",
            )
        try:
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar on the error stream, if that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda progress: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(progress: Progress) -> None:
            if progress.doing not in tasks:
                tasks[progress.doing] = bars.add_task(progress.doing)
            bars.update(
                tasks[progress.doing], completed=progress.done_bytes, total=progress.total_bytes
            )

        yield show


def _sentence(report: Report) -> str:
    rate = report.target_bytes / max(report.seconds, 1e-9)
    words = [
        f"{report.target}: {report.num_tensors:,} tensors, {decimal(report.target_bytes)} in "
        f"{report.num_shards} {'file' if report.num_shards == 1 else 'files'}, "
        f"{report.seconds:.1f} s, {decimal(int(rate))}/s"
    ]
    if report.resumed_bytes:
        words.append(f"{decimal(report.resumed_bytes)} were there from before")
    if report.verified:
        words.append("verified")
    return "; ".join(words)
