"""One cut for every field that has a value per token."""

from types import SimpleNamespace

import numpy as np
import pytest

from miles_periodic.compat.bindings.per_token import keep_response, truncate


class Tokenizer:
    def decode(self, tokens):
        return " ".join(map(str, tokens))


def sample(**fields):
    """Three prompt tokens and four of a response."""
    return SimpleNamespace(
        **{
            "tokens": [1, 2, 3, 4, 5, 6, 7],
            "response_length": 4,
            "response": "4 5 6 7",
            "rollout_log_probs": [-4.0, -5.0, -6.0, -7.0],
            "loss_mask": [1, 0, 1, 1],
            "rollout_routed_experts": np.arange(6).reshape(6, 1, 1),
            "metadata": {},
            **fields,
        }
    )


def test_tokens_log_probabilities_mask_and_routes_are_cut_alike():
    cut = sample()
    keep_response(cut, 2, Tokenizer())
    assert (cut.tokens, cut.response, cut.response_length) == ([1, 2, 3, 4, 5], "4 5", 2)
    assert (cut.rollout_log_probs, cut.loss_mask) == ([-4.0, -5.0], [1, 0])
    assert cut.rollout_routed_experts.ravel().tolist() == [0, 1, 2, 3]


def test_nothing_of_a_response_may_be_kept():
    cut = sample()
    keep_response(cut, 0, Tokenizer())
    assert (cut.tokens, cut.response, cut.loss_mask) == ([1, 2, 3], "", [])
    assert len(cut.rollout_routed_experts) == 2


def test_fields_of_newer_trees_are_cut_too():
    cut = sample(teacher_log_probs=[1.0] * 4, metadata={"opd_student_top_logprobs": [0] * 4})
    keep_response(cut, 1, Tokenizer())
    assert len(cut.teacher_log_probs) == len(cut.metadata["opd_student_top_logprobs"]) == 1


def test_fields_that_are_not_set_stay_so():
    cut = sample(rollout_log_probs=None, loss_mask=None, metadata=None)
    keep_response(cut, 1, Tokenizer())
    assert cut.rollout_log_probs is None and not hasattr(cut, "teacher_log_probs")


def test_routes_that_are_shorter_already_are_not_cut_twice():
    cut = sample(rollout_routed_experts=np.arange(4).reshape(4, 1, 1))
    keep_response(cut, 2, Tokenizer())
    assert len(cut.rollout_routed_experts) == 4


def test_more_than_there_is_cannot_be_kept():
    with pytest.raises(ValueError, match="a response of 4 tokens has no 5"):
        keep_response(sample(), 5, Tokenizer())


def test_miles_own_truncation_finds_every_field_cut_and_sets_the_status():
    def upstream(sample, keep_tokens, tokenizer):
        assert len(sample.loss_mask) == keep_tokens
        sample.status = "truncated"

    cut = sample()
    truncate(upstream, None, (cut,), {"keep_tokens": 3, "tokenizer": Tokenizer()})
    assert cut.status == "truncated" and len(cut.rollout_routed_experts) == len(cut.tokens) - 1
