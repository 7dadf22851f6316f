"""A converted checkpoint, loaded and served by an SGLang server on the CPU."""

import shutil

import pytest
import torch
from megatron_states import write_source
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from miles_periodic.compat.cpu import tiny_model
from miles_periodic.compat.cpu.sglang_server import ServerSetup, SGLangServer
from miles_periodic.plugins.fast_resharding import reshard

pytestmark = pytest.mark.real

PROMPT = list(range(20, 60))
NUM_NEW = 4


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A model of several shards, from a checkpoint whose experts four ranks had shared."""
    folder = tmp_path_factory.mktemp("converted")
    tiny_model.write(folder / "origin")
    weights = load_file(folder / "origin" / "model.safetensors")
    write_source(folder / "source", weights, tiny_model.TinyModel().num_key_value_heads, parts=4)
    shutil.copytree(
        folder / "origin", folder / "config", ignore=shutil.ignore_patterns("*.safetensors")
    )
    report = reshard(
        folder / "source", folder / "target", config=folder / "config", shard_bytes=200_000
    )
    assert report.num_shards > 1
    return folder / "target"


@pytest.fixture(scope="module")
def answer(converted, sglang_path, tmp_path_factory):
    setup = ServerSetup(converted, sglang_path("0.5.16"))
    with SGLangServer(setup, tmp_path_factory.mktemp("server") / "log") as server:
        answer = server.generate(PROMPT, NUM_NEW, return_logprob=True, logprob_start_len=0)
        return answer["meta_info"]


@pytest.fixture(scope="module")
def log_probs(converted, answer):
    """Of every next token after a prefix of what was served, float32 [S, V]."""
    model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.bfloat16)
    tokens = PROMPT + [token for _, token, _ in answer["output_token_logprobs"]]
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens])).logits[0].float().log_softmax(-1)


def test_a_server_samples_the_tokens_that_transformers_finds_likeliest(answer, log_probs):
    served = [token for _, token, _ in answer["output_token_logprobs"]]
    assert len(served) == NUM_NEW
    at = torch.arange(len(PROMPT) - 1, len(PROMPT) - 1 + NUM_NEW)
    chosen = log_probs[at, torch.tensor(served)]
    assert (log_probs[at].max(-1).values - chosen).max() < 0.02


def test_a_server_computes_the_log_probs_that_transformers_computes(answer, log_probs):
    served = answer["input_token_logprobs"][1:] + answer["output_token_logprobs"]
    tokens = torch.tensor([token for _, token, _ in served])
    expected = log_probs[torch.arange(len(served)), tokens]
    found = torch.tensor([value for value, _, _ in served])
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
