"""The integers that steer a call's kernels, followed from its parameters through XLA's operations.

Only integers and truth values are followed: what a call computes in floating point decides neither
which bundles are executed nor what is copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rpagen.schedule.hlo import Array, Computation, Instruction, Module


@dataclasses.dataclass(frozen=True)
class Unknown:
    """What is not known, and the operation from which on it is not."""

    origin: Instruction
    reason: str


Value = np.ndarray | tuple["Value", ...] | Unknown
"""Of an operation: int64, some of them `UNWRITTEN`, or truth values, or a tuple."""

_COMPARISONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "negate": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "divide": lambda value, by: (value - np.fmod(value, by)) // by,  # towards zero
    "remainder": np.fmod,
    "xor": np.bitwise_xor,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "select": np.where,
    "shift-left": np.left_shift,
    "shift-right-arithmetic": np.right_shift,
    "shift-right-logical": lambda value, by: np.right_shift(value & 0xFFFFFFFF, by),
    "clamp": lambda low, value, high: np.minimum(np.maximum(low, value), high),
    "convert": lambda value: value,
    "copy": lambda value: value,
    "copy-done": lambda value: value,
    "slice-done": lambda value: value,
}
UNWRITTEN = 1 << 40
"""In an array, a word that nothing wrote: no integer of 32 bits."""

_MOVES = {
    *("bitcast", "reshape", "broadcast", "transpose", "slice", "concatenate", "pad", "copy"),
    *("copy-start", "copy-done", "slice-start", "slice-done", "custom-call", "select"),
}
"""Operations that may be given words that nothing wrote: they reckon with none."""

_INTEGERS = {"s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32}
_TRUTH = {"false": 0, "true": 1}
_SAME = ("AssumeGatherIndicesInBound",)  # a custom call that returns its operand


def results(module: Module, computation: Computation, arguments: Mapping[int, Value]) -> Value:
    """What a computation makes of its arguments, by number.

    Raises:
        InputError: it calls a computation that is not there.
    """
    values: dict[str, Value] = {}
    for each in computation.instructions:
        operands = [values[name] for name in each.operands]
        values[each.name] = result(module, each, operands, arguments)
    return values[computation.root]


def result(
    module: Module, each: Instruction, operands: Sequence[Value], arguments: Mapping[int, Value]
) -> Value:
    """What an operation makes of its operands.

    arguments: of the computation that it is in; those that are not there are unknown.

    Raises:
        InputError: it calls a computation that is not there.
    """
    if each.opcode == "parameter":
        return arguments.get(int(each.literal), Unknown(each, "a parameter that is not given"))
    if each.opcode == "tuple":
        return tuple(operands)
    if each.opcode == "get-tuple-element":
        whole = operands[0]
        return whole[int(each.attribute("index") or 0)] if isinstance(whole, tuple) else whole
    if each.opcode == "fusion":
        return results(module, module.called(each)[0], dict(enumerate(operands)))
    unknown = next((value for value in operands if isinstance(value, Unknown)), None)
    if unknown is not None:
        return unknown
    arrays = [value for value in operands if isinstance(value, np.ndarray)]
    found = None
    if each.opcode not in _MOVES and any((value == UNWRITTEN).any() for value in arrays):
        return Unknown(each, "it reckons with words that nothing wrote")
    if len(arrays) == len(operands):
        with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
            found = _made(module, each, arrays)  # or its attributes have another form
    return Unknown(each, f"what this `{each.opcode}` makes of integers") if found is None else found


def _made(module: Module, each: Instruction, operands: Sequence[np.ndarray]) -> Value | None:
    """What an operation makes of arrays; None where that is not known."""
    opcode, array = each.opcode, each.arrays[-1]
    if opcode == "sort":
        return _sorted(module, each, operands)
    if opcode == "copy-start":
        return operands[0]  # which `copy-done` returns
    if opcode == "slice-start":
        return _sliced(each, operands[0])
    if len(each.arrays) != 1 or not (array.dtype == "pred" or array.dtype in _INTEGERS):
        return None
    made = _array(each, array, operands)
    return None if made is None else _wrapped(np.broadcast_to(made, array.shape), array.dtype)


def _array(each: Instruction, array: Array, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    opcode = each.opcode
    if opcode == "constant":
        words = re.findall(r"-?\d+|true|false", each.literal)
        numbers = [_TRUTH[word] if word in _TRUTH else int(word) for word in words]
        return np.array(numbers, np.int64).reshape(array.shape)
    if opcode == "iota":
        (axis,) = each.numbers("iota_dimension") or (0,)
        line = np.arange(array.shape[axis])
        return line.reshape([-1 if index == axis else 1 for index in range(len(array.shape))])
    if opcode == "compare":
        return _COMPARISONS[each.attribute("direction") or ""](operands[0], operands[1])
    if opcode in _ELEMENTWISE:
        return _ELEMENTWISE[opcode](*operands)
    if opcode == "custom-call":
        target = (each.attribute("custom_call_target") or "").strip('"')
        if target == "AllocateBuffer":
            return np.full(array.shape, UNWRITTEN)  # what is there before it is written
        return operands[0] if target in _SAME else None
    first = operands[0]
    if opcode == "bitcast":
        return bitcast(first, each.operand_arrays[0][0], array)
    if opcode == "reshape":
        return first.reshape(array.shape)
    if opcode == "broadcast":
        kept = each.numbers("dimensions") or ()
        return first.reshape([n if i in kept else 1 for i, n in enumerate(array.shape)])
    if opcode == "transpose":
        return first.transpose(each.numbers("dimensions"))
    if opcode == "slice":
        return _sliced(each, first)
    if opcode == "concatenate":
        (axis,) = each.numbers("dimensions") or (0,)
        return np.concatenate(operands, axis)
    if opcode == "pad":
        return _padded(each, first, int(operands[1]))
    if opcode == "gather":
        return _gathered(each, first, operands[1])
    return None


def _sliced(each: Instruction, first: np.ndarray) -> np.ndarray:
    bounds = re.findall(r"\[([\d:]+)\]", each.attribute("slice") or "")
    slices = tuple(slice(*map(int, bound.split(":"))) for bound in bounds)
    return np.asarray(first[slices])


def _padded(each: Instruction, first: np.ndarray, fill: int) -> np.ndarray | None:
    sides = [
        tuple(map(int, side.split("_"))) for side in (each.attribute("padding") or "").split("x")
    ]
    if any(len(side) != 2 or min(side) < 0 for side in sides):
        return None  # between values, or with less than nothing
    return np.pad(first, sides, constant_values=fill)


def _gathered(each: Instruction, first: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    """Single values of a vector, which is the one form that was met."""
    form = [each.numbers(name) for name in ("offset_dims", "collapsed_slice_dims", "slice_sizes")]
    if first.ndim != 1 or form != [(), (0,), (1,)]:
        return None
    if each.numbers("index_vector_dim") != (indices.ndim,):
        return None
    return np.asarray(first[np.clip(indices, 0, len(first) - 1)])


def _sorted(module: Module, each: Instruction, operands: Sequence[np.ndarray]) -> Value | None:
    """Vectors, by the values at each place of all of them."""
    if operands[0].ndim != 1:
        return None
    (less,) = module.called(each)

    def is_less(a: int, b: int) -> bool:
        pairs = [np.asarray(vector[place]) for vector in operands for place in (a, b)]
        made = results(module, less, dict(enumerate(pairs)))
        if not isinstance(made, np.ndarray):
            raise ValueError(each.name)
        return bool(made)

    def order_of(a: int, b: int) -> int:
        return is_less(b, a) - is_less(a, b)

    order = sorted(
        range(len(operands[0])),
        key=functools.cmp_to_key(order_of),
    )
    made = tuple(vector[order] for vector in operands)
    return made if len(made) > 1 else made[0]


def bitcast(value: np.ndarray, source: Array, target: Array) -> np.ndarray | None:
    """The values in memory, read as an array of another type; None where they do not fill it."""
    if _width(source) != _width(target):
        return None
    if source.shape == target.shape and source.minor_to_major == target.minor_to_major:
        return value
    # Where each place in memory comes from in the source, and where it goes to in the target;
    # places that only fill up a tile are -1.
    come, go = _places(source), _places(target)
    if len(come) < source.size or len(come) != len(go):
        return None
    made = np.zeros(target.size, np.int64)
    if np.any((go >= 0) & (come < 0)):
        return None
    is_used = go >= 0
    made[go[is_used]] = value.reshape(-1)[come[is_used]]
    return made.reshape(target.shape).astype(value.dtype)


def _places(array: Array) -> np.ndarray:
    """For each place of an array in memory: the number of the value there, or -1."""
    order = array.minor_to_major[::-1] or tuple(range(len(array.shape)))
    places = np.arange(array.size).reshape(array.shape).transpose(order)
    for tile in array.tiles:
        places = _tiled(places, tile)
    return places.reshape(-1)


def _tiled(places: np.ndarray, tile: Sequence[int]) -> np.ndarray:
    """An array whose last dimensions are in tiles: first which tile, then the place in it."""
    rank = len(tile)
    places = places.reshape((1,) * (rank - places.ndim) + places.shape)
    kept, last = places.shape[:-rank], places.shape[-rank:]
    more = [-size % part for size, part in zip(last, tile, strict=True)]
    places = np.pad(places, [(0, 0)] * len(kept) + [(0, n) for n in more], constant_values=-1)
    split = [
        n
        for size, extra, part in zip(last, more, tile, strict=True)
        for n in ((size + extra) // part, part)
    ]
    places = places.reshape(*kept, *split)
    at = len(kept)
    axes = [*range(at), *range(at, at + 2 * rank, 2), *range(at + 1, at + 2 * rank, 2)]
    return places.transpose(axes)


def _width(array: Array) -> int:
    return array.bytes // max(1, math.prod(array.shape))


def _wrapped(value: np.ndarray, dtype: str) -> np.ndarray:
    """As a dtype holds it.

    Raises:
        ValueError: nothing wrote a truth value.
    """
    if dtype == "pred":
        if value.dtype != bool and (value == UNWRITTEN).any():
            raise ValueError(dtype)  # no truth value says that nothing wrote it
        return value.astype(bool)
    bits = _INTEGERS[dtype]
    low = 0 if dtype.startswith("u") else -(1 << bits - 1)
    value = value.astype(np.int64)
    return np.where(value == UNWRITTEN, UNWRITTEN, (value - low) % (1 << bits) + low)


def is_integer(dtype: str) -> bool:
    """Whether values of a dtype are followed."""
    return dtype == "pred" or dtype in _INTEGERS


def words(value: np.ndarray, array: Array) -> np.ndarray:
    """The 32-bit words of an array as they lie in memory, each from -2^31 on.

    Narrower values are packed, the first one lowest. A word is `UNWRITTEN` where nothing wrote all
    of it, or it only fills up a tile.
    """
    places = _places(array)
    flat = value.astype(np.int64).reshape(-1)
    laid = np.where(places >= 0, flat[places], UNWRITTEN)
    bits = 8 * _width(array)
    count = 32 // bits
    laid = np.pad(laid, (0, -laid.size % count), constant_values=UNWRITTEN).reshape(-1, count)
    packed = ((laid & (1 << bits) - 1) << np.arange(count) * bits).sum(axis=1)
    signed = (packed + (1 << 31)) % (1 << 32) - (1 << 31)
    return np.where((laid == UNWRITTEN).any(axis=1), UNWRITTEN, signed)


def of_words(memory: np.ndarray, array: Array) -> np.ndarray | None:
    """The array whose 32-bit words lie so in memory, from its beginning on; None if it is narrower.

    Values behind the words are `UNWRITTEN`.
    """
    if _width(array) != 4 or not is_integer(array.dtype):
        return None
    places = _places(array)[: memory.size]
    made = np.full(array.size, UNWRITTEN)
    made[places[places >= 0]] = memory[: places.size][places >= 0]
    return _wrapped(made.reshape(array.shape), array.dtype)
