"""What the interpreter raises besides IndexError, which is an access out of bounds."""

from __future__ import annotations


class RaceError(RuntimeError):
    """Two accesses to the same memory, at least one of them a write, are not ordered."""


class DeadlockError(RuntimeError):
    """A wait needs more than all the signals that can still arrive."""


class LeftoverError(RuntimeError):
    """A kernel, or the scope of a buffer, ends before everything in it was waited for."""


class PrecisionError(RuntimeError):
    """A product of float32 matrices is left to a precision that is less than float32 on a TPU."""
