import numpy as np
import pytest

from rpagen.errors import InputError
from rpagen.schedule import hlo, integers

S32 = "s32[4]{0:T(128)}"


def parse(text):
    return hlo.parse(text, "call.txt")


def entry(*lines, before=""):
    """A call of these operations, the last of which is its result."""
    *first, last = lines
    body = [f"  {line}" for line in first] + [f"  ROOT {last}"]
    return parse("\n".join([before, "ENTRY %main (a: s32[4]) -> s32[4] {", *body, "}"]))


def made(*lines, before="", **arguments):
    module = entry(*lines, before=before)
    given = {int(name[1:]): np.array(value) for name, value in arguments.items()}
    return integers.results(module, module.entry, given)


def of_two(operation, a=(5, -3, 7, 0), b=(2, 4, 7, -1), result=S32):
    return made(
        f"%a = {S32} parameter(0)",
        f"%b = {S32} parameter(1)",
        f"%c = {result} {operation}",
        p0=list(a),
        p1=list(b),
    ).tolist()


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add(%a, %b)", [7, 1, 14, -1]),
        ("subtract(%a, %b)", [3, -7, 0, 1]),
        ("multiply(%a, %b)", [10, -12, 49, 0]),
        ("negate(%a)", [-5, 3, -7, 0]),
        ("minimum(%a, %b)", [2, -3, 7, -1]),
        ("maximum(%a, %b)", [5, 4, 7, 0]),
        ("clamp(%b, %a, %b)", [2, 4, 7, -1]),
        ("copy(%a)", [5, -3, 7, 0]),
    ],
)
def test_values_of_each_place(operation, expected):
    assert of_two(operation) == expected


def test_sums_are_those_of_32_bits():
    assert of_two("add(%a, %b)", a=[2**31 - 1, 0, 0, 0], b=[1, 0, 0, 0])[0] == -(2**31)
    unsigned = "u32[4]{0:T(128)}"
    assert of_two("subtract(%a, %b)", a=[0] * 4, b=[1] * 4, result=unsigned)[0] == 2**32 - 1


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("LT", [False, True, False, False]),
        ("LE", [False, True, True, False]),
        ("GT", [True, False, False, True]),
        ("GE", [True, False, True, True]),
        ("EQ", [False, False, True, False]),
        ("NE", [True, True, False, True]),
    ],
)
def test_comparisons(direction, expected):
    truths = "pred[4]{0:T(512)(128)(4,1)}"
    assert of_two(f"compare(%a, %b), direction={direction}", result=truths) == expected


def test_a_choice_by_truth_values():
    found = made(
        f"%a = {S32} parameter(0)",
        "%zero = s32[]{:T(128)} constant(0)",
        f"%zeros = {S32} broadcast(%zero), dimensions={{}}",
        "%p = pred[4]{0:T(512)(128)(4,1)} compare(%a, %zeros), direction=LT",
        f"%n = {S32} convert(%p)",
        f"%c = {S32} select(%p, %zeros, %a)",
        "%t = (s32[4], s32[4]) tuple(%c, %n)",
        p0=[3, -1, -2, 4],
    )
    assert [each.tolist() for each in found] == [[3, 0, 0, 4], [0, 1, 1, 0]]


def test_shapes():
    found = made(
        "%i = s32[2,3]{1,0:T(8,128)} iota(), iota_dimension=1",
        "%t = s32[3,2]{1,0:T(8,128)} transpose(%i), dimensions={1,0}",
        "%r = s32[6]{0:T(128)} reshape(%t)",
        "%s = s32[4]{0:T(128)} slice(%r), slice={[1:5]}",
        "%h = s32[2]{0:T(128)} slice(%r), slice={[0:6:3]}",
        "%f = s32[]{:T(128)} constant(9)",
        "%p = s32[7]{0:T(128)} pad(%s, %f), padding=1_2",
        "%k = s32[9]{0:T(128)} concatenate(%p, %h), dimensions={0}",
    )
    # r is 0 0 1 1 2 2
    assert found.tolist() == [9, 0, 1, 1, 2, 9, 9, 0, 1]


def test_a_broadcast_keeps_its_dimensions():
    found = made(
        "%i = s32[3]{0:T(128)} iota(), iota_dimension=0",
        "%b = s32[3,2]{1,0:T(8,128)} broadcast(%i), dimensions={0}",
    )
    assert found.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_constants():
    assert made("%c = s32[3]{0:T(128)} constant({4, -1, 2})").tolist() == [4, -1, 2]
    assert made("%c = pred[2]{0:T(128)} constant({true, false})").tolist() == [True, False]


def test_picked_values():
    found = made(
        f"%a = {S32} parameter(0)",
        "%i = s32[3]{0:T(128)} constant({3, 0, 9})",
        "%g = s32[3]{0:T(128)} gather(%a, %i), offset_dims={}, collapsed_slice_dims={0},"
        " start_index_map={0}, index_vector_dim=1, slice_sizes={1}",
        p0=[10, 20, 30, 40],
    )
    assert found.tolist() == [40, 10, 40]  # an index past the end is that of the last


LESS = """
%less (x: s32[], y: s32[], u: s32[], v: s32[]) -> pred[] {
  %x = s32[]{:T(128)} parameter(0)
  %y = s32[]{:T(128)} parameter(1)
  %u = s32[]{:T(128)} parameter(2)
  %v = s32[]{:T(128)} parameter(3)
  ROOT %c = pred[]{:T(512)} compare(%x, %y), direction=LT
}
"""


def test_a_sort_carries_the_other_vectors_along():
    found = made(
        f"%a = {S32} parameter(0)",
        f"%i = {S32} iota(), iota_dimension=0",
        f"%s = ({S32}, {S32}) sort(%a, %i), dimensions={{0}}, to_apply=%less",
        before=LESS,
        p0=[7, 1, 7, -2],
    )
    assert [each.tolist() for each in found] == [[-2, 1, 7, 7], [3, 1, 0, 2]]


FUSED = """
%fused (x: s32[4]) -> (s32[1], s32[4]) {
  %x = s32[4]{0:T(128)} parameter(0)
  %s = s32[1]{0:T(128)} slice(%x), slice={[2:3]}
  %n = s32[4]{0:T(128)} negate(%x)
  ROOT %t = (s32[1]{0:T(128)}, s32[4]{0:T(128)}) tuple(%s, %n)
}
"""


def test_a_fusion_is_what_it_calls():
    found = made(
        f"%a = {S32} parameter(0)",
        f"%f = (s32[1], {S32}) fusion(%a), kind=kLoop, calls=%fused",
        f"%g = {S32} get-tuple-element(%f), index=1",
        before=FUSED,
        p0=[1, 2, 3, 4],
    )
    assert found.tolist() == [-1, -2, -3, -4]


def test_a_computation_that_is_not_there():
    with pytest.raises(InputError, match=r"call.txt:4: %gone is not there"):
        made(
            f"%a = {S32} parameter(0)",
            f"%f = {S32} fusion(%a), kind=kLoop, calls=%gone",
            p0=[1, 2, 3, 4],
        )


def test_an_operation_that_is_not_known_is_named_by_all_that_follows():
    found = made(
        f"%a = {S32} parameter(0)",
        f"%s = {S32} sine(%a)",
        f"%b = {S32} add(%a, %s)",
        p0=[1, 2, 3, 4],
    )
    assert (found.origin.name, found.origin.line) == ("s", 4)
    assert found.reason == "what this `sine` makes of integers"


def test_a_parameter_that_is_not_given_is_not_known():
    assert made(f"%a = {S32} parameter(0)").reason == "a parameter that is not given"


def test_forms_that_were_not_met_are_not_known():
    for operation in (
        "pad(%a, %a), padding=1_1_1",  # between the values
        "gather(%a, %a), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0},"
        " index_vector_dim=0, slice_sizes={1}",
        "reshape(%a)",  # to another size
    ):
        found = made(
            f"%a = {S32} parameter(0)", f"%c = s32[7]{{0:T(128)}} {operation}", p0=[1, 2, 3, 4]
        )
        assert isinstance(found, integers.Unknown)


def bitcast(source, target, value):
    module = entry(f"%a = {source} parameter(0)", f"%b = {target} bitcast(%a)")
    return integers.results(module, module.entry, {0: value})


def test_a_bitcast_of_one_value():
    assert bitcast("s32[1]{0:T(128)}", "s32[]{:T(128)}", np.array([5])).tolist() == 5


def test_a_bitcast_follows_the_order_of_dimensions():
    # In memory the first dimension is the closest one: 0 2 4 1 3 5, read as three rows of two.
    found = bitcast("s32[3,2]{0,1}", "s32[3,2]{1,0}", np.arange(6).reshape(3, 2))
    assert found.tolist() == [[0, 2], [4, 1], [3, 5]]


def test_a_bitcast_follows_tiles():
    # Two tiles of 2 x 2 beside each other: 0 1 4 5, then 2 3 6 7.
    found = bitcast("s32[2,4]{1,0:T(2,2)}", "s32[8]{0}", np.arange(8).reshape(2, 4))
    assert found.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_a_bitcast_leaves_out_what_only_fills_up_a_tile():
    # 3 values in tiles of 2: 0 1 2 and one that is none.
    found = bitcast("s32[3]{0:T(2)}", "s32[1,3]{1,0:T(1,2)}", np.arange(3))
    assert found.tolist() == [[0, 1, 2]]
    assert isinstance(bitcast("s32[3]{0:T(2)}", "s32[4]{0:T(2)}", np.arange(3)), integers.Unknown)


def test_operations_that_do_the_same_have_one_signature():
    other = FUSED.replace("%fused", "%twin").replace("%x", "%y").replace("%n ", "%m ")
    other = other.replace("%n)", "%m)")
    module = entry(
        f"%a = {S32} parameter(0)",
        f"%b = {S32} parameter(1)",
        f"%f = {S32} fusion(%a), kind=kLoop, calls=%fused, metadata={{op_name=one}}",
        f"%g = {S32} fusion(%b), kind=kLoop, calls=%twin, metadata={{op_name=two}}",
        "%h = s32[5]{0:T(128)} fusion(%b), kind=kLoop, calls=%twin",
        before=FUSED + other,
    )
    named = {each.name: module.signature(each) for each in module.entry.instructions}
    assert named["f"] == named["g"] != named["h"]


def test_a_call_without_an_entry():
    with pytest.raises(InputError, match=r"call.txt:1: there is no computation to enter"):
        parse(LESS)


def test_a_computation_without_a_result():
    with pytest.raises(InputError, match=r"call.txt:1: %main has no result"):
        parse("ENTRY %main (a: s32[4]) -> s32[4] {\n  %a = s32[4] parameter(0)\n}")


def test_an_operand_that_comes_later():
    with pytest.raises(InputError, match=r"call.txt:3: %b is not there"):
        entry("%a = s32[4] negate(%b)", "%b = s32[4] parameter(0)")


def array_of(kind):
    return entry(f"%a = {kind} parameter(0)").entry.instructions[0].arrays[0]


NONE = integers.UNWRITTEN


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("s32[2,4]{1,0:T(2,2)}", np.arange(8).reshape(2, 4), [0, 1, 4, 5, 2, 3, 6, 7]),
        ("s32[3,2]{0,1}", np.arange(6).reshape(3, 2), [0, 2, 4, 1, 3, 5]),
        ("u32[2]{0}", np.array([1, 2**32 - 1]), [1, -1]),
        ("s32[3]{0:T(4)}", np.array([5, NONE, 7]), [5, NONE, 7, NONE]),
        ("s8[4]{0:T(4)}", np.array([1, -1, 0, -128]), [1 + (255 << 8) - (1 << 31)]),
        ("s16[3]{0}", np.array([1, 2, 3]), [1 + (2 << 16), NONE]),
        # Pairs of rows share words.
        ("s16[2,2]{1,0:T(2,2)(2,1)}", np.array([[1, 2], [3, 4]]), [1 + (3 << 16), 2 + (4 << 16)]),
    ],
)
def test_words_in_memory(kind, value, words):
    array = array_of(kind)
    assert integers.words(value, array).tolist() == words
    if array.dtype in ("s32", "u32"):
        assert integers.of_words(np.array(words), array).tolist() == value.tolist()


def test_what_nothing_wrote_behind_the_words_in_memory():
    found = integers.of_words(np.array([4, NONE]), array_of("s32[3]{0:T(4)}"))
    assert found.tolist() == [4, NONE, NONE]
    assert integers.of_words(np.array([4]), array_of("s8[4]{0}")) is None


def test_what_nothing_wrote_may_be_moved_and_not_reckoned_with():
    lines = (f"%a = {S32} parameter(0)", f"%b = {S32} copy(%a)")
    assert made(*lines, p0=[1, NONE, 3, 4]).tolist() == [1, NONE, 3, 4]
    found = made(*lines, f"%c = {S32} negate(%b)", p0=[1, NONE, 3, 4])
    assert (found.origin.name, found.reason) == ("c", "it reckons with words that nothing wrote")


def test_a_line_that_is_no_operation_is_an_error():
    with pytest.raises(InputError, match=r"call.txt:4: '   %b := .*' is no operation"):
        entry(f"%a = {S32} parameter(0)", f" %b := {S32} negate(%a)", f"%c = {S32} negate(%a)")


def test_an_attribute_may_go_on_over_several_lines():
    note = 'metadata={op_name="one\ntwo {"}, kernel={\n"size":8,\n"count":2}'
    found = made(f"%a = {S32} parameter(0)", f"%b = {S32} negate(%a), {note}", p0=[1, 2, 3, 4])
    assert found.tolist() == [-1, -2, -3, -4]
