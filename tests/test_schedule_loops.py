"""The loops of a schedule, and the slots they take: answers counted by hand."""

from __future__ import annotations

import pytest
from schedule_fixtures import BUNDLES, SLOTS, TINY, dumped, schedule, slots

from rpagen.errors import InputError
from rpagen.schedule import loops
from rpagen.schedule.loops import Loop


def test_loops_are_those_that_branches_go_back_to_with_their_delay_slots():
    assert loops.nest(schedule(), TINY) == (Loop(1, 12, 1, None), Loop(3, 7, 2, 0))


def test_the_innermost_loop_around_a_bundle():
    innermost = loops.Innermost(loops.nest(schedule(), TINY))
    found = [innermost.at(address) for address in range(14)]
    assert found == [None, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, None]


def test_static_figures_of_each_loop():
    outside, outer, inner = loops.of(schedule(), slots(), TINY)
    assert [part.name for part in (outside, outer, inner)] == [
        "outside of loops",
        "loop 0x1",
        "loop 0x3",
    ]
    assert [part.depth for part in (outside, outer, inner)] == [0, 1, 2]
    assert [part.own.bundles for part in (outside, outer, inner)] == [2, 7, 5]
    assert [part.whole.bundles for part in (outside, outer, inner)] == [14, 12, 5]
    assert [part.own.idle for part in (outside, outer, inner)] == [1, 3, 1]
    assert (outer.own.copies, outer.own.waits) == (1, 1)
    assert (inner.own.copies, inner.own.waits) == (0, 0)
    assert (inner.own.spills, inner.own.fills) == (1, 1)
    assert (outer.own.spills, outer.whole.spills) == (0, 1)
    assert outer.executed is None
    assert inner.own.shares == {
        "MATMUL": 1 / 5,
        "VALU": 2 / 20,
        "VLOAD": 1 / 15,
        "VLOAD:FILL": 1 / 15,
        "VSTORE": 1 / 10,
        "VSTORE:SPILL": 1 / 10,
        "SALU": 2 / 10,
    }


def test_the_share_of_the_peak_and_what_binds():
    _, outer, inner = loops.of(schedule(), slots(), TINY)
    # 16 rows by 4 by 4 weights, two operations each; 256 operations a cycle are the peak.
    assert (inner.own.multiplies, inner.own.operations) == (1, 512)
    assert inner.own.share_of_peak == pytest.approx(512 / (5 * 256))
    assert inner.own.binding == (loops.MATRIX_UNIT, pytest.approx(0.4))
    assert outer.own.binding == ("SALU", pytest.approx(5 / 14))


@pytest.mark.parametrize(
    ("waited", "name", "share"), [(9.9, "VALU", 0.9), (10.0, "copies", 0.5), (30.0, "copies", 0.75)]
)
def test_copies_bind_where_half_of_the_time_is_waits_for_them(waited, name, share):
    figures = loops.Figures(10, 0, ("VALU",), (1,), (9,), 1, 1, 0, 0, 1.0)
    executed = loops.Executed(1, figures, 1, 32, 0, waited, 0.0)
    assert executed.binding == (name, pytest.approx(share))


def test_nothing_binds_where_nothing_is_taken():
    _, _, inner = loops.of(schedule(), slots(SLOTS), TINY)
    nothing = loops.Figures(3, 3, inner.own.kinds, inner.own.capacities, (0,) * 7, 0, 0, 0, 0, 1.0)
    assert nothing.binding is None


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("vmatmul.mubr.f32.gmra.mxu0", 256),
        ("vmatmul.bf16.vlgmr.msra.gmra.mxu3", 512),
        ("vmatmul.mubr.msk.bf16.vlgmr.msra.gmra.mrb[0].mxu0", 512),
        ("vmatmul.mubr.f8e5m2.gmra.mxu0", 1024),
    ],
)
def test_operations_of_a_vmatmul_by_its_dtype(name, operations):
    text = BUNDLES.replace("vmatmul.mubr.bf16.gmra.mxu0", name)
    assert loops.of(schedule(text), slots(), TINY)[2].own.operations == operations


def test_columns_of_another_libtpu_release():
    older = slots(SLOTS.replace("MATMUL", "MXU"))
    inner = loops.of(schedule(), older, TINY)[2].own
    assert inner.shares["MXU"] == 1 / 5
    assert (inner.spills, inner.fills) == (1, 1)


@pytest.mark.parametrize("column", ["VSTORE:SPILL", "VLOAD:FILL"])
def test_a_table_in_which_no_spill_would_be_seen(column):
    other = slots(SLOTS.replace(column, "XLU"))
    with pytest.raises(InputError, match=f"has no column {column}"):
        loops.of(schedule(), other, TINY)


def test_what_a_run_makes_of_each_loop(tmp_path):
    (step,) = dumped(tmp_path).time({}).kernels
    parts = loops.of(schedule(), slots(), TINY, step.run)
    outside, outer, inner = (part.executed for part in parts)
    assert outside and outer and inner
    assert [each.iterations for each in (outside, outer, inner)] == [1, 3, 6]
    assert [each.figures.bundles for each in (outside, outer, inner)] == [2, 21, 30]
    assert (outer.copies, outer.read, outer.written) == (3, 768, 0)
    # Each copy is issued 12 cycles before it is waited for, and takes 8 and 10 cycles.
    assert outer.waited == pytest.approx(18)
    assert outer.cycles == pytest.approx(39)
    assert (inner.waited, inner.held, inner.copies) == (0, 0, 0)
    assert inner.figures.multiplies == 6
    assert inner.figures.shares == parts[2].own.shares


@pytest.mark.parametrize(
    ("old", "new", "problem", "line"),
    [
        ("0x3 LB: >>", "0x3   : >>", "not a loop's body as marked", 8),
        ("0x2   : >", "0x2 LB: >", "not a loop's body as marked", 7),
        ("0x3 LB: >>", "0x3 LB: >", "1 loops are marked around it, and 2 branch back", 8),
        ("vmatmul.mubr.bf16.gmra", "vmatmul.mubr.gmra", "streams values of no known dtype", 8),
    ],
)
def test_what_is_not_known_is_an_error_with_its_line(old, new, problem, line):
    assert old in BUNDLES
    with pytest.raises(InputError, match=problem) as caught:
        loops.of(schedule(BUNDLES.replace(old, new)), slots(), TINY)
    assert f"tiny:{line}" in str(caught.value)


def test_loops_that_overlap_are_an_error():
    text = BUNDLES.replace("target = $region1", "target = $region3").replace(
        "target = $region2", "target = $region1"
    )
    text = text.replace("/* Start region 2 */", "/* Start region 3 */")
    with pytest.raises(InputError, match="does not end within the one around it"):
        loops.nest(schedule(text), TINY)


def test_a_table_of_another_schedule_is_an_error():
    with pytest.raises(InputError, match="14 bundles, and slots of 13"):
        loops.of(schedule(), slots(SLOTS.removesuffix("0 0 0 0 0 0 0\n")), TINY)
