"""The stand-ins of a CPU with two ranks refuse an SGLang that has not what they stand in for."""

from types import ModuleType, SimpleNamespace

import pytest

from miles_periodic.compat.cpu import wide_expert_parallel as wide
from miles_periodic.hooks.errors import PeriodicError

OWN = [stand_in for stand_in in wide.STAND_INS if stand_in.name.startswith("wide-")]


@pytest.mark.parametrize("stand_in", OWN, ids=lambda stand_in: stand_in.name)
def test_a_module_without_the_target_is_refused(stand_in):
    with pytest.raises(PeriodicError, match="nothing to stand in for"):
        stand_in.apply(ModuleType(stand_in.module))


@pytest.mark.parametrize("stand_in", OWN, ids=lambda stand_in: stand_in.name)
def test_a_stand_in_says_what_fails_and_what_triggers_it(stand_in):
    explanation = stand_in.apply.__doc__.replace("\n", " ")
    assert all(part in explanation for part in ("Symptom:", "Trigger:", "Safe:"))


class Backend:
    def init_forward_metadata(self):
        pass


def test_an_attention_backend_gets_the_length_that_idle_ranks_ask_for():
    wide.fill_idle_lengths(SimpleNamespace(__name__="m", TorchNativeAttnBackend=Backend))
    assert Backend().get_cpu_graph_seq_len_fill_value() == 1


def test_experts_of_this_rank_only_are_left_to_the_native_function():
    class Ids:
        def __init__(self, *values):
            self.values = values

        def __lt__(self, bound):
            return SimpleNamespace(any=lambda: any(value < bound for value in self.values))

    native = wide._skipping_absent(lambda *arguments: "native")
    assert native(None, [0.0], (None, Ids(0, 3), None), None) == "native"
