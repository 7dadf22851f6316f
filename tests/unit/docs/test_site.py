"""The documentation site builds without a warning, links to anchors included."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
OWN_PLUGIN = (ROOT / "docs" / "own-plugin.md").read_text(encoding="utf-8")
#: What a browser would load from elsewhere while it shows a page.
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//|<link[^>]*"stylesheet"[^>]*="(?:https?:)?//'
)
EXAMPLE = sorted(p.name for p in (ROOT / "examples" / "acme").iterdir() if p.is_file())


def built(site):
    """How mkdocs ended that built the site of this repository into a folder, and what it said."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


def test_the_site_builds_without_a_warning_and_reads_without_a_network(tmp_path):
    status, said = built(tmp_path)
    assert status == 0, said
    pages = {
        p.relative_to(tmp_path).as_posix(): p.read_text("utf-8") for p in tmp_path.rglob("*.html")
    }
    assert {"index.html", "features/kv-preservation.html", "failures.html"} <= set(pages)
    assert [name for name, text in pages.items() if FETCHED.search(text)] == []


@pytest.mark.parametrize("kind", ["nav", "links"])
def test_what_the_build_checks_ends_it(kind):
    checked = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["validation"][kind]
    assert set(checked.values()) == {"warn"}
    assert {"not_found", "absolute_links"} < set(checked)


@pytest.mark.parametrize("name", EXAMPLE)
def test_the_page_about_plugins_shows_the_example_as_it_is(name):
    text = (ROOT / "examples" / "acme" / name).read_text(encoding="utf-8")
    assert f'title="acme/{name}"\n{text}```\n' in OWN_PLUGIN
