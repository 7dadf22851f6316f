"""The game: a calculator, unequal rollouts, a reward with a spread."""

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

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


@pytest.mark.parametrize("left", [7, 96, 10**30])
@pytest.mark.parametrize("word", ["plus", "minus", "times"])
def test_the_calculator_as_a_program_prints_what_it_says(left, word):
    done = subprocess.run(
        [sys.executable, "-S", "-c", game.program(left, word, 58)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == game.calculate(left, word, 58)


def test_a_tool_that_fails_is_no_answer(monkeypatch):
    async def failing(name, parameters):
        raise OSError("gone")

    misc = SimpleNamespace(load_function=lambda path: failing)
    monkeypatch.setitem(sys.modules, "miles.utils.misc", misc)
    noted = []
    monkeypatch.setattr(game, "note", lambda kind, **parts: noted.append(parts))
    arguments = SimpleNamespace(generate_execute_tool_function_path="a.path")
    with pytest.raises(OSError, match="gone"):
        asyncio.run(game.answer(arguments, 1, "plus", 2))
    assert noted == [{"failure": "gone"}]


def test_a_question_carries_its_answer():
    assert game.question_and_label(0) == ("What is 11 plus 5?", "16")


def test_prompts_are_lines_that_miles_reads(tmp_path):
    game.write_prompts(tmp_path / "prompts.jsonl", 3)
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [["label", "prompt"]] * 3


def test_the_tools_function_is_written_as_miles_reads_it(tmp_path):
    game.write_tools(tmp_path / "tools.yaml", "some.where.execute")
    read = yaml.safe_load((tmp_path / "tools.yaml").read_text())
    assert read == {"generate_execute_tool_function_path": "some.where.execute"}


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
