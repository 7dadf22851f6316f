import json

import pytest
import torch
from megatron_states import write_source
from small_models import CONFIG, same, state, written
from typer.testing import CliRunner

from miles_periodic.cli import commands
from miles_periodic.cli.main import app
from miles_periodic.hooks.errors import PeriodicError


@pytest.fixture
def run(tmp_path):
    """Run the command on a small checkpoint; what it printed."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_source(tmp_path / "source", state(CONFIG), groups=2)
    commands.add_to(app)

    def command(*options):
        places = [str(tmp_path / "source"), str(tmp_path / "target")]
        line = ["reshard", *places, "--config", str(tmp_path / "model"), *options]
        result = CliRunner().invoke(app, line)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return command


def test_a_checkpoint_is_converted_and_a_sentence_says_so(run, tmp_path):
    result = run("--verify")
    assert same(written(tmp_path / "target"), state(CONFIG))
    assert result.exit_code == 0
    assert "tensors" in result.stdout and result.stdout.endswith("; verified\n")
    assert result.stderr == ""


def test_json_is_all_that_is_printed_for_machines(run):
    result = run("--json")
    report = json.loads(result.stdout)
    assert (report["family"], report["num_tensors"]) == ("qwen3-moe", len(state(CONFIG)))
    assert result.stderr == ""


def test_a_change_to_the_config_is_read_as_json_or_as_text(run, tmp_path):
    run("--set", "head_dim=4", "--set", "dtype=float32")
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    assert (config["head_dim"], config["dtype"]) == (4, "float32")
    assert {tensor.dtype for tensor in written(tmp_path / "target").values()} == {torch.float32}


def test_a_change_without_a_value_is_refused(run):
    with pytest.raises(PeriodicError, match="(?s)no change to a config.*KEY=VALUE"):
        run("--set", "head_dim")


def test_an_error_leaves_no_target(run, tmp_path):
    with pytest.raises(PeriodicError, match="No family"):
        run("--model-type", "qwen9")
    assert not (tmp_path / "target").exists()
