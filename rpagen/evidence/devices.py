"""The TPUs that libtpu compiles for, and what each cannot run."""

from __future__ import annotations

import dataclasses

from rpagen.spec import rules
from rpagen.spec.model import GENERATIONS, Exclusion, Variant


@dataclasses.dataclass(frozen=True)
class Device:
    """A TPU generation: a topology of libtpu that has it, and variants that it cannot run."""

    topology: str
    exclusions: tuple[Exclusion, ...] = ()


DEVICES = {
    "v4": Device(
        "v4:2x2x1",
        # libtpu: "Unsupported matmul RHS type on target: vector<128x128xf8E4M3FN>"
        (
            Exclusion(
                {"quantization": ("per_tensor_with_query",)},
                "the matrix unit of v4 does not multiply 8-bit floats",
            ),
        ),
    ),
    "v5e": Device("v5e:2x2"),
    "v5p": Device("v5p:2x2x1"),
    "v6e": Device("v6e:2x2"),
    "v7x": Device("tpu7x:2x2x1"),
}


def exclusion(variant: Variant, device: str) -> str | None:
    """Why a variant is not for a device; None if it is.

    v4 and v5p, which no spec names, are for variants that a spec has for all that it names.
    """
    if device not in variant.generations and variant.generations != GENERATIONS:
        return f"its spec has it for {', '.join(variant.generations)} only"
    found = (each for each in DEVICES[device].exclusions if rules.applies(each, variant.facts))
    return next((each.reason for each in found), None)
