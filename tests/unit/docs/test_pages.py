"""Pages that are made from the code are fresh; links and command lines in all pages are real."""

import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer

from miles_periodic.cli import commands
from miles_periodic.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("plugins/*/*.md")),
]
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}


def maker(name):
    """The module that makes some pages."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"make_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["hooks", "cli", "compatibility"])
def test_a_page_that_is_made_says_what_the_code_says(name):
    assert TEXTS[f"docs/{name}.md"] == maker(f"{name}_page").page(), "run: make docs"


def test_the_pages_of_features_say_what_the_features_declare():
    made = {f"docs/{name}": text for name, text in maker("feature_pages").pages().items()}
    assert {name: text for name, text in TEXTS.items() if "features/" in name} == made, "make docs"


def test_a_feature_without_measurements_says_so():
    assert maker("feature_pages")._numbers("of-nobody") == "No measurement of it is on file."


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_to_a_file_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", TEXTS[page])
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def command_lines(text):
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    spans = "\n".join(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))
    return re.findall(r"^(?:miles|periodic) .+$", f"{blocks}\n{spans}", re.MULTILINE)


@cache
def whole_command():
    """The command line with all of its commands, which would be added again by every call."""
    commands.add_to(app)
    return typer.main.get_command(app)


LINES = sorted({(page, line) for page, text in TEXTS.items() for line in command_lines(text)})


@pytest.mark.parametrize(("page", "line"), LINES)
def test_every_command_line_in_a_page_names_commands_and_options_that_exist(page, line):
    command = whole_command()
    words = iter(shlex.split(line, comments=True)[1:])
    for word in words:
        if word == "--":
            break  # what follows is somebody else's command
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif word.startswith("--"):
            (option,) = [p for p in command.params if word in p.opts]
            if not option.is_flag:
                next(words)
        elif takes_words(command):
            continue
        else:
            # A script, whose arguments are its own, or an argument as the commands' page has it.
            assert word.endswith((".py", "SCRIPT")) or word == "train" or word[0] in "[…"
            return


def takes_words(command):
    is_leaf = not getattr(command, "commands", {})
    return is_leaf and any(part.param_type_name == "argument" for part in command.params)


def test_make_targets_that_pages_name_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {t for text in TEXTS.values() for t in re.findall(r"^`?make ([a-z]+)", text, re.M)}
    named |= {t for text in TEXTS.values() for t in re.findall(r"`make ([a-z]+)`", text)}
    assert named and named <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
