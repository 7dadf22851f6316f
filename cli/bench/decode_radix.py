"""`miles bench decode-radix`: what a turn moves from prefill to decode, with the cache or not."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_pair import Conversation, PairSetup, SGLangPair, Turn
from miles_periodic.compat.probes import PROBES
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Unsupported
from miles_periodic.hooks.errors import PeriodicError

SLUG = "decode-radix-cache"
FIRST_PROMPT = tuple(range(20, 60))
NUM_ADDED = 10


def decode_radix_command(
    sglang: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder that holds SGLang's package; without it, the installed one.",
        ),
    ] = None,
    path: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Packages that this SGLang needs in other versions. Repeatable."
        ),
    ] = None,
    turns: Annotated[int, typer.Option(min=2, max=50, help="Turns of the conversation.")] = 6,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the bytes that a turn moves from a prefill to a decode server, on this machine's CPU.

    Starts a real pair of servers twice, without and with the decode server's radix cache; takes
    about three minutes on two cores and 8 GB of memory.
    """
    from miles_periodic.cli.bench.table import show

    result = measure(sglang, path or (), turns)
    show("What a turn moves from prefill to decode", result, json_output)


def measure(sglang: Path | None, path: Sequence[Path], turns: int) -> dict[str, Any]:
    """One row per turn: its tokens, and bytes without and with the cache.

    Raises PeriodicError where that SGLang has no such cache.
    """
    tree = Tree.at("sglang", sglang) if sglang else Tree.installed("sglang")
    _check(tree)
    folders = [*path, *([tree.portions[0].parent] if sglang else [])]
    with tempfile.TemporaryDirectory(prefix="decode-radix-") as work:
        tiny_model.write(Path(work) / "model")
        by_cache = {
            cache: _converse(
                PairSetup(Path(work) / "model", folders, cache), Path(work) / str(cache), turns
            )
            for cache in (False, True)
        }
    rows = [_row(n, *both) for n, both in enumerate(zip(*by_cache.values(), strict=True), 1)]
    without, with_cache = (sum(row[f"{w}_bytes"] for row in rows) for w in ("without", "with"))
    return {"rows": rows, "all_turns": f"{without / with_cache:.1f} x fewer bytes"}


def _check(tree: Tree | None) -> None:
    if tree is None:
        raise PeriodicError(
            "SGLang is not installed.", remedy="Give --sglang DIR, or install it.", feature=SLUG
        )
    decision = PROBES[SLUG]["sglang"](tree)
    if isinstance(decision, Unsupported):
        raise PeriodicError(
            f"{decision.reason[:1].upper()}{decision.reason[1:]}.",
            feature=SLUG,
            tree=tree.name,
            target=decision.target,
            expected=decision.expected,
            found=decision.found,
            remedy=f"Give --sglang DIR with a release that has it. {decision.remedy}",
        )


def _converse(setup: PairSetup, folder: Path, turns: int) -> list[Turn]:
    with SGLangPair(setup, folder) as pair:
        return list(Conversation(FIRST_PROMPT, num_added=NUM_ADDED).turns(pair, turns))


def _row(number: int, without: Turn, with_cache: Turn) -> dict[str, Any]:
    new = len(without.prompt) if number == 1 else NUM_ADDED
    return {
        "turn": number,
        "prompt_tokens": len(without.prompt),
        "new_tokens": new,
        "without_bytes": without.moved.kv_bytes,
        "with_bytes": with_cache.moved.kv_bytes,
        "engine_without_bytes": without.moved.engine_bytes,
        "engine_with_bytes": with_cache.moved.engine_bytes,
    }
