"""Tokens per second of a real SGLang with router replay off, full, delta, and delta + compact.

    python tests/gpu/router_replay_throughput.py --gpus 1 --repeats 4 --json result.json

One engine, one process: the variants take turns, in another order in every repeat, on the same
conversations, each from an empty prefix cache. The model has the shape of Qwen3-30B-A3B and random
weights, so that nothing is downloaded. With two GPUs the engine runs DP attention x 2 and EP x 2,
and every conversation stays on its rank. Needs SGLang 0.5.12 or later and as many GPUs.

The compact form is switched by a file that the schedulers look for, because in one process a
setting of the server cannot change; that look is made in every variant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SHAPES = {
    "30b-a3b": {
        "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "intermediate_size": 6144, "vocab_size": 151936,
    },
    "tiny": {
        "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "intermediate_size": 256, "vocab_size": 4096,
    },
}  # fmt: skip
SWITCH = "MILES_PERIODIC_BENCH_COMPACT"
SEED = 20
#: Of the compact form; its rows are one byte an expert up to 256 experts.
HEADER_BYTES = 16


@dataclass(frozen=True)
class Variant:
    """How a request asks for routes."""

    name: str
    routes: bool
    delta: bool
    compact: bool


VARIANTS = (
    Variant("off", False, False, False),
    Variant("full", True, False, False),
    Variant("delta", True, True, False),
    Variant("delta + compact", True, True, True),
)


@dataclass(frozen=True)
class Measured:
    """One variant, once. payload_mib: base64 text that came back."""

    variant: str
    repeat: int
    seconds: float
    new_tokens: int
    payload_mib: float

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds


def write_model(folder: Path, shape: dict) -> None:
    """The one file that a random model of this shape needs."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "attention_bias": False, "attention_dropout": 0.0, "decoder_sparse_step": 1,
        "hidden_act": "silu", "max_position_embeddings": 40960, "mlp_only_layers": [],
        "norm_topk_prob": True, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
        "bos_token_id": 0, "eos_token_id": 0, **shape,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def conversations(
    options: argparse.Namespace, vocabulary: int
) -> list[list[tuple[list[int], int]]]:
    """Per conversation its turns: tokens that the environment adds, and how many are generated.

    Final lengths are spread evenly from a tenth of the longest to the longest.
    """
    draw = random.Random(SEED)
    made = []
    for i in range(options.conversations):
        share = 0.1 + 0.9 * i / max(options.conversations - 1, 1)
        new = [draw.randint(options.new, 2 * options.new - 1) for _ in range(options.turns)]
        added = max((int(share * options.longest) - sum(new)) // options.turns, 8)
        made.append([([draw.randrange(10, vocabulary) for _ in range(added)], n) for n in new])
    draw.shuffle(made)
    return made


class Bench:
    """One engine and the conversations that every variant runs."""

    def __init__(self, engine, options: argparse.Namespace, shape: dict, switch: Path) -> None:
        self.engine, self.options, self.switch = engine, options, switch
        self.per_row = shape["num_hidden_layers"] * shape["num_experts_per_tok"]
        self.work = conversations(options, shape["vocab_size"])

    async def measure(self, variant: Variant, repeat: int) -> Measured:
        """Run all conversations at once under one variant, from an empty prefix cache."""
        self.switch.unlink(missing_ok=True)
        if variant.compact:
            self.switch.touch()
        if not (await self.engine.tokenizer_manager.flush_cache()).success:
            sys.exit("the prefix cache could not be flushed between two variants")
        begin = time.perf_counter()
        done = await asyncio.gather(
            *(self.converse(variant, turns, i) for i, turns in enumerate(self.work))
        )
        seconds = time.perf_counter() - begin
        tokens, payload = (sum(column) for column in zip(*done, strict=True))
        return Measured(variant.name, repeat, seconds, tokens, payload / 2**20)

    async def converse(self, variant: Variant, turns, index: int) -> tuple[int, int]:
        """All turns of one conversation; new tokens and bytes of payload."""
        history: list[int] = []
        num_new = num_bytes = held = 0
        for added, wanted in turns:
            history += added
            answer = await self.engine.async_generate(
                input_ids=history,
                sampling_params={
                    "max_new_tokens": wanted, "temperature": 1.0, "ignore_eos": True
                },
                return_routed_experts=variant.routes,
                routed_experts_start_len=held if variant.delta else 0,
                **self.rank_of(index),
            )  # fmt: skip
            history += answer["output_ids"]
            num_new += len(answer["output_ids"])
            if variant.routes:
                payload = answer["meta_info"]["routed_experts"]
                num_bytes += len(payload)
                self.check(variant, payload, len(history) - 1 - (held if variant.delta else 0))
                held = len(history) - 1
        return num_new, num_bytes

    def rank_of(self, index: int) -> dict[str, int]:
        return {"routed_dp_rank": index % self.options.gpus} if self.options.gpus > 1 else {}

    def check(self, variant: Variant, payload: str, num_rows: int) -> None:
        """Every variant must bring exactly the rows that it asked for; decoding them is the
        client's work, in another process, and would be charged to the engine here."""
        size = len(payload) // 4 * 3 - payload[-2:].count("=")
        wanted = num_rows * self.per_row * 4
        if variant.compact:
            wanted = HEADER_BYTES + num_rows * self.per_row
        if size != wanted:
            sys.exit(f"{variant.name}: {size} bytes came where {wanted} were asked for")


def environment(folder: Path, switch: Path, tree: Path) -> None:
    """Have every spawned process apply the bindings of the compact form, behind the switch."""
    from miles_periodic.compat.catalog import BINDINGS, names_for_settings
    from miles_periodic.compat.manifest import FeatureReference, RunManifest
    from miles_periodic.compat.roll_call.server import RollCallServer
    from miles_periodic.compat.tree import Tree

    slug = "delta-router-replay"
    names = names_for_settings(slug, "sglang", ("compact_wire",), Tree.at("sglang", tree))
    bindings = tuple(b for name, b in BINDINGS.items() if name in names and b.upstream == "sglang")
    roll_call = RollCallServer(bindings, run_id=f"bench-{os.getpid()}")
    roll_call.__enter__()
    feature = "miles_periodic.plugins.delta_router_replay.feature:DeltaRouterReplay"
    manifest = RunManifest(
        roll_call.run_id,
        roll_call.address,
        roll_call.token,
        features=(FeatureReference(slug, feature, {"compact_wire": True}),),
        bindings=bindings,
    )
    (folder / "sitecustomize.py").write_text(SITE)
    os.environ.update(manifest.environment())
    os.environ[SWITCH] = str(switch)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


#: The boot, for a machine where the wheel is not installed, and the switch around its encoder.
SITE = f"""
import os
from miles_periodic.compat.boot import start
start()
from miles_periodic.compat.bindings import server_wire
native = server_wire.encode
def switched(wrapped, instance, args, kwargs):
    if os.path.exists(os.environ["{SWITCH}"]):
        return native(wrapped, instance, args, kwargs)
    return wrapped(*args, **kwargs)
server_wire.encode = switched
"""


def engine_of(model: Path, options: argparse.Namespace):
    """The real engine; flags that need kernels of its own wheel are left at what torch brings."""
    import sglang

    parallel = (
        {"tp_size": options.gpus, "dp_size": options.gpus, "ep_size": options.gpus,
         "enable_dp_attention": True}
        if options.gpus > 1
        else {}
    )  # fmt: skip
    return sglang.Engine(
        model_path=str(model), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
        attention_backend="triton", sampling_backend="pytorch", moe_runner_backend="triton",
        enable_return_routed_experts=True, random_seed=SEED,
        mem_fraction_static=options.memory, max_running_requests=options.conversations,
        cuda_graph_max_bs_decode=options.conversations // options.gpus, log_level="warning",
        **parallel,
    )  # fmt: skip


async def run(bench: Bench, options: argparse.Namespace) -> list[Measured]:
    """Warm up once with the costliest variant, then repeat; the order turns with every repeat."""
    chosen = [v for v in VARIANTS if v.name in options.variants]
    warm = await bench.measure(chosen[-1], -1)
    print(f"warm-up: {warm.seconds:.2f} s", flush=True)
    measured = []
    for repeat in range(options.first_repeat, options.first_repeat + options.repeats):
        turned = [*chosen[repeat % len(chosen) :], *chosen[: repeat % len(chosen)]]
        for variant in turned:
            if time.monotonic() > options.deadline:
                print("out of time; what was measured stands", flush=True)
                return measured
            one = await bench.measure(variant, repeat)
            measured.append(one)
            print(
                f"{repeat} {one.variant:16} {one.seconds:7.2f} s "
                f"{one.tokens_per_second:8.1f} tokens/s {one.payload_mib:9.1f} MiB",
                flush=True,
            )
            save(options, measured)
    return measured


def save(options: argparse.Namespace, measured: list[Measured]) -> None:
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(m) for m in measured], indent=1))


def table(measured: list[Measured]) -> str:
    """Medians, and each variant's loss against `off` of the same repeat."""
    off = {m.repeat: m.tokens_per_second for m in measured if m.variant == "off"}
    lines = [
        "| variant | tokens/s, median (range) | against off, median (range) | payload |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(m.variant for m in measured):
        mine = [m for m in measured if m.variant == name]
        rates = [m.tokens_per_second for m in mine]
        loss = [100 * (m.tokens_per_second / off[m.repeat] - 1) for m in mine if m.repeat in off]
        lines.append(
            f"| {name} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) "
            f"| {statistics.median(loss):+.2f} % ({min(loss):+.2f} to {max(loss):+.2f}) "
            f"| {mine[0].payload_mib:,.1f} MiB |"
        )
    return "\n".join(lines)


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="30b-a3b")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=32, help="all at once")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--longest", type=int, default=32768, help="tokens of the longest one")
    parser.add_argument("--new", type=int, default=64, help="least new tokens of a turn")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--first-repeat", type=int, default=0, help="where the order goes on")
    parser.add_argument("--memory", type=float, default=0.85, help="SGLang's mem_fraction_static")
    parser.add_argument("--limit-s", type=float, default=560, help="start no variant after this")
    parser.add_argument("--variants", nargs="+", default=[v.name for v in VARIANTS])
    parser.add_argument("--json", help="where to keep every single measurement")
    options = parser.parse_args(arguments)
    options.deadline = time.monotonic() + options.limit_s
    return options


def main() -> None:
    options = options_of(sys.argv[1:])
    shape = SHAPES[options.shape]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        switch = folder / "compact"
        import sglang

        environment(folder, switch, Path(sglang.__file__).parent)
        write_model(folder / "model", shape)
        began = time.monotonic()
        engine = engine_of(folder / "model", options)
        print(f"engine up after {time.monotonic() - began:.0f} s", flush=True)
        try:
            measured = engine.loop.run_until_complete(
                run(Bench(engine, options, shape, switch), options)
            )
        finally:
            engine.shutdown()
    print(table(measured))


if __name__ == "__main__":
    main()
