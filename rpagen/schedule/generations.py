"""What the time of a kernel takes of a TPU generation, besides its schedule.

Sources. Bandwidth, matrix units and peak: `jax.experimental.pallas.tpu.get_tpu_info` of jax 0.10.2
(v7x: of one of its two cores). Clock: peak operations a second over operations a cycle. Delay
slots: the loops of libtpu's schedules, which run as often as their source says only with these.
Latencies, efficiency and the cost of a kernel: fitted to the published times in
`docs/predictor-accuracy.md`; of v6e there are none, so its own are assumed to lie between those of
its neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

GRANULE = 32
"""Bytes in which copies are counted."""


@dataclasses.dataclass(frozen=True)
class MatrixUnit:
    """Cycles that the in-order matrix unit takes, where the schedule is denser than that.

    multiply: by bits of a streamed value, for one `vmatmul`: 8 rows of 32 bits, 16 of 16, 32 of 8.
    Those of 8 bits take twice as long as the others where their peak is that of bfloat16 (v6e), and
    as long where it is twice that (v7x). push: one row group of weights.
    """

    multiply: Mapping[int, int]
    push: int


@dataclasses.dataclass(frozen=True)
class Generation:
    """A core of a TPU generation.

    clock: cycles a second. bandwidth: bytes a second between HBM and VMEM, of which `efficiency`
    is reached. read_latency, write_latency: seconds of a copy besides. launch: seconds that a
    kernel or fusion takes besides its bundles. peak: operations a second in bfloat16.
    array: rows and columns of weights of a matrix unit.
    matrix_unit: None where no denser schedule was seen to matter: v5e's published times are met
    without.
    hbm_unit: granules that an address in HBM counts, before it is given to a copy.
    delay_slots: bundles after a branch that are executed in any case. trims_delay_slots: whether
    libtpu leaves out those at the end that are empty, up to one.
    """

    name: str
    clock: float
    bandwidth: float
    efficiency: float
    read_latency: float
    write_latency: float
    launch: float
    peak: float
    array: int
    hbm_unit: int
    delay_slots: int
    trims_delay_slots: bool
    matrix_unit: MatrixUnit | None

    @property
    def bytes_per_cycle(self) -> float:
        """That copies reach."""
        return self.bandwidth * self.efficiency / self.clock

    def cycles(self, seconds: float) -> float:
        """A time in cycles."""
        return seconds * self.clock

    def microseconds(self, cycles: float) -> float:
        """Cycles as a time."""
        return cycles / self.clock * 1e6


GENERATIONS = {
    "v5e": Generation(
        name="v5e",
        clock=1.503e9,
        bandwidth=8.2e11,
        efficiency=0.95,
        read_latency=0.82e-6,
        write_latency=0.4e-6,
        launch=1.5e-6,
        peak=1.97e14,
        array=128,
        hbm_unit=16,
        delay_slots=4,
        trims_delay_slots=False,
        matrix_unit=None,
    ),
    "v6e": Generation(
        name="v6e",
        clock=1.755e9,
        bandwidth=1.64e12,
        efficiency=0.95,
        read_latency=0.9e-6,
        write_latency=0.4e-6,
        launch=1.5e-6,
        peak=9.2e14,
        array=256,
        hbm_unit=1,
        delay_slots=4,
        trims_delay_slots=False,
        matrix_unit=MatrixUnit({32: 8, 16: 8, 8: 16}, push=2),
    ),
    "v7x": Generation(
        name="v7x",
        clock=2.203e9,
        bandwidth=3.7e12,
        efficiency=0.95,
        read_latency=1.0e-6,
        write_latency=0.4e-6,
        launch=1.5e-6,
        peak=1.155e15,
        array=256,
        hbm_unit=1,
        delay_slots=6,
        trims_delay_slots=True,
        matrix_unit=MatrixUnit({32: 8, 16: 8, 8: 8}, push=2),
    ),
}
