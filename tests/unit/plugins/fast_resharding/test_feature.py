"""The hooks: what a command line may ask for, and how a run exports."""

import json

import pytest
from megatron_states import write_source
from small_models import CONFIG, same, state, written

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.fast_resharding.feature import FastResharding
from miles_periodic.plugins.fast_resharding.settings import FastReshardingSettings


def hook(**settings):
    return build_manager([FastResharding(FastReshardingSettings(**settings))]).hook


@pytest.fixture
def arguments(model_folder, tmp_path):
    return {"save_hf": f"{tmp_path}/hf/{{rollout_id}}", "hf_checkpoint": str(model_folder)}


@pytest.fixture
def checkpoint(tmp_path):
    write_source(tmp_path / "source", state(CONFIG), groups=2)
    return str(tmp_path / "source")


def test_hook_complete_arguments_lets_an_export_of_a_known_family_pass(arguments):
    assert hook().complete_arguments(arguments=arguments) == []


def test_a_run_that_exports_nothing_is_not_looked_at():
    assert hook().complete_arguments(arguments={"save_hf": None, "lora_rank": 8}) == []


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"train_backend": "fsdp"}, "Give --train-backend megatron"),
        ({"ckpt_format": "zarr"}, "Give --ckpt-format torch_dist"),
        ({"lora_rank": 8}, "Give --lora-rank 0"),
        ({"save_hf": "/out"}, r"such as /out/\{rollout_id\}"),
        ({"hf_checkpoint": "somebody/model"}, "Give a folder of the model"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_the_run_starts(change, remedy, arguments):
    with pytest.raises(PeriodicError, match=remedy):
        hook().complete_arguments(arguments=arguments | change)


def test_a_family_that_is_not_known_is_refused_before_the_run_starts(arguments, model_folder):
    (model_folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "qwen9"}))
    with pytest.raises(PeriodicError, match="No family is known"):
        hook().complete_arguments(arguments=arguments)


def test_hook_export_checkpoint_publishes_the_model(checkpoint, arguments, tmp_path):
    target = tmp_path / "hf" / "3"
    answer = hook().export_checkpoint(
        checkpoint=checkpoint, target=str(target), arguments=arguments
    )
    assert answer is True
    assert same(written(target), state(CONFIG))


def test_an_export_takes_the_place_of_the_one_before(checkpoint, arguments, tmp_path):
    target = tmp_path / "hf" / "3"
    target.mkdir(parents=True)
    (target / "model-00001-of-00002.safetensors").write_bytes(b"older")
    hook().export_checkpoint(checkpoint=checkpoint, target=str(target), arguments=arguments)
    assert same(written(target), state(CONFIG))


@pytest.mark.parametrize("stop", [True, False])
def test_an_export_that_fails_leaves_the_one_before(stop, checkpoint, arguments, tmp_path, caplog):
    target = tmp_path / "hf" / "3"
    target.mkdir(parents=True)
    (tmp_path / "source" / "__1_0.distcp").unlink()
    asked = {"checkpoint": checkpoint, "target": str(target), "arguments": arguments}
    if stop:
        with pytest.raises(PeriodicError, match="is missing"):
            hook().export_checkpoint(**asked)
    else:
        assert hook(stop_on_failure=False).export_checkpoint(**asked) is False
        assert "is missing" in caplog.text
    assert list(target.iterdir()) == []


def test_layers_that_are_not_trained_are_left_out_of_an_export(arguments, model_folder):
    from miles_periodic.plugins.fast_resharding.feature import _config, _left_out

    config = json.dumps({**CONFIG, "num_nextn_predict_layers": 1})
    (model_folder / "config.json").write_text(config)
    assert _left_out(_config(arguments), arguments) == {"num_nextn_predict_layers": 0}
    assert _left_out(_config(arguments), arguments | {"mtp_num_layers": 1}) == {}
