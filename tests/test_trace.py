"""From emitted lines back to templates: every line of every module that is checked in."""

import re
from pathlib import Path

import pytest

from rpagen.emit import header, render, resources, trace
from rpagen.emit.format import formatted
from rpagen.emit.trace import Place
from rpagen.spec import expand

ROOT = Path(__file__).parent.parent
CATALOGUE = expand.load_catalogue(ROOT / "specs")
MODULES = {module.path: module for module in render.modules(CATALOGUE)}


def lines_and_places(path: str) -> list[tuple[str, Place | None]]:
    body = header.split((ROOT / "generated" / path).read_text())[1]
    places = trace.places_of(body, trace.traced(MODULES[path], CATALOGUE))
    return [(line, places.get(number)) for number, line in enumerate(body.splitlines(), start=1)]


def without_layout(text: str) -> str:
    """A line without what black changes: blanks, and commas and parentheses."""
    return re.sub(r"[\s(),]", "", text)


@pytest.mark.parametrize("path", MODULES)
def test_every_line_comes_from_a_line_that_reads_like_it(path):
    traced = lines_and_places(path)
    assert {not line.strip() for line, place in traced if place is None} == {True}
    for line, place in traced:
        template = place.text() if place else ""
        if place is None or "{{" in template:
            continue  # blank, or a value that Python computed
        ours, theirs = without_layout(line), without_layout(template)
        # black joins and breaks lines, so one may be a part of the other.
        assert ours in theirs or theirs in ours, (line, place)


@pytest.mark.parametrize("path", MODULES)
def test_a_trace_is_of_the_text_that_is_emitted(path):
    usual = render.render(MODULES[path], CATALOGUE)
    traced = trace.traced(MODULES[path], CATALOGUE).text
    # Marks keep blank lines around stages, which formatting takes away.
    assert [line for line in usual.splitlines() if line.strip()] == [
        line for line in traced.splitlines() if line.strip()
    ]


def test_lines_of_a_function_follow_those_of_its_template():
    places = dict(lines_and_places("rpa_kernels/rpa.py"))
    stage = "stages/scores/plain.py.j2"
    template = (resources.templates_dir() / stage).read_text().splitlines()
    for number, line in enumerate(template, start=1):
        assert places[line] == Place(stage, number)
    assert places['NAME = "rpa"'].text() == 'NAME = "{{ variant.name }}"'


def test_a_place_says_where_it_is():
    assert str(Place("stages/scores/plain.py.j2", 3)) == "templates/stages/scores/plain.py.j2:3"
    assert Place("stages/scores/plain.py.j2", 1).text() == "def scale_scores(scores, scales_ref):"


def test_no_template_and_no_spec_holds_a_mark():
    for folder in ("templates", "specs"):
        for path in (ROOT / folder).rglob("*.*"):
            assert not re.search("[\ue000\ue001]", path.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "x = 1; y = 2  # 1\nz = 3  # 2\n",
        "x = 0XABC + 1E5 + 2J  # 1\ny = 2  # 2\n",
        "x = (  # 1\n    1\n)\ny = 2  # 4\n",
        "if (True):  # 1\n    x = (1)  # 2\nfor (y) in (1, 2): pass  # 3\nz = 1  # 4\n",
        "x = F'{1!r:>3}' + U'a'  # 1\n\x0c\ny = '\u2028'  # 3\nz = 1  # 4\n",
        "class A(): ...  # 1\nclass B:  # 2\n    '''\n    B.   '''\n    y = 1  # 5\n",
    ],
)
def test_whatever_black_does_a_line_is_found_again(text):
    body = formatted(text)
    places = trace.places_of(body, marked(text))
    numbers = {
        number: int(comment[1])
        for number, line in enumerate(body.split("\n"), start=1)
        if (comment := re.search("# ([0-9])$", line))
    }
    assert numbers and {number: places[number].line for number in numbers} == numbers
    assert len(places) == sum(bool(line.strip()) for line in body.split("\n"))


def test_what_differs_otherwise_is_skipped():
    # As where a template prints the length of a text that has marks in it, or decides by it.
    body, text = "a = 1\nb = 2\nc = 3\nd = 4\n", "a = 1\nother(b)[0]\nc = 3\nd = 4\n"
    places = trace.places_of(body, marked(text))
    assert (places[1].line, places[3].line, places[4].line) == (1, 3, 4)
    assert trace.places_of("import a\n", marked("(1)\n")) == {}


def marked(text: str) -> trace.Traced:
    """A text of which each line is printed by the line of a template with the same number."""
    lines = enumerate(text.split("\n"), start=1)
    return trace._without_marks("\n".join(trace._mark("t.py.j2", at) + line for at, line in lines))
