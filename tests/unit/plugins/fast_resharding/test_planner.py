import json
from pathlib import Path

import pytest
import torch
from megatron_states import sources, write_source
from safetensors.torch import save_file
from small_models import same, state, written

from miles_periodic.cli.bench.torch_dist_writer import TorchDistWriter
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import conversion, reshard
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import Checkpoint
from miles_periodic.plugins.fast_resharding.families.table import Family, whole
from miles_periodic.plugins.fast_resharding.matching import match_sources


@pytest.fixture
def tensors(config):
    return dict(sources(state(config), groups=2))


def write(folder, tensors, objects=()):
    with TorchDistWriter(folder) as writer:
        for key, tensor in tensors.items():
            writer.add(key, tensor)
        for key in objects:
            writer.add_object(key, {})
    return folder


@pytest.fixture
def refused(tmp_path, model_folder):
    def check(tensors, match, **options):
        target = tmp_path / "target"
        with pytest.raises(PeriodicError, match=match):
            reshard(write(tmp_path / "source", tensors), target, config=model_folder, **options)
        assert not target.exists()

    return check


@pytest.fixture
def converted(tmp_path, model_folder):
    def convert(tensors, objects=(), **options):
        target = tmp_path / "target"
        source = write(tmp_path / "source", tensors, objects)
        reshard(source, target, config=model_folder, **options)
        return written(target)

    return convert


def test_a_key_that_the_family_does_not_know_is_an_error(tensors, refused):
    tensors["decoder.layers.0.mlp.router.extra"] = torch.zeros(4)
    refused(tensors, r"(?s)1 keys.*router\.extra.*--ignore")


def test_a_key_that_is_ignored_by_the_user_is_left_out(tensors, converted):
    tensors["decoder.layers.0.mlp.router.extra"] = torch.zeros(4)
    assert converted(tensors, ignore=[r"decoder\.layers\.\d+\.mlp\.router\.extra"])


def test_a_pattern_to_ignore_has_to_match_the_whole_key(tensors, refused):
    tensors["decoder.layers.0.mlp.router.extra"] = torch.zeros(4)
    refused(tensors, r"router\.extra", ignore=["router"])


def test_an_expert_that_is_missing_is_named(tensors, refused):
    del tensors["decoder.layers.1.mlp.experts.experts.2.linear_fc2.weight"]
    refused(tensors, r"does not fill 1 tensors.*layers\.1\.mlp\.experts\.2\.down_proj\.weight")


def test_stacked_experts_beside_experts_by_key_are_an_error_that_names_both(tensors, refused):
    key = "decoder.layers.0.mlp.experts.experts"
    experts = [tensors[f"{key}.{n}.linear_fc2.weight"] for n in range(4)]
    tensors[f"{key}.linear_fc2.weight"] = torch.stack(experts)
    refused(tensors, rf"(?s)Several tensors.*{key}\.0\.linear_fc2\.weight, {key}\.linear_fc2")


def test_one_norm_under_two_names_is_an_error(tensors, refused):
    norm = tensors["decoder.layers.0.pre_mlp_layernorm.weight"]
    tensors["decoder.layers.0.mlp.linear_fc1.layer_norm_weight"] = norm
    refused(tensors, r"(?s)Several tensors.*post_attention_layernorm\.weight")


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("decoder.layers.0.self_attention.linear_qkv.weight", (31, 8)),
        ("decoder.layers.0.mlp.router.weight", (5, 8)),
        ("embedding.word_embeddings.weight", (19, 8)),
        ("embedding.word_embeddings.weight", (20, 9)),
        ("decoder.final_layernorm.weight", (8, 1)),
    ],
)
def test_a_shape_that_the_config_does_not_say_is_an_error(key, shape, tensors, refused):
    tensors[key] = torch.zeros(shape, dtype=torch.bfloat16)
    refused(tensors, rf"(?s){key} has another shape.*expected.*found")


def test_an_output_layer_beside_tied_embeddings_is_an_error(tensors, refused):
    refused(tensors, r"(?s)output_layer\.weight", changes={"tie_word_embeddings": True})


def test_a_layer_that_the_config_does_not_have_is_an_error(tensors, refused):
    refused(tensors, r"decoder\.layers\.1\.", changes={"num_hidden_layers": 1})


def test_a_rule_that_also_matches_another_rules_key_is_an_error(tensors, refused, config):
    norm = "decoder.final_layernorm.weight"
    rules = [whole(norm, "a", 8), whole(norm, "b", 8)]
    family = Family("own", ("qwen3_moe",), lambda config: rules)
    refused({norm: tensors[norm]}, r"(?s)several rules", families=[family])


def test_a_trainers_state_is_left_out(tensors, converted, config):
    own = {
        "optimizer.state.exp_avg.decoder.final_layernorm.weight": torch.zeros(8),
        "chained_0.optimizer.state.fp32_param.output_layer.weight": torch.zeros(4),
    }
    objects = ("rng_state/shard_0_1", "decoder.layers.0.mlp.experts._extra_state/shard_0.1_2.4")
    found = converted({**tensors, **own}, objects)
    assert found.keys() == state(config).keys()


def test_an_object_that_is_not_known_is_an_error(tensors, tmp_path, model_folder):
    write(tmp_path / "source", tensors, ["mystery"])
    with pytest.raises(PeriodicError, match="mystery"):
        reshard(tmp_path / "source", tmp_path / "target", config=model_folder)


def origin(folder, tensors):
    save_file(tensors, folder / "model.safetensors")


def test_each_tensor_has_the_type_that_it_has_in_the_origin(
    tensors, converted, model_folder, config
):
    gate = "model.layers.0.mlp.gate.weight"
    before = state(config)
    origin(model_folder, {**before, gate: before[gate].float()})
    found = converted(tensors)
    assert found[gate].dtype == torch.float32
    assert torch.equal(found[gate], before[gate].float())
    assert found["model.layers.1.mlp.gate.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("origin", torch.bfloat16), ("source", torch.float32), ("float16", torch.float16)],
)
def test_the_policy_decides_about_types(dtype, expected, tensors, converted, config):
    wide = {key: tensor.float() for key, tensor in tensors.items()}
    found = converted(wide, dtype=dtype)
    before = state(config)
    assert all(torch.equal(t, before[n].to(expected)) for n, t in found.items())
    assert {t.dtype for t in found.values()} == {expected}


def test_a_value_that_a_type_cannot_hold_is_an_error(tensors, refused):
    tensors = {key: tensor.float() for key, tensor in tensors.items()}
    tensors["decoder.final_layernorm.weight"][3] = 1e6
    refused(tensors, r"(?s)model\.norm\.weight holds values that float16.*--dtype", dtype="float16")


def test_a_value_is_lost_also_beside_one_that_was_infinite_before(tensors, refused):
    tensors = {key: tensor.float() for key, tensor in tensors.items()}
    tensors["decoder.final_layernorm.weight"][2:4] = torch.tensor([torch.inf, 1e6])
    refused(tensors, r"(?s)found: +1e\+06.*--dtype", dtype="float16")


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_how_many_values_change_their_type_at_once_changes_nothing(
    at_once, tensors, converted, config, monkeypatch
):
    monkeypatch.setattr(conversion, "_VALUES_AT_ONCE", at_once)
    found = converted({key: tensor.float() for key, tensor in tensors.items()})
    assert all(torch.equal(t, state(config)[n]) for n, t in found.items())


def test_an_unknown_type_is_an_error_with_the_nearest_name(tensors, refused):
    refused(tensors, "(?s)'bfloat61'.*bfloat16", dtype="bfloat61")


def test_a_tensor_of_the_origin_that_would_not_be_written_is_an_error(
    tensors, refused, model_folder, config
):
    origin(model_folder, {**state(config), "model.layers.0.extra": torch.zeros(2)})
    refused(tensors, r"would not write: model\.layers\.0\.extra")


def test_a_tensor_that_the_origin_lacks_is_an_error(tensors, refused, model_folder, config):
    before = state(config)
    del before["lm_head.weight"]
    origin(model_folder, before)
    refused(tensors, r"lacks tensors.*lm_head\.weight")


def test_a_quantised_origin_stands_for_the_plain_tensors(tensors, converted, model_folder, config):
    before = state(config)
    key = "model.layers.0.mlp.experts.0.down_proj.weight"
    quantised = {**before, key: before[key].to(torch.float8_e4m3fn)}
    origin(model_folder, {**quantised, f"{key}_scale_inv": torch.ones(1, 1)})
    assert torch.equal(converted(tensors)[key], before[key])


GLM = {
    "model_type": "glm4_moe",
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "num_nextn_predict_layers": 1,
    "use_qk_norm": True,
    "attention_bias": False,
}


@pytest.fixture
def predicting(config, model_folder):
    """A model with a layer that predicts further tokens: its tensors, and the checkpoint's."""
    config = {k: v for k, v in config.items() if k != "num_experts"} | GLM
    (model_folder / "config.json").write_text(json.dumps(config))
    before = state({**config, "num_experts": 4, "num_hidden_layers": 3})
    for layer in range(3):
        prefix = f"model.layers.{layer}.mlp."
        before[f"{prefix}gate.e_score_correction_bias"] = torch.rand(4)
        for which, shape in (("gate", (4, 8)), ("up", (4, 8)), ("down", (8, 4))):
            name = f"{prefix}shared_experts.{which}_proj.weight"
            before[name] = torch.randn(shape).bfloat16()
    tensors = {}
    for key, tensor in sources(before, groups=2):
        inner = key.replace("decoder.layers.2.", "mtp.layers.0.transformer_layer.")
        tensors[inner] = tensor
    for key, name, shape in (
        ("enorm", "enorm", (8,)),
        ("hnorm", "hnorm", (8,)),
        ("eh_proj", "eh_proj", (8, 16)),
        ("final_layernorm", "shared_head.norm", (8,)),
    ):
        values = torch.randn(shape).bfloat16()
        tensors[f"mtp.layers.0.{key}.weight"] = before[f"model.layers.2.{name}.weight"] = values
    return before, tensors


def test_a_layer_that_predicts_further_tokens_stands_behind_the_models_own(predicting, converted):
    before, tensors = predicting
    found = converted(tensors)
    assert found.keys() == before.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())


def test_a_router_bias_stays_fp32_where_everything_else_changes(predicting, converted):
    _, tensors = predicting
    found = converted(tensors, dtype="float16")
    kept = {name for name, tensor in found.items() if tensor.dtype == torch.float32}
    assert kept == {f"model.layers.{n}.mlp.gate.e_score_correction_bias" for n in range(3)}


def test_embeddings_that_the_origin_repeats_are_repeated(predicting, converted, model_folder):
    before, tensors = predicting
    copy = "model.layers.2.embed_tokens.weight"
    origin(model_folder, {**before, copy: before["model.embed_tokens.weight"].clone()})
    assert torch.equal(converted(tensors)[copy], before["model.embed_tokens.weight"])


def test_layers_that_training_left_out_are_an_error_that_says_how_to_go_on(predicting, refused):
    _, tensors = predicting
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith("mtp.")}
    refused(tensors, r"(?s)does not fill.*layers\.2\..*--set num_nextn_predict_layers=0")


def test_layers_that_training_left_out_are_left_out_of_the_target(predicting, converted):
    before, tensors = predicting
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith("mtp.")}
    found = converted(tensors, changes={"num_nextn_predict_layers": 0})
    assert found.keys() == {name for name in before if not name.startswith("model.layers.2.")}


def test_stacked_layers_of_two_kinds_are_not_taken_for_one(tmp_path, config, model_folder):
    before = state(config)
    write_source(tmp_path / "source", before, 2)
    with pytest.raises(PeriodicError, match="another shape|does not know"):
        reshard(
            tmp_path / "source",
            tmp_path / "target",
            config=model_folder,
            changes={"num_hidden_layers": 3},
        )


def test_an_output_layer_that_is_the_embedding_is_repeated_where_the_origin_repeats_it(
    config, tmp_path, model_folder
):
    config |= {"tie_word_embeddings": True}
    (model_folder / "config.json").write_text(json.dumps(config))
    model = state(config)
    expected = {**model, "lm_head.weight": model["model.embed_tokens.weight"].clone()}
    save_file(expected, model_folder / "model.safetensors")
    source = write(tmp_path / "source", dict(sources(model, groups=2)))
    reshard(source, tmp_path / "target", config=model_folder)
    assert same(written(tmp_path / "target"), expected)


def test_a_pattern_to_ignore_may_have_flags(tensors, converted):
    tensors["decoder.layers.0.mlp.router.extra"] = torch.zeros(4)
    assert converted(tensors, ignore=[r"(?i).*ROUTER\.extra"])


def test_very_many_states_of_a_trainer_are_looked_at_once_each():
    class Key(str):
        num_compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Key.num_compared += 1
            return str.__eq__(self, other)

    keys = tuple(Key(f"decoder.layers.{n}._extra_state/shard_{n}") for n in range(200))
    match_sources(Checkpoint(Path("source"), {}, keys, ""), ())
    assert Key.num_compared < 10 * len(keys)
