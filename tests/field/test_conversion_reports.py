"""Conversions that broke other people's models, and what is right in each."""

import json
import resource
import subprocess
import sys

import pytest
import torch
from megatron_states import sources, write_source
from safetensors.torch import save_file
from small_models import CONFIG, same, state, written

from miles_periodic.cli.bench.torch_dist_writer import TorchDistWriter
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import reshard
from miles_periodic.plugins.fast_resharding.worker import Worker


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder


def test_weights_that_were_counted_but_never_stored_are_found(tmp_path, model, monkeypatch):
    """NVIDIA-NeMo/Automodel#2682: all keys were ticked off, the experts kept random values."""
    write_source(tmp_path / "source", state(CONFIG), groups=2)
    write = Worker._write

    def forgetful(self, unit, data):
        if ".experts." not in unit.target:
            write(self, unit, data)

    monkeypatch.setattr(Worker, "_write", forgetful)
    monkeypatch.setattr(Worker, "_to_disk", lambda *_: None)
    with pytest.raises(PeriodicError, match=r"\.experts\..* again from the target"):
        reshard(tmp_path / "source", tmp_path / "target", config=model, verify=True)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("how", ["stacked", "layers apart", "keys apart"])
def test_experts_are_laid_out_as_in_the_model_that_training_started_from(how, tmp_path, model):
    """THUDM/slime#1904: another expert format than the origin's, and duplicates beside it."""
    before = state(CONFIG)
    save_file(before, model / "model.safetensors")
    write_source(tmp_path / "source", before, 2, how)
    reshard(tmp_path / "source", tmp_path / "target", config=model)
    assert same(written(tmp_path / "target"), before)


def test_a_router_bias_keeps_the_type_of_the_origin(tmp_path, model):
    """radixark/miles#811 and #524: `expert_bias` and more went to BF16 with everything else."""
    glm = {"model_type": "glm4_moe", "n_routed_experts": 4, "n_shared_experts": 0}
    glm |= {"use_qk_norm": True, "first_k_dense_replace": 0}
    (model / "config.json").write_text(json.dumps({**CONFIG, **glm}), encoding="utf-8")
    before = state(CONFIG)
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        before[name] = torch.full((4,), 1 / 3)
    save_file(before, model / "model.safetensors")
    write_source(tmp_path / "source", before, groups=2)
    reshard(tmp_path / "source", tmp_path / "target", config=model)
    assert same(written(tmp_path / "target"), before)


def test_the_scales_of_a_matrix_are_not_taken_for_the_matrix(tmp_path, model):
    """huggingface/transformers#45930: a pattern for weights also matched their scales."""
    tensors = dict(sources(state(CONFIG), groups=2))
    key = "decoder.layers.0.mlp.experts.experts.0.linear_fc1.weight"
    tensors[f"{key}_scale_inv"] = torch.ones(1, 1)
    with TorchDistWriter(tmp_path / "source") as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
    with pytest.raises(PeriodicError, match=r"does not know: .*weight_scale_inv\."):
        reshard(tmp_path / "source", tmp_path / "target", config=model)


LIMITED = """
import resource, sys
from miles_periodic.plugins.fast_resharding import resharding
import xxhash
bound = int(sys.argv[4])
held = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (held + bound, held + bound))
report = resharding.reshard(*sys.argv[1:3], config=sys.argv[3], unit_bytes=2 << 20)
print(report.worker_memory_bytes * report.num_workers)
"""


def test_a_model_far_larger_than_the_memory_is_converted(tmp_path, model):
    """radixark/miles#270 and THUDM/slime#967: the converter was killed for its memory."""
    config = {**CONFIG, "hidden_size": 1024, "moe_intermediate_size": 1024}
    config |= {"vocab_size": 16384, "num_experts": 8}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    before = state(config)
    write_source(tmp_path / "source", before, groups=2)
    num_bytes = sum(tensor.nbytes for tensor in before.values())
    limit = 48 << 20
    assert num_bytes > 2.5 * limit
    command = [sys.executable, "-c", LIMITED, tmp_path / "source", tmp_path / "target", model]
    done = subprocess.run([*command, str(limit)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < limit
    assert same(written(tmp_path / "target"), before)


def test_a_process_under_that_limit_cannot_hold_more():
    code = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 25, 1 << 25)); "
    done = subprocess.run([sys.executable, "-c", code + "bytearray(1 << 26)"], capture_output=True)
    assert b"MemoryError" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_DATA) != (1 << 25, 1 << 25)
