"""The Miles command line for a CPU run of the tiny model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.compat.cpu.stand_in import TRAINER_VARIABLE
from miles_periodic.compat.cpu.tiny_model import TinyModel

GAME = "miles_periodic.compat.cpu.game"
NUM_GPUS_PER_NODE = 8


@dataclass(frozen=True)
class CpuRun:
    """What differs between CPU runs.

    num_actors: train actors, data parallel. expert_parallel: a divisor of it.
    micro_batch_size: samples; they are padded to equal length.
    use_miles_router: False takes the Rust router that pip installs, which drops routes.
    learning_rate: for AdamW, so about how far each weight moves in a step.
    save_interval: rollouts from one checkpoint to the next; None for none.
    load: a folder with checkpoints to go on from; None starts with the model's weights.
    recorded: the folder of a run whose rollouts are trained on again, without any server.
    """

    num_rollouts: int = 2
    num_actors: int = 2
    expert_parallel: int = 2
    num_engines: int = 1
    num_prompts: int = 4
    samples_per_prompt: int = 4
    micro_batch_size: int = 2
    learning_rate: float = 1e-4
    pause_mode: str = "in_place"
    use_miles_router: bool = True
    save_interval: int | None = None
    load: Path | None = None
    recorded: Path | None = None
    seed: int = 1234

    @property
    def num_gpus(self) -> int:
        """Logical GPUs: train actors plus engines."""
        return self.num_actors + self.num_engines

    @property
    def num_samples(self) -> int:
        """Samples of a rollout, all in one optimizer step."""
        return self.num_prompts * self.samples_per_prompt


def prompts_file(work_folder: Path) -> Path:
    """Where the flags look for the prompts (game.write_prompts)."""
    return work_folder / "prompts.jsonl"


def checkpoints_folder(work_folder: Path) -> Path:
    """Where a run that saves has its checkpoints."""
    return work_folder / "checkpoints"


def rollouts_file(work_folder: Path) -> Path:
    """Where a run leaves its rollouts; a pattern with the rollout's number left open."""
    return work_folder / "rollout" / "{rollout_id}.pt"


def miles_flags(model_folder: Path, work_folder: Path, run: CpuRun = CpuRun()) -> list[str]:
    """The command line, without a program name; further flags may be appended."""
    return [
        *model_flags(model_folder, TinyModel()),
        *_loop_flags(work_folder, run),
        *_save_flags(work_folder, run),
        *_algorithm_flags(run),
        *_check_flags(work_folder),
        *_trainer_on_cpu(run),
        *_server_on_cpu(run),
    ]


def model_flags(model_folder: Path, model: TinyModel) -> list[str]:
    """What Megatron has to be told about the model, in its own words."""
    return _words(
        f"""
        --train-backend megatron --hf-checkpoint {model_folder} --ref-load {model_folder}
        --num-layers {model.num_hidden_layers} --hidden-size {model.hidden_size}
        --ffn-hidden-size {model.intermediate_size} --vocab-size {model.vocab_size}
        --num-attention-heads {model.num_attention_heads} --kv-channels {model.head_dim}
        --group-query-attention --num-query-groups {model.num_key_value_heads} --qk-layernorm
        --normalization RMSNorm --norm-epsilon {model.rms_norm_eps} --swiglu --disable-bias-linear
        --use-rotary-position-embeddings --position-embedding-type rope
        --rotary-base {int(model.rope_theta)} --untie-embeddings-and-output-weights
        --num-experts {model.num_experts} --moe-router-topk {model.num_experts_per_tok}
        --moe-ffn-hidden-size {model.moe_intermediate_size} --moe-token-dispatcher-type alltoall
        --moe-router-load-balancing-type none --moe-aux-loss-coeff 0
        --moe-router-score-function softmax
        """
    )


def _loop_flags(work_folder: Path, run: CpuRun) -> list[str]:
    # One sample in flight at a time: with more, the order in which requests reach the server
    # decides which prefixes it shares and in which batches it rounds, and no two runs are equal.
    return (
        _words(
            f"""
        --actor-num-nodes 1 --actor-num-gpus-per-node {run.num_actors}
        --expert-model-parallel-size {run.expert_parallel}
        --num-gpus-per-node {NUM_GPUS_PER_NODE}
        --rollout-num-gpus {run.num_engines} --rollout-num-gpus-per-engine 1
        --num-rollout {run.num_rollouts} --rollout-batch-size {run.num_prompts}
        --n-samples-per-prompt {run.samples_per_prompt} --global-batch-size {run.num_samples}
        --prompt-data {prompts_file(work_folder)} --input-key prompt --label-key label
        --rollout-temperature 1.0 --rollout-max-response-len 256 --rollout-seed {run.seed}
        --custom-generate-function-path {GAME}.generate --custom-rm-path {GAME}.reward
        --pause-generation-mode {run.pause_mode} --sglang-server-concurrency 1
        """
        )
        + ["--use-miles-router"] * run.use_miles_router
    )


def _save_flags(work_folder: Path, run: CpuRun) -> list[str]:
    flags: list[str] = []
    if run.save_interval is not None:
        flags += ["--save", str(checkpoints_folder(work_folder))]
        flags += ["--save-interval", str(run.save_interval)]
        # Else Megatron also writes the padding of its buffers, whose bits nobody set.
        flags += ["--dist-ckpt-optim-fully-reshardable"]
    if run.load is not None:
        flags += ["--load", str(run.load)]
    if run.recorded is not None:
        flags += ["--load-debug-rollout-data", str(rollouts_file(run.recorded))]
    return flags


def _algorithm_flags(run: CpuRun) -> list[str]:
    return _words(
        f"""
        --advantage-estimator grpo --eps-clip 0.2 --use-tis --use-rollout-routing-replay
        --lr {run.learning_rate} --lr-decay-style constant --seed {run.seed}
        --attention-dropout 0 --hidden-dropout 0
        """
    )


def _check_flags(work_folder: Path) -> list[str]:
    """Miles's own checks: replayed routes, weight versions and every weight after an update."""
    trained = str(work_folder / "train" / "{rollout_id}_{rank}.pt")
    saved = ["--save-debug-rollout-data", str(rollouts_file(work_folder))]
    saved += ["--save-debug-train-data", trained]
    return ["--ci-test", "--check-weight-update-equal", *saved]


def _trainer_on_cpu(run: CpuRun) -> list[str]:
    # bshd: without Transformer Engine Megatron's attention takes no packed sequences.
    return _words(
        f"""
        --distributed-backend gloo --transformer-impl local --qkv-format bshd
        --micro-batch-size {run.micro_batch_size} --data-pad-size-multiplier 8
        --use-cpu-initialization --disable-jit-fuser --no-gradient-accumulation-fusion
        --no-bias-dropout-fusion --no-bias-swiglu-fusion --no-masked-softmax-fusion
        --no-rope-fusion --no-persist-layer-norm
        """
    ) + ["--train-env-vars", json.dumps({TRAINER_VARIABLE: "1"})]


def _server_on_cpu(run: CpuRun) -> list[str]:
    return _words(
        """
        --sglang-device cpu --sglang-max-total-tokens 8192 --sglang-max-running-requests 8
        --sglang-mem-fraction-static 0.3 --sglang-grammar-backend none
        --sglang-disable-cuda-graph
        """
    )


def _words(line: str) -> list[str]:
    return line.split()
