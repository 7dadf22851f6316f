import pytest

from miles_periodic.cli.bench import reshard as bench


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    config = bench.model(0.01, layers=2, experts=8)
    return bench.measure(tmp_path_factory.mktemp("bench"), config, ["copy", "reshard"])


def test_every_way_has_a_row_with_its_time_and_memory(result):
    assert [row["way"] for row in result["rows"]] == ["copy", "reshard"]
    assert all(row["seconds"] > 0 and row["peak_bytes"] >= 0 for row in result["rows"])
    assert result["rows"][0]["ratio"] == 1


def test_the_model_that_is_measured_has_more_than_four_thousand_expert_tensors():
    config = bench.model(8.5)
    assert 3 * config["num_hidden_layers"] * config["num_experts"] > 4000


def test_nearly_every_byte_is_read_in_place(result):
    assert 1 < result["copies"] < 1.3


def test_every_tensor_of_the_checkpoint_is_converted(result):
    assert result["tensors"] == 3 + 2 * (9 + 3 * 8)


@pytest.mark.parametrize(
    ("ratio", "peak_bytes", "met"), [(1.3, 100, True), (1.31, 1, False), (1.0, 101, False)]
)
def test_a_goal_is_missed_by_time_or_by_memory(ratio, peak_bytes, met):
    row = {"way": "reshard", "ratio": ratio, "peak_bytes": peak_bytes}
    assert bench.meets_goals({"rows": [row], "worker_bound_bytes": 100}) is met
