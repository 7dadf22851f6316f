"""Pictures of measured times: all of them inside, each with its quantiles and its goal."""

from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.cli.bench.plots import WIDTH, Row, draw, quantiles

SVG = "{http://www.w3.org/2000/svg}"
times = st.floats(min_value=1e-3, max_value=1e6, allow_nan=False)


def of_class(picture, tag, class_):
    found = ElementTree.fromstring(picture).iter(SVG + tag)
    return [each for each in found if each.get("class") == class_]


@settings(max_examples=60, deadline=None)
@given(st.lists(times, min_size=1, max_size=30), st.none() | times)
def test_every_measurement_is_a_dot_inside_the_picture(values, goal):
    picture = draw("Times", [("all", [Row("one", values, goal)])])
    dots = of_class(picture, "circle", "dot")
    assert len(dots) == len(values) + 1  # and the legend's
    assert all(0 <= float(dot.get("cx")) <= WIDTH for dot in dots)
    assert all(0 <= float(bar.get("x")) <= WIDTH or bar.get("x") == "-6"
               for bar in of_class(picture, "rect", "bar"))  # fmt: skip


def test_a_row_says_its_quantiles():
    picture = draw("Times", [("all", [Row("one", [float(n) for n in range(1, 101)])])])
    assert "50.5 / 90.0 / 99.0" in picture


def test_a_goal_has_its_mark_and_its_words_and_no_goal_has_neither():
    with_goal = draw("Times", [("all", [Row("one", [1.0], 5.0), Row("two", [2.0])])])
    without = draw("Times", [("all", [Row("one", [1.0])])])
    assert len(of_class(with_goal, "path", "goal")) == 2 and "goal of p50" in with_goal
    assert of_class(without, "path", "goal") == [] and "goal of p50" not in without


def test_a_longer_time_stands_further_right():
    picture = draw("Times", [("all", [Row("one", [1.0, 3.0, 9.0])])])
    first, second, third, _ = [float(dot.get("cx")) for dot in of_class(picture, "circle", "dot")]
    assert first < second < third and abs((third - second) - (second - first)) < 0.2


def test_a_name_is_text():
    picture = draw("<b>", [("&", [Row("<script>", [1.0])])])
    assert "<script>" not in picture and ElementTree.fromstring(picture) is not None


def test_quantiles_are_the_median_and_the_smallest_values_that_so_many_do_not_exceed():
    assert quantiles([float(value) for value in range(100, 0, -1)]) == (50.5, 90.0, 99.0)
    assert quantiles([3.0]) == (3.0, 3.0, 3.0)
