"""What `bench checkpoint-staging` reports, and what it refuses to measure."""

import pytest

from miles_periodic.cli.bench import checkpoint_staging as bench
from miles_periodic.hooks import PeriodicError


def test_a_row_has_the_median_time_and_the_most_memory():
    measured = [
        {"seconds": seconds, "host_bytes": mebibytes << 20, "files": 2}
        for seconds, mebibytes in ((3.0, 10), (1.0, 30), (2.0, 20))
    ]
    row = bench._row(bench.STOCK, measured)
    assert row == {"save": bench.STOCK, "host_MiB": 30, "seconds": 2.0, "files": 2}


def test_a_megatron_of_an_unknown_shape_is_not_measured(tmp_path):
    strategies = tmp_path / "megatron" / "core" / "dist_checkpointing" / "strategies"
    strategies.mkdir(parents=True)
    (strategies / "base.py").write_text("class AsyncSaveShardedStrategy:\n    pass\n")
    with pytest.raises(PeriodicError, match="Install miles-rl 0.0.2, or give --megatron"):
        bench.measure(tmp_path, 16, 1)


@pytest.mark.parametrize("held, status", [(64, 0), (200, 1)])
def test_memory_beyond_the_bound_is_a_failure(monkeypatch, held, status):
    rows = [
        {"save": bench.STOCK, "host_MiB": 1024, "seconds": 1.0, "files": 1},
        {"save": bench.COPIED, "host_MiB": held, "seconds": 1.0, "files": 1},
    ]
    monkeypatch.setattr(bench, "measure", lambda *asked: {"rows": rows})
    if status == 0:
        bench.checkpoint_staging_command(None, 1024, 64, True)
    else:
        with pytest.raises(bench.typer.Exit) as caught:
            bench.checkpoint_staging_command(None, 1024, 64, True)
        assert caught.value.exit_code == status
