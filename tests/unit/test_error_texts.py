"""Every error that a user sees is a sentence, and ends with what to change."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("cli", "compat", "hooks", "plugins")
TEXT = "text known at run time only"


def text(node):
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(text(part) for part in parts)
        case ast.BinOp(left=left, right=right):
            return text(left) + text(right)
    return TEXT


def errors():
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                if node.func.id in ("PeriodicError", "RollCallError"):
                    remedies = [k.value for k in node.keywords if k.arg == "remedy"]
                    yield path, node.lineno, text(node.args[0]), remedies
                elif node.func.id == "Unsupported":
                    yield path, node.lineno, f"{text(node.args[0])}.", [node.args[1]]


@pytest.mark.parametrize(
    ("problem", "remedies"),
    [pytest.param(*rest, id=f"{path.relative_to(ROOT)}:{line}") for path, line, *rest in errors()],
)
def test_an_error_is_a_sentence_with_a_remedy(problem, remedies):
    (remedy,) = map(text, remedies)
    assert problem.endswith(".") and not problem.endswith("..")
    assert remedy == TEXT or remedy.endswith((".", TEXT))
    assert remedy == TEXT or remedy.startswith(TEXT) or remedy[0].isupper()
