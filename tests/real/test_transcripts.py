"""What the pages show of sessions and failures is what the code prints."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

DOCS = Path(__file__).parents[2] / "docs"


def load_maker():
    spec = importlib.util.spec_from_file_location("transcripts", DOCS / "make_transcripts.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker


MAKER = load_maker()


@pytest.mark.parametrize("name", MAKER.PAGES)
def test_a_page_shows_what_its_commands_print(name):
    assert (DOCS / name).read_text(encoding="utf-8") == MAKER.page(name), "run: make docs"


def test_every_page_with_a_session_is_run():
    with_sessions = [
        path.name for path in DOCS.rglob("*.md") if "```console\n" in path.read_text("utf-8")
    ]
    assert sorted(with_sessions) == sorted(MAKER.PAGES)
