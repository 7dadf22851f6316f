"""A definition is found as a run would see it, or the error says what is not there."""

import pytest

from miles_periodic.patches.definitions import SourceError, find, parsed

SOURCE = '''\
"""A module."""
# Licence.
import os

if os.name == "nt":
    def chosen(x):
        return 1
else:
    def chosen(x):
        return 2

try:
    import fast
except ImportError:
    def slow(): return 3


class Server:
    """A server."""

    # what it does
    @property
    def port(self): return 1
# the end
'''


def code_of(target):
    module = parsed(SOURCE)
    return module.code_for_node(find(module, target))


def test_what_is_read_and_written_again_is_the_same():
    assert parsed(SOURCE).code == SOURCE


def test_of_two_definitions_the_last_one_counts():
    assert "return 2" in code_of("chosen") and "return 1" not in code_of("chosen")


def test_a_definition_in_a_handler_is_found():
    assert "return 3" in code_of("slow")


def test_a_method_is_found_in_its_class():
    assert "@property" in code_of("Server.port")


@pytest.mark.parametrize(("target", "part"), [("Server.stop", "stop"), ("Client.port", "Client")])
def test_what_is_not_there_is_named(target, part):
    with pytest.raises(SourceError, match=f"a definition of {part}\n"):
        find(parsed(SOURCE), target)


def test_what_is_no_python_is_named():
    with pytest.raises(SourceError, match="models/a.py is not Python"):
        parsed("def f(:\n", "models/a.py")
