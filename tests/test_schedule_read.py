"""Reading libtpu's schedules: the form of a bundle, and errors that name the line."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from rpagen.errors import InputError
from rpagen.schedule import read, slots
from rpagen.schedule.read import Predicate

SCHEDULES = Path(__file__).parent / "data" / "schedules"
DUMPS = sorted(path.name for path in SCHEDULES.iterdir() if path.is_dir())

HEAD = "= control target key start\n= control target key end\n\n"


def one(bundle: str) -> read.Bundle:
    """The only bundle of a schedule."""
    return read.schedule(f"{HEAD}     0   :  {{ {bundle} }}\n", "k", "k.txt").bundles[0]


def only(bundle: str) -> read.Operation:
    (operation,) = one(bundle).operations
    return operation


def test_there_are_dumps_of_every_generation_and_release():
    assert [f"{g}-0.0.{r}" for g in ("v5e", "v6e", "v7x") for r in (48, 52)] == DUMPS


@pytest.mark.parametrize("dump", DUMPS)
def test_a_real_dump(dump):
    (texts,) = read.texts(SCHEDULES / dump).values()
    assert texts.name == "sum_pages.1"
    schedule, taken = texts.schedule(), texts.slots()
    assert len(schedule.bundles) == len(taken.taken)
    assert [bundle.address for bundle in schedule.bundles] == [*range(len(taken.taken))]


@pytest.mark.parametrize("dump", DUMPS)
def test_the_slots_that_names_tell_are_those_that_libtpu_counts(dump):
    (texts,) = read.texts(SCHEDULES / dump).values()
    table = texts.slots()
    for bundle, row in zip(texts.schedule().bundles, table.taken, strict=True):
        counts = collections.Counter(
            slots.of(each.name) for each in bundle.operations if slots.is_vector(each.name)
        )
        assert None not in counts, bundle
        for kind, taken in zip(table.kinds, row, strict=True):
            if kind in ("VALU", "VSTORE"):  # the others are taken for more than one bundle
                assert counts[kind] == taken, (kind, bundle)


def test_an_operation_and_its_result():
    operation = only("%s12_s3 = sadd.s32 4294967295, %s11_s7")
    assert operation.result == "s12_s3"
    assert operation.name == "sadd.s32"
    assert operation.operands == ("4294967295", "%s11_s7")
    assert operation.values == ["s11_s7"]
    assert operation.predicate is None


@pytest.mark.parametrize(
    ("text", "operands", "predicate", "otherwise"),
    [
        ("%s1_s1 = sadd.s32 (%p9_p2), 1, %s2_s2", ("1", "%s2_s2"), ("p9_p2", False), ""),
        ("%s1_s1 = sadd.s32 (!%p9_p2), 1, %s2_s2", ("1", "%s2_s2"), ("p9_p2", True), ""),
        ("%s1_s1 = smov.u32 (!%p9_p2, %s2_s1), 512", ("512",), ("p9_p2", True), "%s2_s1"),
        (
            "%s1_s1 = sld [smem:[#allocation3 + %s2_s2]] (!%p9_p2)",
            ("[smem:[#allocation3 + %s2_s2]]",),
            ("p9_p2", True),
            "",
        ),
        (
            "%5 = sst [smem:[#allocation3]] (%p9_p2), %s2_s2",
            ("[smem:[#allocation3]] %s2_s2",),
            ("p9_p2", False),
            "",
        ),
        ("%5 = sbr.rel (%p9_p2) target = $region13", ("target = $region13",), ("p9_p2", False), ""),
    ],
)
def test_predicates(text, operands, predicate, otherwise):
    operation = only(text)
    assert operation.operands == operands
    assert operation.predicate == Predicate(*predicate)
    assert operation.otherwise == otherwise


def test_attributes_and_comments_are_no_operands():
    operation = only(
        "%143 = dma.hbm_to_vmem [thread:$0]  (%p1_p0), /*hbm=*/%s127_s18,"
        " /*size_in_granules=*/256, /*vmem=*/%s141_s14, /*dst_syncflagno=*/[#allocation4 + $0x1]"
    )
    assert operation.name == "dma.hbm_to_vmem"
    assert operation.operands == ("%s127_s18", "256", "%s141_s14", "[#allocation4 + $0x1]")


def test_names_with_brackets_and_spaces():
    assert only("%7796 = vmatmul.mubr.bf16.gmra.mrb[12].mxu0 %v1_v1").name == (
        "vmatmul.mubr.bf16.gmra.mrb[12].mxu0"
    )
    operand = only("%s1_s0 = inlined_call_operand.<no memory space> [shape: f32[1], index: 4]")
    assert operand.name == "inlined_call_operand.<no memory space>"


def test_marks_depth_and_regions():
    text = (
        f"{HEAD}     0   :  {{ %1 = sfence }} /* Start region 3 :: Start/End empty region 4 */\n"
        "   0x1 LB: >> { %2 = sfence } /* End region 3 */\n"
        "   0x2 PF: > {}\n"
    )
    first, second, third = read.schedule(text, "k", "k.txt").bundles
    assert (first.regions, first.ends_region, first.marks, first.depth) == ((3, 4), False, (), 0)
    assert (second.regions, second.ends_region) == ((), True)
    assert (second.marks, second.depth) == (("LB",), 2)
    assert (third.operations, third.marks, third.depth) == ((), ("PF",), 1)


def test_comments_may_hold_line_breaks_and_braces():
    text = (
        f"{HEAD}     0   :  {{ %9 = shalt.err (!%p1_p1) /* BoundsCheck 0 {{1, 2}}\nhlo: copy.9\n"
        " */ } /* exit bundle: %k = {1,0:T(8)} */\n   0x1   :  {}\n"
    )
    first, second = read.schedule(text, "k", "k.txt").bundles
    assert [each.name for each in first.operations] == ["shalt.err"]
    assert first.operations[0].comment.startswith("BoundsCheck 0 {1, 2}")
    assert second.line == 7


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "there is no key of marks"),
        (HEAD, 1, "there is no bundle"),
        (f"{HEAD}     0   :  {{}}\nwhat is this\n", 5, "'what is this' is no bundle"),
        (f"{HEAD}     0   :  {{}}\n   0x2   :  {{}}\n", 5, "bundle 0x2 follows bundle 0x0"),
        (f"{HEAD}     0   :  {{ %1 == 2 }}\n", 4, "'%1 == 2' is no operation"),
        (f"{HEAD}     0   :  {{ %1 = sfence /* }}\n", 4, "a comment does not end"),
        (
            f"{HEAD}     0   :  {{}} /* Start of region 3 */\n",
            4,
            "'Start of region 3' is not understood",
        ),
    ],
)
def test_errors_name_the_line(text, line, problem):
    with pytest.raises(InputError) as raised:
        read.schedule(text, "k", "k.txt")
    assert raised.value.place == f"k.txt:{line}"
    assert raised.value.problem == problem
    assert "mend rpagen/schedule/read.py" in raised.value.next_step


def test_slots():
    text = "== CAPACTIY:\nMXU, VALU\n    2     4\n== UTILIZATION:\n0 1\n2 3\n"
    table = read.slots(text, "u.txt")
    assert table.kinds == ("MXU", "VALU")
    assert table.capacities == (2, 4)
    assert table.taken == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("MXU\n1\n", 1, "the head is not known"),
        ("== CAPACTIY:\nMXU, VALU\n 2\n== UTILIZATION:\n", 3, "' 2' is no row"),
        ("== CAPACTIY:\nMXU, VALU\n 2 4\n== UTILIZATION:\n0 1\n0\n", 6, "'0' is no row"),
        ("== CAPACTIY:\nMXU\n 2\n== UTILIZATION:\n0\nx\n", 6, "'x' is no row"),
    ],
)
def test_errors_of_slots_name_the_line(text, line, problem):
    with pytest.raises(InputError) as raised:
        read.slots(text, "u.txt")
    assert (raised.value.place, raised.value.problem) == (f"u.txt:{line}", problem)


def test_a_folder_without_schedules(tmp_path):
    with pytest.raises(InputError, match="there is no schedule of the TPU compiler"):
        read.texts(tmp_path)


def test_bundles_without_their_table(tmp_path):
    (tmp_path / "1-k-03-final_bundles.txt").write_text(HEAD)
    with pytest.raises(InputError, match=r"1-k-03-final_bundles\.txt has no table of slots"):
        read.texts(tmp_path)
