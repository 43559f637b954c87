"""The elements of a buffer that a ref denotes, with the packing of a TPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax._src import dtypes
from jax._src.state import indexing
from jax._src.state import types as state_types
from jax.experimental import pallas as pl

# What uninitialized int32 holds (`primitives.uninitialized_value`): no index and no size. The
# lowest of all, times the bytes of a row, comes to none in 32 bits: a wait for it would be met.
UNINITIALIZED_INT32 = np.iinfo(np.int32).min + 54_321


@dataclasses.dataclass(frozen=True)
class RefView:
    """The elements of a buffer that a chain of ref transforms denotes.

    The buffer is seen as an array of units, unsigned integers as wide as the narrowest element
    type in the chain.  An element of the view consists of 2**k units, low bits first.  They are
    not adjacent in the buffer once a ref was bitcast to a wider type, because a TPU packs into
    one word the narrow elements of neighbouring sublanes, not of neighbouring lanes.  Hence
    `units` has k trailing axes of size 2, which together index the units of one element.

    `units` is a strided view into the buffer as long as there is one.  After a reshape or a
    bitcast that no strides can express it holds the positions of the units in `storage`, and
    `is_gather` is set.
    """

    units: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype
    storage: np.ndarray
    is_gather: bool = False
    transforms: tuple[Any, ...] = ()
    name: str = "ref"

    @classmethod
    def of(cls, buffer: np.ndarray, transforms: Sequence[Any], name: str = "ref") -> RefView:
        """Returns the view of `buffer` through `transforms`, all of whose leaves are known.

        Args:
          buffer: what the ref refers to.
          transforms: of the ref, the first one first.
          name: what messages call the ref without its transforms.

        Raises:
          IndexError: if an index is negative or outside of the view it is applied to.
        """
        casts = [t for t in transforms if isinstance(t, state_types.BitcastTransform)]
        unit_size = min([buffer.dtype.itemsize, *(np.dtype(t.dtype).itemsize for t in casts)])
        storage = buffer.reshape(-1, copy=False).view(f"u{unit_size}")
        unit_axes = _factors(buffer.dtype.itemsize // unit_size)
        units = storage.reshape(buffer.shape + unit_axes)
        view = cls(units, buffer.shape, buffer.dtype, storage, name=name)
        for transform in transforms:
            match transform:
                case indexing.NDIndexer():
                    view = view._index(transform)
                case state_types.BitcastTransform(dtype=dtype):
                    view = view._bitcast(np.dtype(dtype))
                case state_types.ReshapeTransform(shape=shape):
                    view = view._reshape(shape)
                case state_types.TransposeTransform(permutation=permutation):
                    view = view._transpose(permutation)
                case _:
                    raise NotImplementedError(f"{type(transform).__name__} of a ref")
            view = view._derive(transforms=(*view.transforms, transform))
        return view

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return self.units.size * self.storage.itemsize

    def masked(self, mask: np.ndarray) -> RefView:
        """Returns the elements at which `mask` is true, along one axis."""
        positions = self.positions()[mask]
        return self._derive(positions, positions.shape[:1], is_gather=True)

    def read(self) -> np.ndarray:
        """Returns a copy of the elements."""
        # Copying the n-th units of all elements at once keeps NumPy's inner loop long.
        values = np.empty(self.units.shape, self.storage.dtype)
        for index in np.ndindex(self.units.shape[len(self.shape) :]):
            units = self.units[..., *index]
            values[..., *index] = self.storage[units] if self.is_gather else units
        return values.reshape(-1).view(self.dtype).reshape(self.shape)

    def write(self, value: np.ndarray) -> None:
        """Assigns `value`, which has the shape and the dtype of the view, to the elements."""
        if (value.shape, value.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"cannot write {value.dtype}{list(value.shape)} to {self}, which is"
                f" {self.dtype}{list(self.shape)}"
            )
        flat = np.ascontiguousarray(value).reshape(-1)
        units = flat.view(self.storage.dtype).reshape(self.units.shape)
        if self.is_gather:
            self.storage[self.units] = units
        else:
            self.units[...] = units

    def positions(self) -> np.ndarray:
        """Returns the position in `storage` of every unit, in the shape of `units`."""
        if self.is_gather:
            return self.units
        unit_size = self.storage.itemsize
        offset = self.units.__array_interface__["data"][0]
        offset -= self.storage.__array_interface__["data"][0]
        positions = np.array(offset // unit_size)
        for size, stride in zip(self.units.shape, self.units.strides, strict=True):
            positions = positions[..., None] + np.arange(size) * (stride // unit_size)
        return positions

    def overlaps(self, other: RefView) -> bool:
        """Returns whether two views of one buffer have a byte in common."""
        if not (self.is_gather or other.is_gather):
            return np.shares_memory(self.units, other.units)
        touched = np.zeros(self.storage.nbytes, bool)
        touched[self._byte_positions()] = True
        return bool(touched[other._byte_positions()].any())

    def __str__(self) -> str:
        """Returns the chain of transforms as it would be written."""
        return self.name + "".join(map(_format_transform, self.transforms))

    def _index(self, indexer: indexing.NDIndexer) -> RefView:
        if indexer.int_indexer_shape:
            raise NotImplementedError("array as an index of a ref")
        entries: list[Any] = []
        shape: list[Any] = []
        for axis, (entry, dim) in enumerate(zip(indexer.indices, self.shape, strict=True)):
            if isinstance(entry, pl.Slice):
                start, size, stride = int(entry.start), int(entry.size), entry.stride
                if stride == 0:
                    raise NotImplementedError("stride 0 in an index of a ref")
                # An empty slice touches nothing, and may start right behind the last element.
                last = start + (size - 1) * stride if size else start - 1
                in_bounds = start >= 0 and size >= 0 and last < dim
                entries.append(slice(start, start + size * stride, stride))
                shape.append(size)
            else:
                position = int(entry)
                in_bounds = 0 <= position < dim
                entries.append(position)
            if not in_bounds:
                raise IndexError(
                    f"index {_format_index(entry, dim)} is out of bounds for axis {axis} of {self},"
                    f" whose shape is {list(self.shape)}"
                )
        # The ellipsis makes NumPy return a view of a single element too.
        return self._derive(self.units[*entries, ...], tuple(shape))

    def _bitcast(self, dtype: np.dtype) -> RefView:
        old_bits, new_bits = dtypes.itemsize_bits(self.dtype), dtypes.itemsize_bits(dtype)
        if old_bits % 8 or new_bits % 8:
            raise NotImplementedError(f"bitcast of a ref from {self.dtype} to {dtype}")
        if old_bits == new_bits:
            return self._derive(dtype=dtype)
        *major, rows, lanes = self.shape
        lane_axis = len(major) + 1
        if old_bits < new_bits:
            # The row within the word becomes the most significant part of the unit index.
            ratio = new_bits // old_bits
            factors = _factors(ratio)
            shape = (*major, rows // ratio, *factors, lanes)
            split = self._reshape(shape).units
            units = np.moveaxis(split, lane_axis + len(factors), lane_axis)
            view = self._derive(units, (*major, rows // ratio, lanes))
        else:
            ratio = old_bits // new_bits
            factors = _factors(ratio)
            units = np.moveaxis(self.units, lane_axis, lane_axis + len(factors))
            split_view = self._derive(units, (*major, rows, *factors, lanes))
            view = split_view._reshape((*major, rows * ratio, lanes))
        return view._derive(dtype=dtype)

    def _reshape(self, shape: tuple[int, ...]) -> RefView:
        units_shape = (*shape, *self.units.shape[len(self.shape) :])
        try:
            return self._derive(self.units.reshape(units_shape, copy=False), shape)
        except ValueError:  # No strides express the result.
            positions = self.positions().reshape(units_shape)
            return self._derive(positions, shape, is_gather=True)

    def _transpose(self, permutation: Sequence[int]) -> RefView:
        unit_axes = range(len(self.shape), self.units.ndim)
        units = self.units.transpose(*permutation, *unit_axes)
        return self._derive(units, tuple(self.shape[axis] for axis in permutation))

    def _derive(
        self,
        units: np.ndarray | None = None,
        shape: tuple[int, ...] | None = None,
        *,
        dtype: np.dtype | None = None,
        is_gather: bool = False,
        transforms: tuple[Any, ...] | None = None,
    ) -> RefView:
        # Every access derives several views, and `dataclasses.replace` is several times slower.
        return RefView(
            self.units if units is None else units,
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.storage,
            self.is_gather or is_gather,
            self.transforms if transforms is None else transforms,
            self.name,
        )

    def _byte_positions(self) -> np.ndarray:
        unit_size = self.storage.itemsize
        return self.positions()[..., None] * unit_size + np.arange(unit_size)


def _factors(power_of_two: int) -> tuple[int, ...]:
    return (2,) * (power_of_two.bit_length() - 1)


def _format_transform(transform: Any) -> str:
    match transform:
        case indexing.NDIndexer(indices=indices, shape=shape):
            entries = list(map(_format_index, indices, shape))
            while entries and entries[-1] == ":":
                entries.pop()
            return f".at[{', '.join(entries)}]" if entries else ""
        case state_types.BitcastTransform(dtype=dtype):
            return f".bitcast({np.dtype(dtype).name})"
        case state_types.ReshapeTransform(shape=shape):
            return f".reshape{shape}"
        case state_types.TransposeTransform(permutation=permutation):
            return f".transpose{permutation}"
        case _:
            return f".{transform}"


def _format_index(entry: Any, dim: int) -> str:
    if not isinstance(entry, pl.Slice):
        return _format_number(entry)
    if (int(entry.start), int(entry.size), entry.stride) == (0, dim, 1):
        return ":"
    stride = "" if entry.stride == 1 else f", {entry.stride}"
    return f"ds({_format_number(entry.start)}, {_format_number(entry.size)}{stride})"


def _format_number(number: Any) -> str:
    return "uninitialized" if int(number) == UNINITIALIZED_INT32 else str(int(number))
