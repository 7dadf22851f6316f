"""A model's output layer that is called and multiplies nothing, without a Megatron."""

from types import SimpleNamespace

import pytest
import torch

from miles_periodic.compat.bindings import features as features_module
from miles_periodic.compat.bindings import output_logits
from miles_periodic.compat.deferred_logits import DeferredLogits
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.fused_linear_cross_entropy.feature import FusedLinearCrossEntropy

LAYERS = "megatron.core.tensor_parallel.layers"
MAPPINGS = "megatron.core.tensor_parallel.mappings"
NUM_POSITIONS, NUM_SEQUENCES, WIDTH, VOCABULARY = 3, 2, 4, 10


class Group:
    def __init__(self, size=1, rank=0):
        self.size, self.rank = lambda: size, lambda: rank


class ColumnParallelLinear(torch.nn.Module):
    def __init__(self, group=None):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.bias, self.sequence_parallel, self.gather_output = None, False, False
        self.tp_group = group or Group()

    def forward(self, input_, weight=None, runtime_gather_output=None):
        return input_ @ (self.weight if weight is None else weight).T, None


def vocabulary_masked(logits, labels):
    """Losses of labels as by Megatron's vocabulary-parallel cross entropy."""
    from_largest = logits - logits.amax(-1, keepdim=True)
    is_inside = (labels >= 0) & (labels < logits.shape[-1])
    of_label = from_largest.gather(2, torch.where(is_inside, labels, 0)[..., None])[..., 0]
    return from_largest.logsumexp(-1) - torch.where(is_inside, of_label, 0.0)


class Model:
    """What Megatron's post-processing comes to, for both ways in."""

    post_process, training = True, True

    def __init__(self, layer=None, scale=1.0, **config):
        self.output_layer, self.scale = layer or ColumnParallelLinear(), scale
        self.config = SimpleNamespace(**config)

    def older(self, hidden_states, labels, runtime_gather_output=None, inference_context=None):
        logits, _ = self.output_layer(hidden_states, weight=None, runtime_gather_output=None)
        return self._end(self._scaled(logits).transpose(0, 1).contiguous(), labels)

    def newer(self, hidden_states, labels, output_processor=None):
        if output_processor is not None:
            return output_processor(
                hidden_states=hidden_states,
                output_layer=self.output_layer,
                output_weight=None,
                labels=labels,
                scale_logits=self._scaled,
                config=self.config,
            )
        return self.older(hidden_states, labels)

    def _scaled(self, logits):
        return logits if self.scale == 1.0 else logits * self.scale

    def _end(self, logits, labels):
        if labels is None:
            return logits
        return vocabulary_masked(logits, labels)


@pytest.fixture(autouse=True)
def megatron(stub, monkeypatch):
    stub(LAYERS, ColumnParallelLinear=ColumnParallelLinear)

    def gather(hidden, tensor_parallel_output_grad, group):
        return torch.cat([hidden] * group.size())

    stub(MAPPINGS, gather_from_sequence_parallel_region=gather)
    made = build_manager([FusedLinearCrossEntropy()])
    for module in (output_logits, features_module):
        monkeypatch.setattr(module, "manager", lambda: made)


def hidden():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(NUM_POSITIONS, NUM_SEQUENCES, WIDTH, generator=generator)


def bound(model, way, **arguments):
    asked = {"hidden_states": hidden(), "labels": None, **arguments}
    return output_logits.defer(getattr(model, way), model, (), asked)


WAYS = pytest.mark.parametrize("way", ["older", "newer"])


@WAYS
def test_without_labels_the_model_returns_what_its_logits_would_be_made_of(way):
    model = Model()
    deferred = bound(model, way)
    head = deferred.flat_head()
    logits = (head.hidden @ head.weight.T).view(*deferred.leading_shape, VOCABULARY)
    torch.testing.assert_close(logits, getattr(model, way)(hidden(), None))
    assert head.weight is model.output_layer.weight


@WAYS
def test_with_labels_it_returns_the_losses_that_it_would_have(way):
    model = Model(scale=0.5)
    labels = torch.arange(NUM_POSITIONS * NUM_SEQUENCES).view(NUM_SEQUENCES, NUM_POSITIONS)
    expected = getattr(model, way)(hidden(), labels)
    torch.testing.assert_close(bound(model, way, labels=labels), expected)


@WAYS
@pytest.mark.parametrize("label", [-100, -1, 10**6])
def test_a_position_without_a_label_has_the_loss_that_it_would_have(way, label):
    model = Model(scale=0.5)
    labels = torch.full((NUM_SEQUENCES, NUM_POSITIONS), label)
    labels[0, 0] = 3
    expected = getattr(model, way)(hidden(), labels)
    torch.testing.assert_close(bound(model, way, labels=labels), expected)


@WAYS
def test_the_scale_of_logits_is_taken_along(way):
    assert bound(Model(scale=0.25), way).head.logit_scale == 0.25


@WAYS
def test_the_layer_is_called_with_its_hooks_and_is_itself_afterwards(way):
    model, seen = Model(), []
    model.output_layer.register_forward_pre_hook(lambda layer, inputs: seen.append(layer))
    bound(model, way)
    assert seen == [model.output_layer] and "forward" not in vars(model.output_layer)


def test_the_layer_is_itself_also_after_an_error():
    model = Model(scale="no number")
    with pytest.raises(TypeError):
        bound(model, "older")
    assert isinstance(model.output_layer(hidden())[0], torch.Tensor)


def test_a_split_vocabulary_starts_at_the_ranks_own_token():
    group = Group(size=4, rank=3)
    head = bound(Model(ColumnParallelLinear(group)), "older").head
    assert (head.vocab_start, head.tp_group) == (3 * VOCABULARY, group)


def test_a_share_of_positions_is_gathered_over_the_ranks():
    layer = ColumnParallelLinear(Group(size=2, rank=0))
    layer.sequence_parallel = True
    deferred = bound(Model(layer), "older")
    assert deferred.num_positions == 2 * NUM_POSITIONS


def test_a_stage_without_an_output_layer_is_left_alone():
    model = Model()
    model.post_process = False
    assert isinstance(bound(model, "older"), torch.Tensor)


@pytest.mark.parametrize(
    ("way", "arguments", "training"),
    [
        ("older", {"runtime_gather_output": True}, True),
        ("older", {"inference_context": object()}, False),
        ("newer", {"output_processor": lambda **parts: torch.zeros(1)}, True),
    ],
    ids=["gathered", "inference", "a processor of the caller's"],
)
def test_who_asks_for_something_else_gets_it(way, arguments, training):
    model = Model()
    model.training = training
    assert isinstance(bound(model, way, **arguments), torch.Tensor)


def test_a_value_head_is_left_alone():
    class ValueHead(torch.nn.Linear):
        def forward(self, input_, weight=None, runtime_gather_output=None):
            return super().forward(input_), None

    values = bound(Model(ValueHead(WIDTH, 1)), "older")
    assert values.shape == (NUM_SEQUENCES, NUM_POSITIONS, 1)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"mtp_num_layers": 1}, "--mtp-num-layers"),
        ({"config_logger_dir": "logs"}, "--config-logger-dir"),
        ({"defer_embedding_wgrad_compute": True}, "--defer-embedding-wgrad-compute"),
        ({"overlap_moe_expert_parallel_comm": True}, "--overlap-moe-expert-parallel-comm"),
        ({"cuda_graph_impl": "full_iteration"}, "--cuda-graph-impl"),
    ],
)
def test_a_config_that_needs_logits_is_refused_by_its_option(config, says):
    with pytest.raises(PeriodicError, match=f"Leave out {says}"):
        bound(Model(**config), "older")


def changed(**attributes):
    layer = ColumnParallelLinear(Group(size=2))
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


class Wrapped(torch.nn.Module):
    """As an adapter puts itself around a layer."""


class Capped(ColumnParallelLinear):
    """Logits with an end, as Gemma 2 has them."""

    def forward(self, *inputs, **others):
        logits, bias = super().forward(*inputs, **others)
        return 30 * torch.tanh(logits / 30), bias


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (Wrapped(), "a Wrapped"),
        (Capped(), "a Capped"),
        (changed(forward=lambda *inputs: None), "Megatron's own output layer"),
        (changed(bias=torch.nn.Parameter(torch.zeros(VOCABULARY))), "without a bias"),
        (changed(gather_output=True), "logits that stay split"),
        (changed(gtp_remat_size=2), "one in shards"),
    ],
    ids=["wrapped", "capped", "patched", "bias", "gathered", "sharded"],
)
def test_an_output_layer_that_is_not_megatrons_own_is_refused(layer, says):
    with pytest.raises(PeriodicError, match=says):
        bound(Model(layer), "older")


class Named(ColumnParallelLinear):
    """Megatron's own, under another name."""


class Fusing(ColumnParallelLinear):
    """As Megatron's LinearCrossEntropyModule, which multiplies unless it is asked for a loss."""

    __module__ = "megatron.core.transformer.linear_cross_entropy"

    def forward(self, *inputs, **others):
        return super().forward(*inputs, **others)


@WAYS
@pytest.mark.parametrize("kind", [Named, Fusing])
def test_an_output_layer_of_another_name_that_only_multiplies_is_taken(way, kind):
    assert isinstance(bound(Model(kind()), way), DeferredLogits)


@WAYS
def test_no_logits_are_made_on_the_way(way, monkeypatch):
    monkeypatch.setattr(ColumnParallelLinear, "forward", None)
    assert isinstance(bound(Model(), way), DeferredLogits)
