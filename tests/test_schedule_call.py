"""Calls with branches and loops around the small kernel of `schedule_fixtures`."""

import dataclasses

import numpy as np
import pytest
from schedule_fixtures import BUNDLES, SLOTS, TINY

from rpagen.errors import InputError
from rpagen.schedule import call, predict, read, timeline, workloads
from rpagen.schedule.faults import ScheduleError
from rpagen.schedule.page import view

KERNEL = '%{name} = bf16[8]{{0}} custom-call({operand}), custom_call_target="tpu_custom_call"'


def dumped(folder, text, kernels=("one.1", "two.1")):
    for number, name in enumerate(kernels):
        (folder / f"{number}-{name}-03-final_bundles.txt").write_text(BUNDLES)
        (folder / f"{number}-{name}-01{read.UTILIZATION}").write_text(SLOTS)
    (folder / "1-TLP-hlo.txt").write_text(text)
    return call.Call(folder, TINY)


def kernel(name, operand="%x"):
    return KERNEL.format(name=name, operand=operand)


def branch(name, *lines):
    return "\n".join(
        [
            f"%{name} (x: bf16[8]) -> bf16[8] {{",
            "  %x = bf16[8]{0} parameter(0)",
            *[f"  {line}" for line in lines[:-1]],
            f"  ROOT {lines[-1]}",
            "}",
        ]
    )


BRANCHES = "\n".join([branch("left", kernel("one.1")), branch("right", kernel("two.1"))])
CONDITIONAL = f"""
{BRANCHES}
ENTRY %main (n: s32[1], x: bf16[8]) -> bf16[8] {{
  %n = s32[1]{{0}} parameter(0)
  %x = bf16[8]{{0}} parameter(1)
  %i = s32[] bitcast(%n)
  ROOT %c = bf16[8]{{0}} conditional(%i, %x, %x), branch_computations={{%left, %right}}
}}
"""


def names(timed):
    return [step.name for step in timed.steps]


@pytest.mark.parametrize(
    ("index", "taken"), [(0, "one.1"), (1, "two.1"), (2, "two.1"), (-1, "two.1")]
)
def test_a_branch_by_number(tmp_path, index, taken):
    found = dumped(tmp_path, CONDITIONAL)
    assert found.kernels == ("one.1", "two.1")
    timed = found.time({0: np.array([index])})
    assert names(timed) == [taken]
    assert timed.cycles == timed.steps[0].run.ended


@pytest.mark.parametrize(("value", "taken"), [(1, "one.1"), (0, "two.1")])
def test_a_branch_by_a_truth_value(tmp_path, value, taken):
    text = CONDITIONAL.replace("%i = s32[]", "%p = pred[1]{0} convert(%n)\n  %i = pred[]")
    text = text.replace("bitcast(%n)", "bitcast(%p)")
    text = text.replace(
        "branch_computations={%left, %right}",
        "true_computation=%left, false_computation=%right",
    )
    assert names(dumped(tmp_path, text).time({0: np.array([value])})) == [taken]


def test_a_branch_by_what_is_not_known(tmp_path):
    with pytest.raises(InputError, match=r"hlo.txt:11: %n is not known, and %c branches by it"):
        dumped(tmp_path, CONDITIONAL).time({})


LOOP = f"""
%goes_on (s: (s32[], bf16[8])) -> pred[] {{
  %s = (s32[], bf16[8]) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %three = s32[] constant(3)
  ROOT %p = pred[] compare(%n, %three), direction=LT
}}
%turn (t: (s32[], bf16[8])) -> (s32[], bf16[8]) {{
  %t = (s32[], bf16[8]) parameter(0)
  %m = s32[] get-tuple-element(%t), index=0
  %y = bf16[8] get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%m, %one)
  {kernel("one.1", "%y")}
  ROOT %both = (s32[], bf16[8]) tuple(%next, %one.1)
}}
ENTRY %main (a: s32[], x: bf16[8]) -> (s32[], bf16[8]) {{
  %a = s32[] parameter(0)
  %x = bf16[8] parameter(1)
  %init = (s32[], bf16[8]) tuple(%a, %x)
  ROOT %w = (s32[], bf16[8]) while(%init), condition=%goes_on, body=%turn
}}
"""


@pytest.mark.parametrize(("begin", "turns"), [(0, 3), (2, 1), (3, 0)])
def test_a_loop(tmp_path, begin, turns):
    timed = dumped(tmp_path, LOOP).time({0: np.array(begin)})
    assert names(timed) == ["one.1"] * turns
    assert timed.cycles == (timed.steps[-1].ended if turns else 0)


def test_a_loop_that_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr(call, "MOST_TURNS", 5)
    text = LOOP.replace("add(%m, %one)", "copy(%m)")
    with pytest.raises(ScheduleError, match="%w has not ended after 5 turns"):
        dumped(tmp_path, text).time({0: np.array(0)})


def test_a_call_of_a_computation(tmp_path):
    text = f"""
{BRANCHES}
ENTRY %main (x: bf16[8]) -> bf16[8] {{
  %x = bf16[8]{{0}} parameter(0)
  %c = bf16[8]{{0}} call(%x), to_apply=%right
  ROOT %d = bf16[8]{{0}} call(%c), to_apply=%left
}}
"""
    assert names(dumped(tmp_path, text).time({})) == ["two.1", "one.1"]


FUSIONS = """
ENTRY %main (x: bf16[8]) -> bf16[8] {
  %x = bf16[8]{0} parameter(0)
  %copy.1 = bf16[8]{0} copy(%x), metadata={op_name="first"}
  ROOT %copy.2 = bf16[8]{0} copy(%copy.1), metadata={op_name="second"}
}
"""


def test_what_does_the_same_has_one_schedule(tmp_path):
    timed = dumped(tmp_path, FUSIONS, ["copy.1"]).time({})
    assert names(timed) == ["copy.1", "copy.2"]
    assert timed.steps[0].cycles == timed.steps[1].cycles > 0


def test_what_has_no_schedule_is_an_error(tmp_path):
    text = FUSIONS.replace("bf16[8]{0} copy(%copy.1)", "bf16[8]{0} negate(%copy.1)")
    with pytest.raises(InputError, match=r"there is no schedule of %copy.2"):
        dumped(tmp_path, text, ["copy.1"]).time({})


def test_single_values_take_no_time(tmp_path):
    text = FUSIONS.replace("[8]", "[1]")
    assert names(dumped(tmp_path, text, ["other.1"]).time({})) == []


INTEGERS = """
ENTRY %main (q: bf16[64,8], t: s32[8], m: s32[2,3]) -> s32[2,3] {
  %q = bf16[64,8]{1,0} parameter(0)
  %t = s32[8]{0} parameter(1)
  ROOT %m = s32[2,3]{1,0} parameter(2)
}
"""


@pytest.mark.parametrize(
    ("parameters", "place", "problem"),
    [
        ({1: [3, 5]}, "hlo.txt:4", r"parameter 1, %t, is s32[8], and integers [2] are given"),
        ({2: [[1, 2], [3, 4], [5, 6]]}, "hlo.txt:5", "is s32[2,3], and integers [3,2] are given"),
        ({0: [0] * 512}, "hlo.txt:3", "is bf16[64,8], and integers [512] are given"),
        ({99: [1]}, "hlo.txt", "the call has no parameter 99"),
    ],
)
def test_what_is_given_is_compared_with_the_parameters(tmp_path, parameters, place, problem):
    found = dumped(tmp_path, INTEGERS)
    with pytest.raises(InputError) as raised:
        found.time({number: np.array(value) for number, value in parameters.items()})
    assert problem in raised.value.problem
    assert raised.value.place.endswith(place)
    assert "--operand" in raised.value.next_step


def test_what_is_given_may_be_flat(tmp_path):
    timed = dumped(tmp_path, INTEGERS).time({1: np.arange(8), 2: np.arange(6)})
    assert timed.cycles == 0


def test_a_workload_of_more_tokens_than_the_call_was_compiled_for(tmp_path):
    found = dumped(tmp_path, INTEGERS)
    known = workloads.load()
    assert predict.operands_of(found, known.workload("w1"), 64)
    with pytest.raises(InputError, match=r"w5.* has 1,056 tokens, and parameter 0, %q, 64 rows"):
        predict.operands_of(found, dataclasses.replace(known.workload("w5"), name="w5"), 64)


READS = """\
= control target key end

   0   :  { %s1_s1 = inlined_call_operand.hbm [shape: s32[8], index: 0, kind: input] ;; %s2_s2 = smov.u32 [#allocation3] }
   0x1   :  { %3 = dma.hbm_to_smem %s1_s1, 1, %s2_s2, [#allocation4] }
   0x2   :  { %4 = dma.done.wait [#allocation4], 1 }
   0x3   :  { %s6_s6 = sld [smem:[#allocation3]] }
   0x4   :  { %7 = dma.done.wait [#allocation5], %s6_s6 }
   0x5   :  { }
"""  # noqa: E501


def reading(folder, dtype="s32", layout="{0}", size=8, opcode="custom-call"):
    """A kernel that waits for as many granules as the first word of its operand says: never."""
    text = f"""
ENTRY %main (a: {dtype}[{size}]) -> bf16[8] {{
  %a = {dtype}[{size}]{layout} parameter(0)
  ROOT %one.1 = bf16[8]{{0}} custom-call(%a), custom_call_target="tpu_custom_call"
}}
"""
    made = dumped(folder, text)
    (folder / "0-one.1-03-final_bundles.txt").write_text(READS)
    return made


@pytest.mark.parametrize("dtype", ["s32", "u32", "s8", "u8", "s16", "u16", "pred"])
def test_an_operand_that_is_missing_is_told_and_not_what_comes_of_it(tmp_path, dtype):
    with pytest.raises(InputError, match=r"%a is not known, and %one.1 reads it") as raised:
        reading(tmp_path, dtype).time({})
    assert raised.value.expected == "the integers of parameter 0"
    assert raised.value.next_step.startswith("give them as --operand 0=..., or name the --workload")


def test_an_operand_that_is_given_is_not_missing(tmp_path):
    with pytest.raises(ScheduleError, match=r"one.1: bundle 0x4 waits for 5 granules") as raised:
        reading(tmp_path).time({0: np.array([5, *[0] * 7])})
    assert raised.value.place.endswith("final_bundles.txt:7")
    assert reading(tmp_path).time({0: np.zeros(8, int)}).cycles > 0


def test_a_kernel_is_given_words_as_they_lie_in_memory(tmp_path):
    """Bytes are packed into words: 1 + 2 * 256."""
    with pytest.raises(ScheduleError, match="waits for 513 granules"):
        reading(tmp_path, "s8", "{0:T(8)(2)(4,1)}").time({0: np.array([1, 0, 2, *[0] * 5])})


def test_steps_that_are_taken_again_are_kept_apart(tmp_path):
    found = dumped(tmp_path, LOOP)
    timed = found.time({0: np.array(0)}, with_path=True)
    assert names(timed) == ["one.1"] * 3
    processes = timeline.of(timed).processes
    for step, process in zip(timed.steps, processes, strict=True):
        slices = [*process.core.slices, *process.copies[0].slices]
        assert all(step.begun <= each.begun <= each.ended <= step.ended for each in slices)
    page = view.of(found, timed, "t", "", None)
    assert len(page.charts) == len(page.points) == 3


def test_steps_around_the_kernels_are_added_up(tmp_path):
    text = FUSIONS.replace("copy.2", "copy.1").replace("%copy.1)", "%x)")
    timed = dumped(tmp_path, text, ["copy.1"]).time({})
    twice = dataclasses.replace(timed, steps=timed.steps * 2)
    assert predict.of_timed("", "", twice, None).around == {"copy.1": twice.cycles}


def test_words_that_a_kernel_left_unwritten_decide_nothing_in_the_next(tmp_path):
    text = """
ENTRY %main (a: bf16[8]) -> bf16[8] {
  %a = bf16[8]{0} parameter(0)
  %one.1 = s32[16]{0} custom-call(%a), custom_call_target="tpu_custom_call"
  %s = s32[8]{0} slice(%one.1), slice={[START]}
  ROOT %two.1 = bf16[8]{0} custom-call(%s), custom_call_target="tpu_custom_call"
}
"""
    writes = """\
= control target key end

   0   :  { %s1_s1 = inlined_call_operand.hbm [shape: s32[16], index: 1, kind: output] ;; %s2_s2 = smov.u32 [#allocation3] }
   0x1   :  { %s3_s3 = scalar_lea.hbm %s1_s1, 1 ;; %4 = sst [smem:[#allocation3]] 0 }
   0x2   :  { %5 = dma.smem_to_hbm %s2_s2, 1, %s3_s3, [#allocation4] }
   0x3   :  { }
"""  # noqa: E501
    for start, problem in (("8:16", ""), ("0:8", "follows from a word that nothing wrote")):
        made = dumped(tmp_path, text.replace("START", start), ["one.1", "two.1", "s"])
        (tmp_path / "0-one.1-03-final_bundles.txt").write_text(writes)
        (tmp_path / "1-two.1-03-final_bundles.txt").write_text(READS)
        if problem:
            with pytest.raises(ScheduleError, match=problem):
                made.time({})
        else:
            assert names(made.time({})) == ["one.1", "s", "two.1"]
