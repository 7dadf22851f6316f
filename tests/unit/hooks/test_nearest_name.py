"""The nearest name, or all of them, or how to get one."""

import pytest

from miles_periodic.hooks.nearest_name import did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "remedy"),
    [
        ("sglnag", ["sglang", "miles"], "Write 'sglang' instead of 'sglnag'."),
        ("xyz", ["sglang", "miles"], "Choose one of: miles, sglang."),
        ("xyz", [], "Install a package that provides it; none is installed."),
    ],
)
def test_a_remedy_is_a_sentence(name, known, remedy):
    assert did_you_mean(name, known) == remedy
