"""The roofline: operations a second that were reached, by operations a byte that is moved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rpagen.schedule.generations import Generation

WIDTH, HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 48


@dataclasses.dataclass(frozen=True)
class Point:
    """Something that did so many operations, moved so many bytes, and took so long.

    peak: operations a second that bound it.
    """

    name: str
    operations: int
    bytes: int
    seconds: float
    peak: float

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds

    def share(self, generation: Generation) -> float:
        """Of the roof above it."""
        return self.rate / min(self.peak, generation.bandwidth * self.intensity)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A place on the diagram, with what is written there."""

    x: float
    y: float
    text: str


@dataclasses.dataclass(frozen=True)
class Diagram:
    """The geometry, in units of the picture, whose size is WIDTH by HEIGHT.

    roof: corners of the line. points: with their number as text. columns, rows: ticks of the axes.
    """

    roof: tuple[Mark, ...]
    points: tuple[Mark, ...]
    columns: tuple[Mark, ...]
    rows: tuple[Mark, ...]
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM


def diagram(points: Sequence[Point], generation: Generation) -> Diagram:
    """Of some points, both axes being logarithmic."""
    ridge = generation.peak / generation.bandwidth
    intensities = [ridge, *(point.intensity for point in points)]
    low, high = _decades(min(intensities) / 3, max(intensities) * 3)
    rates = [generation.peak, generation.bandwidth * 10**low, *(point.rate for point in points)]
    least, most = _decades(min(rates), max(rates))

    def x(intensity: float) -> float:
        share = (math.log10(intensity) - low) / (high - low)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(rate: float) -> float:
        share = (math.log10(rate) - least) / (most - least)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP), 1)

    roof = [(10.0**low, generation.bandwidth * 10**low), (ridge, generation.peak)]
    roof.append((10.0**high, generation.peak))
    return Diagram(
        tuple(Mark(x(a), y(b), "") for a, b in roof),
        tuple(
            Mark(x(point.intensity), y(point.rate), str(number))
            for number, point in enumerate(points, 1)
        ),
        tuple(Mark(x(10.0**n), HEIGHT - _BOTTOM, f"{10.0**n:g}") for n in range(low, high + 1)),
        tuple(Mark(_LEFT, y(10.0**n), f"{10.0 ** (n - 12):g}") for n in range(least, most + 1)),
    )


def _decades(least: float, most: float) -> tuple[int, int]:
    """Powers of ten around two numbers."""
    return math.floor(math.log10(least)), math.ceil(math.log10(most))
