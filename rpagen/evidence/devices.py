"""The TPUs that libtpu compiles for, and what each cannot run."""

from __future__ import annotations

import dataclasses

from rpagen.evidence.libtpu import TOPOLOGIES
from rpagen.spec import rules
from rpagen.spec.model import GENERATIONS, Exclusion, Variant


@dataclasses.dataclass(frozen=True)
class Device:
    """A TPU generation: a topology of libtpu that has it, and variants that it cannot run."""

    topology: str
    exclusions: tuple[Exclusion, ...] = ()


_EXCLUSIONS = {
    # libtpu: "Unsupported matmul RHS type on target: vector<128x128xf8E4M3FN>"
    "v4": (
        Exclusion(
            {"kv.dtype": ("float8_e4m3fn", "float8_e5m2")},
            "the matrix unit of v4 does not multiply 8-bit floats",
        ),
    ),
}

DEVICES = {
    name: Device(topology, _EXCLUSIONS.get(name, ())) for name, topology in TOPOLOGIES.items()
}


def exclusion(variant: Variant, device: str) -> str | None:
    """Why a variant is not for a device; None if it is.

    v4 and v5p, which no spec names, are for variants that a spec has for all that it names.
    """
    if device not in variant.generations and variant.generations != GENERATIONS:
        return f"its spec has it for {', '.join(variant.generations)} only"
    found = (each for each in DEVICES[device].exclusions if rules.applies(each, variant.facts))
    return next((each.reason for each in found), None)
