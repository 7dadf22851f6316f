"""Paths below /work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.pbox.node.beneath import names_of


@pytest.mark.parametrize("path", ["a/b", "/work/a/b", "./a//b/", "/work//a/./b"])
def test_a_path_is_below_work_however_it_is_written(path):
    assert names_of(path) == ["a", "b"]


@pytest.mark.parametrize("path", ["", ".", "/", "/work", "/workshop/a", "/etc/passwd", "..",
                                  "a/../b", "/work/../etc", "a\0b"])  # fmt: skip
def test_a_path_that_is_none_below_work_is_refused(path):
    with pytest.raises(OSError):
        names_of(path)


@given(st.text(alphabet="a./\0", max_size=20))
def test_no_path_leads_upwards(path):
    try:
        names = names_of(path)
    except OSError:
        return
    assert names and not {"", ".", ".."} & set(names)
