"""Whatever is not already markup is escaped."""

from __future__ import annotations

from miles_periodic.cli.markup import Markup, element, own_text, table


def test_text_is_escaped_and_markup_is_not():
    inner = element("b", "<i>")
    assert element("p", inner, "&") == "<p><b>&lt;i&gt;</b>&amp;</p>"


def test_attributes_are_escaped():
    assert element("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'


def test_text_joined_to_markup_loses_its_privilege():
    joined = own_text("<b></b>") + "<script>"
    assert not isinstance(joined, Markup)
    assert "&lt;script&gt;" in element("p", joined)


def test_what_is_none_is_left_out():
    assert element("p", None, [None, 0], class_=None) == "<p>0</p>"


def test_cells_carry_the_name_of_their_column():
    shown = table("Caption", ["step", "ratio"], [["0", "1.03"]], numbers={1})
    assert 'data-label="ratio"' in shown and 'class="number"' in shown
