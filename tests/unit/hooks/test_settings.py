"""Settings: command line over environment over file, and nothing wrong goes unseen."""

from typing import Literal

import pytest
from pydantic import ByteSize, Field, model_validator

from miles_periodic.hooks import Feature, FeatureSettings, PeriodicError
from miles_periodic.hooks.settings import resolve


class Settings(FeatureSettings):
    compact: bool = True
    rows: int = Field(default=4, ge=1)
    label: str = "none"
    sizes: list[int] = []
    limit: int | None = None

    @model_validator(mode="after")
    def _limit_above_rows(self):
        if self.limit is not None and self.limit < self.rows:
            raise ValueError("limit is below rows")
        return self


class Replay(Feature):
    slug = "delta-router-replay"
    settings_model = Settings


class Bounds(FeatureSettings):
    unit: Literal["bytes", "rows"] = "bytes"
    most: ByteSize = ByteSize(1 << 30)
    least: ByteSize | None = None

    @model_validator(mode="after")
    def _least_below_most(self):
        if self.least is not None and self.least > self.most:
            raise ValueError("least is over most: change one.")
        return self


class Bounded(Feature):
    slug = "bounded"
    settings_model = Bounds


class Other(Feature):
    slug = "other"


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


def settings(**sources):
    return resolve((Replay,), known=(Replay, Other), **sources)["delta-router-replay"]


def test_without_sources_the_defaults_hold():
    assert settings() == Settings()


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(file):
    path = file("[delta-router-replay]\nrows = 1\nlabel = 'file'\ncompact = false\n")
    environment = {
        "MILES_PERIODIC_SET__DELTA_ROUTER_REPLAY__ROWS": "2",
        "MILES_PERIODIC_SET__DELTA_ROUTER_REPLAY__LABEL": "environment",
        "PATH": "/bin",
    }
    found = settings(file=path, environment=environment, assignments=["delta-router-replay.rows=3"])
    assert (found.rows, found.label, found.compact) == (3, "environment", False)


def test_the_last_of_two_assignments_wins():
    texts = ["delta-router-replay.rows=3", "delta-router-replay.rows=5"]
    assert settings(assignments=texts).rows == 5


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("compact=false", "compact", False),
        ("sizes=[1, 2]", "sizes", [1, 2]),
        ("label=a=b", "label", "a=b"),
        ("label=12", "label", "12"),
        ("label=true", "label", "true"),
        ("label=2026-01-01", "label", "2026-01-01"),
        ("label=5#6", "label", "5#6"),
        ("label=", "label", ""),
    ],
)
def test_a_typed_value_fits_its_setting(text, field, value):
    assert getattr(settings(assignments=[f"delta-router-replay.{text}"]), field) == value


def test_a_table_of_a_feature_that_is_off_is_allowed(file):
    assert settings(file=file("[other]\n")) == Settings()


WRONG_FILES = {
    "[delta-router-reply]\nrows = 1\n": "Write 'delta-router-replay'",
    "[delta-router-replay]\nrow = 1\n": "Write 'rows' instead of 'row'.",
    "rows = 1\n": "Put it into its feature's table",
    "[delta-router-replay\n": "Give --plugin-config a TOML file",
    "[delta-router-replay]\nrows = 0\n": "Set delta-router-replay.rows to a valid value.",
    "[delta-router-replay]\nrows = 'many'\n": "Set delta-router-replay.rows to a valid value.",
    "[delta-router-replay]\nlimit = 1\n": "Set delta-router-replay to a valid value.",
}


@pytest.mark.parametrize(("text", "remedy"), WRONG_FILES.items())
def test_a_wrong_file_says_what_to_change(file, text, remedy):
    with pytest.raises(PeriodicError) as error:
        settings(file=file(text))
    assert remedy in error.value.parts["remedy"]


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(PeriodicError, match="cannot be read"):
        settings(file=tmp_path / name)


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PeriodicError, match="cannot be read"):
        settings(file=path)


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("DELTA_ROUTER_REPLY__ROWS", "Write 'DELTA_ROUTER_REPLAY'"),
        ("DELTA_ROUTER_REPLAY__ROWZ", "Write 'rows'"),
        ("DELTA_ROUTER_REPLAY", "Choose one of"),
    ],
)
def test_a_wrong_variable_says_what_to_change(variable, remedy):
    with pytest.raises(PeriodicError) as error:
        settings(environment={f"MILES_PERIODIC_SET__{variable}": "1"})
    assert remedy in error.value.parts["remedy"]


@pytest.mark.parametrize("text", ["rows=1", "delta-router-replay.rows", ".rows=1", "a.=1", ""])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(PeriodicError, match="Write it as FEATURE.KEY=VALUE"):
        settings(assignments=[text])


def test_a_wrong_value_names_what_was_found_and_what_is_expected():
    with pytest.raises(PeriodicError) as error:
        settings(assignments=["delta-router-replay.rows=few"])
    assert error.value.parts["found"] == "'few'"
    assert "int" in error.value.parts["expected"]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("bounded.unit=tokens", "'bytes' or 'rows'"),
        ("bounded.most=much", "bytes, such as 1GiB"),
        ("bounded.least=little", "bytes, such as 1GiB"),
    ],
)
def test_a_wrong_value_says_what_may_be_written(assignment, expected):
    with pytest.raises(PeriodicError) as error:
        resolve((Bounded,), known=(Bounded,), assignments=[assignment])
    assert error.value.parts["expected"] == expected


def test_a_refusal_of_the_feature_s_own_ends_as_a_sentence_and_says_nothing_of_pydantic():
    with pytest.raises(PeriodicError) as error:
        resolve((Bounded,), known=(Bounded,), assignments=["bounded.least=2GiB"])
    first_line, *_ = str(error.value).splitlines()
    assert first_line == "bounded cannot be {'least': '2GiB'}: least is over most: change one."


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        settings().rows = 9
