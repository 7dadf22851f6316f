"""Each edit changes what it names and nothing else, or says what is not there."""

import pytest

from miles_periodic.patches import edits
from miles_periodic.patches.edits import EditError, parsed

SOURCE = '''\
"""A module."""
# Licence.
import os
from a import b  # kept

if os.name == "nt":
    def chosen(x):
        return 1
else:
    def chosen(x):
        return 2


class Server:
    """A server."""

    # what it does
    @property
    def port(self): return 1

    def start(self, host, *, retries=3):
        # why
        self.open(host,
                  retries=retries)
        if  retries:
            self.log( host )
        return self


def run(a, b):
    return Server().start(a).port + b
# the end
'''


def edited(function, *arguments, source=SOURCE):
    return function(parsed(source), *arguments).code


def changed(after, before=SOURCE):
    """Lines that are new, and lines that are gone."""
    now, then = after.splitlines(), before.splitlines()
    return [line for line in now if line not in then], [line for line in then if line not in now]


def test_what_is_read_and_written_again_is_the_same():
    assert parsed(SOURCE).code == SOURCE


def test_an_import_goes_behind_the_last_one_and_only_once():
    once = edited(edits.add_import, "from c import d")
    assert once == SOURCE.replace("# kept\n", "# kept\nfrom c import d\n")
    assert edited(edits.add_import, "from  c import d", source=once) == once


def test_an_import_goes_behind_the_docstring_of_a_module_without_any():
    after = edited(edits.add_import, "import os", source='"""Doc."""\nx = 1\n')
    assert after == '"""Doc."""\nimport os\nx = 1\n'


def test_a_function_goes_behind_another_with_two_blank_lines():
    after = edited(edits.insert_after, "Server", "# new\ndef more():\n    return 3")
    assert "        return self\n\n\n# new\ndef more():\n    return 3\n\n\ndef run" in after


def test_a_method_goes_behind_another_with_one_blank_line():
    after = edited(edits.insert_after, "Server.port", "def host(self):\n    return 'h'")
    expected = "return 1\n\n    def host(self):\n        return 'h'\n\n    def start"
    assert expected in after


def test_a_function_goes_before_another_which_keeps_its_comment():
    after = edited(edits.insert_before, "Server.port", "def host(self):\n    return 'h'")
    expected = (
        '"""\n\n    def host(self):\n        return \'h\'\n\n    # what it does\n    @property'
    )
    assert expected in after


def test_of_two_definitions_the_last_one_counts():
    after = edited(edits.replace_statement, "chosen", "return 2", "return 22")
    assert changed(after) == (["        return 22"], ["        return 2"])


def test_a_decorator_goes_above_the_others():
    after = edited(edits.add_decorator, "Server.port", "watched(1)")
    assert "    # what it does\n    @watched(1)\n    @property\n" in after


def test_a_parameter_is_keyword_only_where_the_last_one_is():
    after = edited(edits.add_parameter, "Server.start", "limit: int = 0")
    assert "def start(self, host, *, retries=3, limit: int = 0):" in after
    assert "def run(a, b, c=1):" in edited(edits.add_parameter, "run", "c=1")


def test_a_parameter_that_is_there_is_refused():
    with pytest.raises(EditError, match="no parameter retries"):
        edited(edits.add_parameter, "Server.start", "retries=1")


def test_an_argument_is_laid_out_as_its_neighbours_are():
    after = edited(edits.add_argument, "Server.start", "self.open", "limit=0")
    assert "                  retries=retries, limit=0)\n" in after or (
        "                  retries=retries,\n                  limit=0)\n" in after
    )
    below = "def f():\n    g(\n        a,\n        b=1,\n    )\n"
    after = edited(edits.add_argument, "f", "g", "c=2", source=below)
    assert after == below.replace("b=1,\n", "b=1,\n        c=2,\n")


def test_an_argument_of_a_call_without_any_stands_alone():
    assert "Server(x=1).start(a)" in edited(edits.add_argument, "run", "Server", "x=1")


def test_a_statement_is_found_by_its_syntax_and_keeps_its_comment():
    after = edited(
        edits.replace_statement, "Server.start", "self.open(host, retries=retries)", "self.close()"
    )
    assert "        # why\n        self.close()\n        if  retries:" in after


def test_a_statement_is_wrapped_where_it_stands():
    after = edited(edits.wrap_statement, "Server.start", "self.log(host)", "with quiet():")
    assert (
        "        if  retries:\n            with quiet():\n                self.log( host )\n"
        in after
    )


def test_statements_go_behind_another_one():
    after = edited(edits.insert_after_statement, "Server.start", "self.log(host)", "a = 1\nb = 2")
    assert "self.log( host )\n            a = 1\n            b = 2\n        return self" in after


def test_an_expression_is_exchanged():
    after = edited(edits.replace_expression, "run", "Server().start(a)", "made(a)")
    assert "    return made(a).port + b\n# the end\n" in after


def test_code_at_the_end_stands_behind_the_last_comment():
    assert edited(edits.append, "\n\nmore()\n") == SOURCE + "\n\nmore()\n"


def test_code_at_the_end_has_the_line_ends_of_the_file():
    windows = SOURCE.replace("\n", "\r\n")
    after = edits.append(parsed(windows.encode()), "\nmore()\n").bytes
    assert after == (windows + "\r\nmore()\r\n").encode()


@pytest.mark.parametrize(
    ("edit", "arguments", "expected"),
    [
        (edits.insert_after, ("Server.stop", "x = 1"), "a definition of stop"),
        (edits.replace_statement, ("run", "return 0", "pass"), "one statement return 0"),
        (edits.add_argument, ("run", "absent", "x=1"), "one call of absent"),
        (edits.replace_expression, ("run", "c + d", "e"), r"one expression c \+ d"),
    ],
)
def test_what_is_not_there_is_named(edit, arguments, expected):
    with pytest.raises(EditError, match=expected):
        edited(edit, *arguments)


def test_what_is_no_python_is_named():
    with pytest.raises(EditError, match="models/a.py is not Python"):
        parsed("def f(:\n", "models/a.py")
