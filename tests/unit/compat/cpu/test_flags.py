"""The Miles command line of a CPU run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from miles_periodic.compat.cpu.flags import CpuRun, miles_flags, prompts_file

RUN = CpuRun()


def value_of(flag: str, run: CpuRun = RUN) -> str:
    flags = miles_flags(Path("/m"), Path("/w"), run)
    return flags[flags.index(flag) + 1]


@pytest.mark.parametrize("check", ["--ci-test", "--check-weight-update-equal"])
def test_miles_own_checks_are_on(check):
    assert check in miles_flags(Path("/m"), Path("/w"))


def test_no_flag_is_given_twice():
    flags = [flag for flag in miles_flags(Path("/m"), Path("/w")) if flag.startswith("--")]
    assert len(flags) == len(set(flags))


def test_every_word_is_text_without_spaces_but_the_trainers_variables():
    flags = miles_flags(Path("/m"), Path("/w"))
    assert [flag for flag in flags if " " in flag] == [value_of("--train-env-vars")]


def test_train_actors_are_told_that_they_are():
    assert json.loads(value_of("--train-env-vars")) == {"MILES_PERIODIC_CPU_TRAINER": "1"}


def test_weights_are_updated_in_place():
    assert value_of("--pause-generation-mode") == "in_place"


def test_routes_come_through_miles_own_router():
    assert "--use-miles-router" in miles_flags(Path("/m"), Path("/w"))


def test_one_sample_is_in_flight_at_a_time():
    assert value_of("--sglang-server-concurrency") == "1"


def test_a_rollout_is_one_optimizer_step():
    run = replace(RUN, num_prompts=3, samples_per_prompt=8)
    assert value_of("--global-batch-size", run) == "24"


def test_actors_and_engines_each_take_a_logical_gpu():
    assert replace(RUN, num_actors=2, num_engines=1).num_gpus == 3


def test_prompts_are_read_from_the_work_folder():
    assert value_of("--prompt-data") == str(prompts_file(Path("/w")))


def test_the_game_is_found_by_its_dotted_path():
    import importlib

    module, _, function = value_of("--custom-generate-function-path").rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_a_run_saves_goes_on_and_trains_on_recorded_rollouts_only_where_it_is_told_to():
    options = ("--save", "--save-interval", "--load", "--load-debug-rollout-data")
    assert not set(options) & set(miles_flags(Path("/m"), Path("/w")))
    run = CpuRun(save_interval=2, load=Path("/before"), recorded=Path("/other"))
    found = [value_of(option, run) for option in options]
    assert found == ["/w/checkpoints", "2", "/before", "/other/rollout/{rollout_id}.pt"]
