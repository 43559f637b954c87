"""The page about a call: what its figures, tables and diagram say, and that it is one file."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from schedule_fixtures import TINY, dumped

from rpagen.schedule import page
from rpagen.schedule.floor import Floor
from rpagen.schedule.page import roofline, view

FLOOR = Floor(bytes=640, operations=2560, memory=20.0, compute=10.0)


@pytest.fixture
def call(tmp_path):
    return dumped(tmp_path)


@pytest.fixture
def timed(call):
    return call.time({}, with_path=True)


def test_figures(call, timed):
    figures = {each.name: each for each in view.of(call, timed, "t", "", FLOOR).figures}
    assert figures["The call"].value == "0.09 us" and figures["The call"].note == "91 cycles"
    assert figures["Kernels"].note == "100.0% of the call"
    assert (figures["Moved"].value, figures["Moved"].note) == ("768 B", "by 3 copies")
    # 20 cycles of 91.
    assert figures["The floor"].note == "HBM binds; kernels reach 22.0% of it"


def test_the_floor_may_be_unknown(call, timed):
    made = view.of(call, timed, "t", "", None)
    assert "The floor" not in [each.name for each in made.figures]
    assert [each.name for each in made.points] == ["what tiny.1 does"]


def test_a_call_of_no_kernel(call, timed):
    steps = tuple(replace(step, is_kernel=False) for step in timed.steps)
    made = view.of(call, replace(timed, steps=steps), "t", "", FLOOR)
    assert [each.name for each in made.points] == [
        "what the call has to do, in the time of the whole call"
    ]
    nothing = view.of(call, replace(timed, steps=()), "t", "", None)
    assert (nothing.points, nothing.diagram, nothing.charts) == ((), None, ())
    assert "No kernel multiplies" in page.html(call, replace(timed, steps=()), title="t")


def test_the_chart_of_slots(call, timed):
    (chart,) = view.of(call, timed, "t", "", None).charts
    assert chart.columns == ("MATMUL", "VALU", "VLOAD", "VSTORE", "SALU", "matrix unit")
    assert chart.is_open
    _, outer, inner = chart.rows
    assert (outer.name, outer.depth, outer.bundles, outer.iterations) == ("loop 0x1", 1, "7", "3")
    assert (inner.name, inner.depth, inner.bundles, inner.iterations) == ("loop 0x3", 2, "5", "6")
    assert outer.share == pytest.approx(39 / 91)
    assert inner.share == pytest.approx(30 / 91)
    assert [each.share for each in inner.cells] == [
        pytest.approx(share) for share in (1 / 5, 2 / 20, 1 / 15, 1 / 10, 2 / 10, 0.4)
    ]
    assert [each.binds for each in inner.cells] == [False] * 5 + [True]
    assert (inner.binding, inner.spills, inner.multiplies) == ("matrix unit 40.0%", "1 / 1", "1")


def test_points_of_the_roofline(call, timed):
    points = view.of(call, timed, "t", "", FLOOR).points
    # 3072 operations by 6 vmatmuls, 768 bytes: the roof there is 32 GB/s by 4 operations a byte.
    does = points[-1]
    assert (does.name, does.intensity) == ("what tiny.1 does", "4.0")
    assert does.share == f"{100 * (3072 / 91) / 128:.1f}%"
    has_to = points[0]
    assert has_to.name == "what the call has to do, in the time of the kernels"
    assert has_to.share == f"{100 * 20 / 91:.1f}%"


def test_the_diagram_is_logarithmic():
    point = roofline.Point("", operations=100, bytes=10, seconds=1e-9, peak=TINY.peak)
    made = roofline.diagram([point], TINY)
    first, second, *_ = (each.x for each in made.columns)
    assert [each.text for each in made.columns] == ["1", "10", "100"]
    # 10 operations a byte: on the tick; 100 Gflop/s.
    (mark,) = made.points
    assert mark.x == second and first < second
    assert [each.text for each in made.rows] == ["0.01", "0.1", "1"]
    assert mark.y == made.rows[1].y
    corner = made.roof[1]
    assert first < corner.x < second and made.rows[2].y < corner.y < made.rows[1].y


def test_the_timeline_is_in_nanoseconds(call, timed):
    data = json.loads(view.of(call, timed, "t", "", None).data)
    names = data["names"]
    assert [names[each[0]] for each in data["tracks"]["steps"]] == ["tiny.1"]
    assert [each[3:5] for each in data["tracks"]["read"]] == [[21, 18], [44, 18], [67, 18]]
    assert data["tracks"]["write"] == []
    assert data["inFlight"][0] == [21, 256, 0]
    (iteration,) = [each for each in data["tracks"]["core"] if names[each[0]] == "iteration 2 of 3"]
    assert names[iteration[5]] == "17 bundles, 0.01 us waits for copies"


def test_the_page_is_one_file_that_escapes_what_it_is_told(call, timed):
    text = page.html(call, timed, title="a <b> & c", about="</script>", floor=FLOOR)
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text
    assert "<p>&lt;/script&gt;</p>" in text
    assert not re.search(r"(?:src|href)=\"(?!#)|url\(|@import|https?://", text)
    assert text.count("<script") == text.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data and json.loads(data[1])["tracks"]["steps"]
    assert "prefers-color-scheme: dark" in text
    assert page.html(call, timed, title="a <b> & c", about="</script>", floor=FLOOR) == text
