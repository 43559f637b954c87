"""Running schedules: loops, predicates, delay slots, phis, memories, copies and the matrix unit."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from schedule_fixtures import TINY

from rpagen.errors import InputError
from rpagen.schedule import call, matrix_unit, read, run
from rpagen.schedule.blocks import END, split
from rpagen.schedule.faults import NEVER_WRITTEN, ScheduleError
from rpagen.schedule.generations import GENERATIONS, MatrixUnit
from rpagen.schedule.machine import Machine

SCHEDULES = Path(__file__).parent / "data" / "schedules"

# Of 6 entries of the table, 2 are negative: 4 pages of 16 x 128 bfloat16 are fetched.
COUNT, TABLE = 6, [3, -1, 5, 0, -1, 2, 7, 9]


def made(*bundles: str, generation=TINY, **operands) -> run.Run:
    """A run of bundles, each the text between its braces, with marks and regions around it if any.

    `LB@1 a ;; b` begins a loop with region 1; `@1 a` starts region 1 without one.
    """
    return run.Program(schedule(*bundles), generation).run(run.Operands(**operands))


def schedule(*bundles: str) -> read.Schedule:
    lines = ["= control target key end", ""]
    for address, bundle in enumerate(bundles):
        mark, _, rest = bundle.partition("@") if "@" in bundle.split(" ")[0] else ("", "", bundle)
        region, _, body = rest.partition(" ") if "@" in bundle.split(" ")[0] else ("", "", rest)
        starts = f" /* Start region {region} */" if region else ""
        lines.append(f" {address:#x} {f'{mark}' if mark else ' '}: {{ {body} }}{starts}")
    return read.schedule("\n".join(lines) + "\n", "made", "made.txt")


def stored(found: run.Run, generation=TINY) -> list[int]:
    """What a kernel stored to its output, which is operand 1."""
    return list(found.hbm[1])


OUT = "%s90_s9 = inlined_call_operand.hbm [shape: s32[8], index: 1, kind: output]"
STORE = (
    "%91 = dma.smem_to_hbm %s92_s8, 1, %s90_s9, [#allocation9]",
    "%93 = dma.done.wait [#allocation9], 1",
    "%94 = vsyncadd [#allocation9], 4294967295",
)


def results(*bundles: str, **options) -> list[int]:
    """The eight words that bundles leave at #allocation8."""
    found = made(f"{OUT} ;; %s92_s8 = smov.u32 [#allocation8]", *bundles, *STORE, **options)
    return stored(found)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("sadd.s32 4294967295, 5", 4),
        ("sadd.s32 2147483647, 1", -(1 << 31)),
        ("ssub.s32 3, 5", -2),
        ("smul.u32 65536, 65536", 0),
        ("smulhi.u32 2863311531, 6", 4),  # unsigned, though the first is kept as -1431655765
        ("sand.u32 12, 10", 8),
        ("sor.u32 12, 10", 14),
        ("sxor.u32 12, 10", 6),
        ("sshll.u32 1, 31", -(1 << 31)),
        ("sshrl.u32 4294967295, 28", 15),
        ("sshra.s32 4294967288, 2", -2),
        ("smin.u32 4294967295, 3", 3),
        ("smax.u32 4294967295, 3", -1),
        ("smov.u32 7", 7),
        ("smov.u32 -1", -1),
        ("smov.u32 1.0", 0x3F800000),
    ],
)
def test_arithmetic_is_that_of_32_bits(operation, expected):
    words = results(f"%s1_s1 = {operation}", "%2 = sst [smem:[#allocation8]] %s1_s1")
    assert words[0] == expected


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        ("scmp.lt.s32.totalorder 4294967295, 1", 1),
        ("scmp.lt.u32.totalorder 4294967295, 1", 0),
        ("scmp.ge.s32.totalorder 1, 1", 1),
        ("scmp.eq.s32.totalorder 1, 2", 0),
        ("scmp.ne.s32.totalorder 1, 2", 1),
        ("sc.u32 4294967295, 1", 1),
        ("sc.u32 4294967294, 1", 0),
    ],
)
def test_comparisons(comparison, expected):
    words = results(
        f"%p1_p1 = {comparison}",
        "%s2_s2 = scalar_select %p1_p1, 1, 0",
        "%3 = sst [smem:[#allocation8]] %s2_s2",
    )
    assert words[0] == expected


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("pnand %p1_p1, %p2_p2", 1),
        ("pand %p1_p1, %p2_p2", 0),
        ("por %p1_p1, %p2_p2", 1),
        ("pnor %p1_p1, %p2_p2", 0),
        ("pxor %p1_p1, %p2_p2", 1),
        ("pneg %p1_p1", 0),
        ("pmov 1", 1),
    ],
)
def test_predicate_operations(operation, expected):
    words = results(
        "%p1_p1 = scmp.eq.s32.totalorder 1, 1 ;; %p2_p2 = scmp.eq.s32.totalorder 1, 2",
        f"%p3_p3 = {operation}",
        "%s4_s4 = scalar_select %p3_p3, 1, 0",
        "%5 = sst [smem:[#allocation8]] %s4_s4",
    )
    assert words[0] == expected


def test_an_address_with_an_offset_is_one_number():
    words = results(
        "%s1_s1 = smul.u32 2, [#allocation7 + $0x1]",
        "%s2_s2 = sand.u32 3, %s1_s1",  # allocations begin at multiples of more than 4
        "%3 = sst [smem:[#allocation8]] %s2_s2",
    )
    assert words[0] == 2


def test_division():
    words = results(
        "%1 = sdivrem.u32 17, 5 /* kRem */ ;; %2 = sdivrem.u32 17, 5 /* kDiv */",
        "%s3_s3 = spop.drf %1",
        "%s4_s4 = spop.drf %2",
        "%5 = sst [smem:[#allocation8]] %s3_s3 ;; %6 = sst [smem:[#allocation8 + $0x1]] %s4_s4",
    )
    assert words[:2] == [2, 3]


def test_predicated_operations_have_no_effect_where_the_predicate_does_not_hold():
    words = results(
        "%p1_p1 = scmp.eq.s32.totalorder 1, 2",
        "%2 = sst [smem:[#allocation8]] (%p1_p1), 5 ;; %3 = sst [smem:[#allocation8 + $0x1]]"
        " (!%p1_p1), 6",
    )
    assert words[:2] == [NEVER_WRITTEN, 6]


def test_a_choice_takes_the_operand_in_its_parentheses_where_the_predicate_does_not_hold():
    words = results(
        "%p1_p1 = scmp.eq.s32.totalorder 1, 2 ;; %s2_s2 = smov.u32 10",
        "%s3_s2 = smov.u32 (%p1_p1, %s2_s2), 512 ;; %s4_s3 = smov.u32 (!%p1_p1, %s2_s2), 513",
        "%5 = sst [smem:[#allocation8]] %s3_s2 ;; %6 = sst [smem:[#allocation8 + $0x1]] %s4_s3",
    )
    assert words[:2] == [10, 513]


def test_what_a_bundle_defines_it_can_read():
    words = results(
        "%2 = sst [smem:[#allocation8]] %s1_s1 ;; %s1_s1 = sadd.s32 3, %s3_s3"
        " ;; %s3_s3 = smov.u32 4"
    )
    assert words[0] == 7


def test_a_bundle_loads_before_it_stores():
    words = results(
        "%1 = sst [smem:[#allocation8]] 5",
        "%2 = sst [smem:[#allocation8]] 6 ;; %s3_s3 = sld [smem:[#allocation8]]",
        "%4 = sst [smem:[#allocation8 + $0x1]] %s3_s3",
    )
    assert words[:2] == [6, 5]


LOOP = (
    "%s1_s1 = smov.u32 0",
    "LB@1 %s2_s1 = sphi %s1_s1, %s3_s1 ;; %s4_s4 = sadd.s32 10, %s2_s1",
    "%s3_s1 = sadd.s32 1, %s2_s1 ;; %5 = sst [smem:[#allocation8 + %s2_s1]] %s4_s4",
    "%p6_p1 = scmp.ge.s32.totalorder %s3_s1, 3",
    "%7 = sbr.rel (!%p6_p1) target = $region1",
)


def test_a_loop_and_its_phi():
    assert results(*LOOP, "")[:4] == [10, 11, 12, NEVER_WRITTEN]


def test_a_loop_that_carries_vectors():
    """Which vector was defined last decides nothing of what is executed."""
    carried = tuple(
        f"{each} ;; %v8_v0 = vphi %v7_v0, %v9_v0" if "sphi" in each else each for each in LOOP
    )
    assert results(*carried, "")[:4] == results(*LOOP, "")[:4]


def test_bundles_are_counted_as_often_as_they_are_executed():
    found = made(*LOOP, "", "")
    # the head once; three times the body with its delay slot; what follows once
    assert found.bundles == 1 + 3 * 5 + 1
    assert found.executions() == [1, 3, 3, 3, 3, 3, 1]
    assert found.cycles == found.bundles


def test_delay_slots_are_executed_wherever_the_branch_goes():
    words = results(
        "%p1_p1 = scmp.eq.s32.totalorder 1, 1",
        "%2 = sbr.rel (%p1_p1) target = $region1",
        "%3 = sst [smem:[#allocation8]] 1",
        "%4 = sst [smem:[#allocation8 + $0x1]] 1",
        "PF@1 %5 = sst [smem:[#allocation8 + $0x2]] 1",
    )
    assert words[:3] == [1, NEVER_WRITTEN, 1]


def test_a_branch_is_decided_before_its_delay_slots():
    words = results(
        "%p1_p1 = scmp.eq.s32.totalorder 1, 2",
        "%2 = sbr.rel (%p1_p1) target = $region1",
        "%p1_p1 = scmp.eq.s32.totalorder 1, 1",
        "%4 = sst [smem:[#allocation8 + $0x1]] 1",
        "PF@1 %5 = sfence",
    )
    assert words[1] == 1


def test_a_region_that_starts_nowhere_is_the_end():
    found = made(
        "%p1_p1 = scmp.eq.s32.totalorder 1, 1",
        "%2 = sbr.rel (%p1_p1) target = $region9",
        "",
        "%3 = sfence",
    )
    assert found.executions() == [1, 1, 1, 0]


def test_two_regions_that_start_nowhere_are_an_error():
    branches = ("%2 = sbr.rel (%p1_p1) target = $region9", "", "")
    other = "%3 = sbr.rel (%p1_p1) target = $region8"
    with pytest.raises(InputError, match="regions 8 and 9 start nowhere") as raised:
        split(schedule(WORK, *branches, other, ""), TINY)
    assert raised.value.place == "made.txt:7"


def test_delay_slots_that_are_trimmed_at_the_end_of_a_kernel():
    (block,) = split(schedule("@1 " + WORK, BRANCH, ""), TRIMS)
    assert (block.last, block.taken, block.next) == (2, 0, END)


def test_a_branch_in_delay_slots_is_an_error():
    branch = "%2 = sbr.rel (%p1_p1) target = $region1"
    with pytest.raises(InputError, match="a branch lies in the delay slots of another") as raised:
        split(schedule("@1 %p1_p1 = pmov 1", branch, branch, ""), TINY)
    assert raised.value.place == "made.txt:4"


def test_a_branch_without_delay_slots_is_an_error():
    with pytest.raises(InputError, match="a branch has no delay slots"):
        split(schedule("@1 %2 = sbr.rel (%p1_p1) target = $region1"), TINY)


TRIMS = dataclasses.replace(TINY, delay_slots=6, trims_delay_slots=True)
BRANCH = "%2 = sbr.rel (!%p1_p1) target = $region1"
WORK = "%s3_s3 = smov.u32 1"


@pytest.mark.parametrize(
    ("after", "last"),
    [
        ([WORK, WORK, "", "PF@2 " + WORK, WORK, WORK, WORK, WORK], 4),  # trimmed to one empty
        (["", "@2 " + WORK, WORK, WORK, WORK, WORK, WORK], 2),
        ([WORK] * 6 + ["@2 " + WORK], 7),  # all six
        ([WORK, "", WORK, WORK, WORK, WORK, WORK], 3),  # no region tells: the first empty one
        ([WORK, "", BRANCH, "", "@2 " + WORK, WORK, WORK], 3),  # another branch is none of them
    ],
)
def test_delay_slots_that_are_trimmed(after, last):
    blocks = split(schedule("@1 " + WORK, BRANCH, *after), TRIMS)
    assert (blocks[0].first, blocks[0].last) == (0, last)
    assert (blocks[0].taken, blocks[0].next) == (0, last + 1)


def test_all_delay_slots_are_there_where_a_region_ends_with_them():
    made_of = schedule("@1 " + WORK, BRANCH, WORK, "", WORK, WORK, WORK, WORK, WORK)
    bundles = [*made_of.bundles]
    bundles[7] = dataclasses.replace(bundles[7], ends_region=True)
    blocks = split(dataclasses.replace(made_of, bundles=tuple(bundles)), TRIMS)
    assert blocks[0].last == 7


def test_the_end_of_a_kernel():
    (block,) = split(schedule(WORK, WORK), TINY)
    assert (block.branch, block.next) == (None, END)


@pytest.mark.parametrize("operation", ["smov.u32 1, 99", "sadd.s32 1", "sadd.s32 1, 2, 3"])
def test_as_many_operands_as_are_known(operation):
    with pytest.raises(InputError, match="is not known"):
        made(f"%s5_s5 = {operation}")


@pytest.mark.parametrize("name", ["sfrobnicate.u32", "dma.hbm_to_mars", "vfrobnicate.f32"])
def test_an_operation_that_is_not_known_is_an_error_with_its_line(name):
    with pytest.raises(InputError) as raised:
        made(WORK, f"%s5_s5 = {name} %s3_s3")
    assert raised.value.place == "made.txt:4"
    assert name in raised.value.problem


def test_operands_come_through_smem():
    words = results(
        "%s1_s1 = inlined_call_operand.hbm [shape: s32[8], index: 0, kind: input]"
        " ;; %s2_s2 = smov.u32 [#allocation3]",
        "%3 = dma.hbm_to_smem %s1_s1, 1, %s2_s2, [#allocation4]",
        "%4 = dma.done.wait [#allocation4], 1",
        "%5 = vsyncadd [#allocation4], 4294967295",
        "%s6_s6 = sld [smem:[#allocation3 + $0x2]]",
        "%7 = sst [smem:[#allocation8]] %s6_s6",
        hbm={0: [5, 6, 7, 8]},
    )
    assert words[0] == 7


def test_operands_in_smem_are_there():
    words = results(
        "%s1_s1 = inlined_call_operand.smem [shape: s32[8], index: 0, kind: input]",
        "%s6_s6 = sld [smem:[%s1_s1 + $0x2]]",
        "%7 = sst [smem:[#allocation8]] %s6_s6",
        hbm={0: [5, 6, 7, 8]},
    )
    assert words[0] == 7


def test_an_operand_elsewhere_is_not_known():
    with pytest.raises(InputError, match=r"inlined_call_operand\.cmem"):
        made("%s1_s1 = inlined_call_operand.cmem [shape: s32[8], index: 0, kind: input]")


def test_a_value_of_the_vector_units_may_be_stored_and_decide_nothing():
    push = "%1 = vpush %v1_v1"
    results(push, "%s2_s2 = spop %1", "%3 = sst [smem:[#allocation8 + $0x1]] %s2_s2")
    with pytest.raises(ScheduleError, match="follows from a value of the vector units"):
        made(push, "%s2_s2 = spop %1", "%p3_p3 = scmp.eq.s32.totalorder %s2_s2, 0")


UNWRITTEN = "%s1_s1 = sld [smem:[#allocation5]]"


def test_a_word_that_nothing_wrote_may_be_reckoned_with_and_stored():
    words = results(
        UNWRITTEN,
        "%s2_s2 = sadd.s32 1, %s1_s1",
        "%s3_s3 = sshll.u32 %s2_s2, 2 ;; %s4_s4 = smin.u32 %s2_s2, 5",
        "%5 = sdivrem.u32 %s3_s3, 5 /* kRem */",
        "%s6_s6 = sld [smem:[#allocation5 + %s4_s4]]",
        "%p7_p7 = scmp.eq.s32.totalorder %s6_s6, 0",
        "%s8_s7 = scalar_select %p7_p7, 1, 0",
        "%9 = sst [smem:[#allocation8]] %s8_s7 ;; %10 = sst [smem:[#allocation8 + $0x1]] 3",
    )
    assert words[0] is NEVER_WRITTEN
    assert words[1] == 3


@pytest.mark.parametrize(
    "decided",
    [
        "%2 = sst [smem:[#allocation8]] (%p1_p1), 1",
        "%2 = sbr.rel (%p1_p1) target = $region9",
        "%2 = dma.hbm_to_vmem %s9_s9, %s1_s1, [#allocation2], [#allocation3]",
        "%2 = dma.hbm_to_vmem %s1_s1, 1, [#allocation2], [#allocation3]",
        "%2 = sst [smem:[%s1_s1]] 1",
    ],
)
def test_what_nothing_wrote_decides_nothing(decided):
    with pytest.raises(ScheduleError, match="nothing wrote") as raised:
        made(UNWRITTEN, "%p1_p1 = scmp.eq.s32.totalorder %s1_s1, 0", decided, WORK)
    assert raised.value.place.startswith("made.txt:")
    assert raised.value.problem.startswith("made: ")
    assert "--device" in raised.value.next_step


def test_a_value_that_was_not_defined_decides_nothing():
    with pytest.raises(ScheduleError, match="nothing wrote"):
        made("%1 = sst [smem:[#allocation8]] (%p1_p1), 1", WORK)


def test_a_word_behind_an_operand_or_of_none_decides_nothing():
    """Of a copy that takes more than the operand has, or from HBM where nothing was put."""
    for source in ("inlined_call_operand.hbm [shape: s32[4], index: 0, kind: input]", "smov.u32 9"):
        with pytest.raises(ScheduleError, match="nothing wrote"):
            made(
                f"%s1_s1 = {source} ;; %s2_s2 = smov.u32 [#allocation3]",
                "%3 = sst [smem:[#allocation3 + $0x5]] 1",
                "%4 = dma.hbm_to_smem %s1_s1, 1, %s2_s2, [#allocation4]",
                "%s5_s5 = sld [smem:[#allocation3 + $0x5]]",
                "%p6_p6 = scmp.eq.s32.totalorder %s5_s5, 0",
                "%7 = sst [smem:[#allocation8]] (%p6_p6), 1",
                hbm={0: [5, 6, 7, 8]},
            )


def test_a_scalar_that_is_not_given_decides_nothing():
    operand = "%s1_s1 = inlined_call_operand.<no memory space> [shape: s32[], index: 0]"
    operand = operand.replace("index: 0", "index: 0, kind: input")
    with pytest.raises(ScheduleError, match="nothing wrote") as raised:
        made(
            operand,
            "%p2_p2 = scmp.eq.s32.totalorder %s1_s1, 0",
            "%3 = sst [smem:[#allocation8]] (%p2_p2), 1",
        )
    assert raised.value.unknown == {0}


def test_a_register_spilled_to_hbm_comes_back_at_no_cost():
    found = made(
        f"{OUT} ;; %s92_s8 = smov.u32 [#allocation8] ;; %s95_s7 = smov.u32 [#allocation7_spill]",
        "%1 = sst [smem:[#allocation8]] 42",
        "%2 = dma.smem_to_hbm %s92_s8, 1, %s95_s7, [#allocation6]",
        "%3 = dma.done.wait [#allocation6], 1",
        "%4 = vsyncadd [#allocation6], 4294967295",
        "%5 = sst [smem:[#allocation8]] 0",
        "%6 = dma.hbm_to_smem %s95_s7, 1, %s92_s8, [#allocation6]",
        "%7 = dma.done.wait [#allocation6], 1",
        "%8 = vsyncadd [#allocation6], 4294967295",
        *STORE,
    )
    assert stored(found)[0] == 42
    assert [stall.site for stall in found.stalls] == [10]  # the store to the output alone
    assert len(found.copies) == 3
    assert [copy.site for copy in found.transfers] == [9]
    assert (found.read, found.written) == (0, 32)


def test_a_copy_takes_its_bytes_and_a_latency():
    machine = Machine(TINY, {}, {}, {})
    machine.copy("hbm_to_vmem", 0, 5, 0, 8, 0, flag=1)  # a granule a cycle, and 10 of latency
    assert machine.wait(1, 8, site=1, at=6) == 5 + 8 + 10
    machine.add(1, -8)
    assert machine.wait(1, 0, site=2, at=30) == 30


def test_copies_wait_their_turn():
    machine = Machine(TINY, {}, {}, {})
    machine.copy("hbm_to_vmem", 0, 0, 0, 8, 0, flag=1)
    machine.copy("hbm_to_vmem", 1, 1, 0, 4, 0, flag=2)
    machine.copy("vmem_to_hbm", 2, 2, 0, 4, 0, flag=3)
    assert machine.wait(2, 4, site=3, at=3) == 8 + 4 + 10
    assert machine.wait(3, 4, site=4, at=3) == 8 + 4 + 4 + 5  # writes have a latency of 5
    assert [copy.done for copy in machine.copies] == [18, 22, 21]


def test_a_wait_takes_as_many_copies_as_it_needs():
    machine = Machine(TINY, {}, {}, {})
    for _ in range(3):
        machine.copy("hbm_to_vmem", 0, 0, 0, 8, 0, flag=1)
    assert machine.wait(1, 16, site=1, at=0) == 16 + 10
    assert machine.count(1) == 24


def test_a_copy_of_nothing_is_none():
    machine = Machine(TINY, {}, {}, {})
    machine.copy("hbm_to_vmem", 0, 0, 0, 0, 0, flag=1)
    assert machine.copies == []
    assert machine.wait(1, 0, site=1, at=7) == 7


def test_a_wait_for_what_never_comes():
    machine = Machine(TINY, {}, {}, {})
    machine.copy("hbm_to_vmem", 0, 0, 0, 8, 0, flag=1)
    with pytest.raises(ScheduleError, match=r"bundle 0x3 waits for 9 granules .* gets 8"):
        machine.wait(1, 9, site=3, at=0)


def test_a_loop_without_an_end(monkeypatch):
    monkeypatch.setattr(run, "MOST_BLOCKS", 1000)
    with pytest.raises(ScheduleError, match="has not ended after 1000 blocks") as raised:
        made("@1 %p1_p1 = pmov 1", "%2 = sbr.rel (%p1_p1) target = $region1", "")
    assert raised.value.place == "made.txt:3"


UNITS = dataclasses.replace(TINY, matrix_unit=MatrixUnit({16: 8, 32: 8, 8: 16}, push=2))
MULTIPLY = "%1 = vmatmul.mubr.bf16.gmra.mxu{}  %v1_v1"


def stalls(*bundles: str) -> matrix_unit.Stalls:
    made_of = schedule(*bundles)
    (block,) = split(made_of, UNITS)
    return matrix_unit.Stalls(made_of, block, UNITS)


def test_a_matrix_unit_in_time_does_not_stall():
    # each takes 8 cycles, and the next comes 8 bundles later
    one = [MULTIPLY.format(0), *[""] * 7]
    assert stalls(*one, *one).after(matrix_unit.IDLE) == (0, matrix_unit.IDLE)


def test_a_matrix_unit_that_is_asked_too_soon_stalls():
    # the second comes after 1 cycle and waits for 7; 8 more are left, of which the block sees one
    found = stalls(MULTIPLY.format(0), MULTIPLY.format(0)).after(matrix_unit.IDLE)
    assert found == (7, (7, 0, 0, 0))


def test_each_matrix_unit_has_its_own_time():
    assert stalls(MULTIPLY.format(0), MULTIPLY.format(1)).after(matrix_unit.IDLE)[0] == 0


def test_what_is_left_of_a_block_holds_back_the_next():
    assert stalls(MULTIPLY.format(0)).after((5, 0, 0, 0))[0] == 5


def test_rows_of_8_bits_take_their_own_time():
    eight = "%1 = vmatmul.mubr.msk.f8e4m3b11.bf16.vlgmr.msra.gmra.mxu0 %v1_v1"
    assert stalls(eight, eight).after(matrix_unit.IDLE)[0] == 15


def test_a_multiplication_of_no_known_dtype():
    with pytest.raises(InputError, match="streams values of no known dtype") as raised:
        stalls("%1 = vmatmul.mubr.posit.gmra.mxu0 %v1_v1")
    assert raised.value.place == "made.txt:3"


def test_weights_take_two_cycles():
    push = "%1 = vmatpush3.bf16.msra.mxu0 %v1_v1"
    assert stalls(push, push, "").after(matrix_unit.IDLE) == (1, matrix_unit.IDLE)


@pytest.mark.parametrize("dump", sorted(path.name for path in SCHEDULES.glob("v*")))
def test_a_real_kernel_copies_what_its_source_says(dump):
    generation = GENERATIONS[dump.partition("-")[0]]
    timed = call.Call(SCHEDULES / dump, generation).time({0: np.array([COUNT]), 1: np.array(TABLE)})
    (kernel,) = timed.kernels
    assert kernel.run is not None
    pages = [copy for copy in kernel.run.copies if copy.granules == 16 * 128 * 2 // 32]
    assert len(pages) == sum(page >= 0 for page in TABLE[:COUNT])
    writes = [copy for copy in kernel.run.copies if copy.kind == "vmem_to_hbm"]
    assert [copy.granules for copy in writes] == [16 * 128 * 4 // 32]
    # each page is waited for at once, so that its whole time shows
    page_time = generation.cycles(generation.read_latency)
    assert kernel.cycles > 4 * page_time


# The blocks of each schedule: their bundles, counted in its text, and how often they are executed.
BY_HAND = {
    "v5e-0.0.52": [(17, 1), (8, 6), (19, 4), (7, 6), (13, 1)],
    "v6e-0.0.52": [(16, 1), (8, 6), (27, 4), (7, 6), (13, 1)],
    "v7x-0.0.52": [(17, 1), (7, 6), (24, 4), (4, 6), (13, 1)],
}


@pytest.mark.parametrize("dump", sorted(BY_HAND))
def test_the_bundles_of_a_real_kernel_are_those_counted_by_hand(dump):
    timed = call.Call(SCHEDULES / dump, GENERATIONS[dump[:3]]).time(
        {0: np.array([COUNT]), 1: np.array(TABLE)}
    )
    found = timed.kernels[0].run
    assert found is not None
    blocks = [
        (block.length, count)
        for block, count in zip(found.program.blocks, found.counts, strict=True)
    ]
    assert blocks == BY_HAND[dump]
    assert found.bundles == sum(length * count for length, count in BY_HAND[dump])
    kinds = collections.Counter(copy.kind for copy in found.copies)
    assert kinds["vmem_to_hbm"] == 1


def test_integers_that_are_not_given_are_an_error():
    kernel = call.Call(SCHEDULES / "v6e-0.0.52", GENERATIONS["v6e"])
    with pytest.raises(InputError):
        kernel.time({0: np.array([COUNT])})


@pytest.mark.parametrize(
    ("operation", "of_false", "of_true"),
    [
        ("pand {}, %p1_p1", 0, None),
        ("pand %p1_p1, {}", 0, None),
        ("por {}, %p1_p1", None, 1),
        ("pnand %p1_p1, {}", 1, None),
        ("pnor %p1_p1, {}", None, 0),
        ("pxor %p1_p1, {}", None, None),
        ("pneg %p1_p1", None, None),
    ],
)
def test_a_truth_value_that_is_not_known_may_not_matter(operation, of_false, of_true):
    for number, expected in ((0, of_false), (1, of_true)):
        words = results(
            UNWRITTEN,
            "%p1_p1 = scmp.eq.s32.totalorder %s1_s1, 0",
            f"%p2_p2 = scmp.eq.s32.totalorder {number}, 1",
            f"%p3_p3 = {operation.format('%p2_p2')}",
            "%s4_s4 = smov.u32 (%p3_p3, %s90_s9), 1 ;; %s5_s5 = scalar_select %p3_p3, 1, 0",
            "%6 = sst [smem:[#allocation8]] %s5_s5",
        )
        assert words[0] is NEVER_WRITTEN if expected is None else words[0] == expected
