"""The game: a calculator, unequal rollouts, a reward with a spread."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from miles_periodic.compat.cpu import game


@pytest.mark.parametrize(
    ("written", "call"),
    [
        ("I take 6 and 7", (6, "times", 7)),
        ("only 6 here", (6, "times", 11)),
        ("nothing", (11, "minus", 5)),
    ],
)
def test_the_calculator_takes_the_models_numbers_before_the_questions(written, call):
    assert game.tool_call(written, "What is 11 plus 5?", turn=0) == call


def test_the_calculator_calculates():
    assert game.calculate(96, "minus", 58) == "38"


def test_a_number_that_is_too_large_is_an_answer_and_no_error():
    assert game.calculate(10**30, "times", 2) == "too large"


def test_a_question_carries_its_answer():
    assert game.question_and_label(0) == ("What is 11 plus 5?", "16")


def test_prompts_are_lines_that_miles_reads(tmp_path):
    game.write_prompts(tmp_path / "prompts.jsonl", 3)
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [["label", "prompt"]] * 3


def test_every_sample_has_at_least_three_turns():
    assert min(game.plan_of(index)[0] for index in range(100)) >= 3


def test_rollouts_have_unequal_lengths():
    totals = [turns * tokens for turns, tokens in map(game.plan_of, range(16))]
    assert max(totals) > 4 * min(totals)


def test_an_observation_is_in_the_tokens_and_not_in_the_loss():
    sample = SimpleNamespace(
        tokens=[1, 2, 3],
        response="ab",
        response_length=2,
        rollout_log_probs=[-0.5, -0.25],
        loss_mask=[1, 1],
    )
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: [7, 8])
    game.observe(sample, tokenizer, " 42")
    assert sample.tokens == [1, 2, 3, 7, 8]
    assert (sample.response, sample.response_length) == ("ab 42", 4)
    assert sample.loss_mask == [1, 1, 0, 0]
    assert sample.rollout_log_probs == [-0.5, -0.25, 0.0, 0.0]


def test_only_what_the_model_wrote_is_rewarded():
    sample = SimpleNamespace(tokens=[9, 2, 4, 5, 6], response_length=4, loss_mask=[1, 0, 1, 1])
    assert asyncio.run(game.reward(None, sample)) == pytest.approx(2 / 3)


def test_a_sample_without_written_tokens_is_worth_nothing():
    assert game.share_of_even([2, 4], [0, 0]) == 0.0
