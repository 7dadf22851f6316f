"""Groups that ask for NCCL get gloo, and nothing else about them changes."""

from types import SimpleNamespace

import pytest
from miles_periodic.compat.cpu import gloo


def c10d_with(**functions):
    return SimpleNamespace(__name__="c10d", Backend=str, **functions)


def current_helper(size, rank, ranks, backend, store, group_name, backend_options=None):
    return backend, backend_options


def older_helper(size, rank, ranks, backend, store, group_name, pg_options=None):
    return backend, pg_options


@pytest.mark.parametrize(("asked", "given"), [("nccl", "gloo"), ("gloo", "gloo"), ("mpi", "mpi")])
def test_only_nccl_becomes_gloo(asked, given):
    c10d = c10d_with(_new_process_group_helper=current_helper)
    gloo.groups_over_gloo(c10d)
    assert c10d._new_process_group_helper(2, 0, [0, 1], asked, None, "g")[0] == given


def test_options_of_nccl_are_not_given_to_gloo():
    c10d = c10d_with(_new_process_group_helper=current_helper)
    gloo.groups_over_gloo(c10d)
    made = c10d._new_process_group_helper(2, 0, [], "nccl", None, "g", pg_options="nccl's")
    assert made == ("gloo", None)


def test_the_older_name_of_the_options_is_understood_by_a_newer_torch():
    c10d = c10d_with(_new_process_group_helper=current_helper)
    gloo.groups_over_gloo(c10d)
    made = c10d._new_process_group_helper(2, 0, [], "gloo", None, "g", pg_options="gloo's")
    assert made == ("gloo", "gloo's")


def test_an_older_torch_keeps_its_own_name():
    c10d = c10d_with(_new_process_group_helper=older_helper)
    gloo.groups_over_gloo(c10d)
    made = c10d._new_process_group_helper(2, 0, [], "gloo", None, "g", pg_options="gloo's")
    assert made == ("gloo", "gloo's")


class Sizes:
    """A tensor of sizes, as far as the stand-in sees it."""

    def tolist(self):
        return [1, 2]


@pytest.mark.parametrize(("sizes", "taken"), [(Sizes(), [1, 2]), ([3], [3]), (None, None)])
def test_split_sizes_arrive_as_lists(sizes, taken):
    def native(output, input, output_split_sizes, input_split_sizes, group=None):
        return output_split_sizes, input_split_sizes, group

    c10d = c10d_with(all_to_all_single=native)
    gloo.split_sizes_as_lists(c10d)
    assert c10d.all_to_all_single("o", "i", sizes, sizes, group="g") == (taken, taken, "g")
