"""A pull request's text: the upstream's template keeps its own words, and gets our parts."""

from miles_periodic.upstream.description import description

PARTS = {
    "Motivation": "because",
    "Design": "so",
    "Measurements": "fast",
    "Compatibility": "all",
    "How it was tested": "by tests",
}
TEMPLATE = """<!-- a note -->
# What does this PR do?
<!-- one line -->

## Modifications

## Benchmarking

## Checklist

- [ ] I have reviewed every line.
"""


def test_without_a_template_our_parts_are_the_headings():
    text = description("Title", PARTS, None)
    assert text.startswith("Title\n\n## Motivation\n\nbecause\n\n## Design\n\nso\n")
    assert text.endswith("## How it was tested\n\nby tests\n")


def test_parts_stand_below_the_headings_that_are_for_them():
    text = description("Title", PARTS, TEMPLATE)
    assert "# What does this PR do?\n\nbecause\n" in text
    assert "## Modifications\n\nso\n" in text
    assert "## Benchmarking\n\nfast\n" in text


def test_no_word_of_the_template_is_lost_and_no_box_is_ticked():
    text = description("Title", PARTS, TEMPLATE)
    assert all(line in text for line in TEMPLATE.splitlines())
    assert "[x]" not in text


def test_parts_without_a_heading_follow_the_last_that_has_one_and_none_stands_twice():
    text = description("Title", PARTS, TEMPLATE)
    assert text.index("\nfast\n") < text.index("## Compatibility") < text.index("## Checklist")
    assert all(text.count(f"\n{part}\n") == 1 for part in PARTS.values())


def test_a_template_without_any_heading_for_us_comes_first():
    text = description("Title", PARTS, "Thank you for helping.\n")
    assert text.startswith("Title\n\nThank you for helping.\n\n## Motivation")
