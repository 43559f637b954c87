"""Many variants through the compiler, each for many devices, with the budget beside each."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rpagen import errors
from rpagen.emit import header
from rpagen.evidence import allocations, budgets, devices, emitted, stamps
from rpagen.evidence.allocations import Allocated, Taken
from rpagen.evidence.shapes import CallShape
from rpagen.spec import launches
from rpagen.spec.model import Variant


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one variant on one device.

    reason: why it is excluded, or all that was said of what stood in the way.
    launches: none unless it compiled.
    seconds: of lowering and compiling, if need be at an earlier time, when the stamp was made.
    """

    variant: str
    device: str
    reason: str = ""
    is_excluded: bool = False
    seconds: float = 0.0
    is_from_stamp: bool = False
    launches: tuple[budgets.Launch, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong: it compiled and its budget holds, or it is excluded."""
        return self.is_excluded or (bool(self.launches) and all(x.is_held for x in self.launches))


@dataclasses.dataclass(frozen=True)
class Survey:
    """Emitted modules in a folder, and the call to compile each with."""

    folder: Path
    shape: CallShape
    chunk_prefill_size: int | None
    stamps: Path
    is_anew: bool  # whether stamps are written only

    def outcomes(self, variants: Sequence[Variant], names: Sequence[str]) -> Iterator[Outcome]:
        """The outcome of every variant on every device named, in order."""
        surroundings = stamps.surroundings()
        for variant in variants:
            for device in names:
                reason = devices.exclusion(variant, device)
                if reason is not None:
                    yield Outcome(variant.name, device, reason, is_excluded=True)
                else:
                    stamp = stamps.name(surroundings | self._inputs(variant, device))
                    yield self._outcome(variant, device, stamp)

    def _outcome(self, variant: Variant, device: str, stamp: str) -> Outcome:
        problem = self.shape.problem(variant)
        plans = launches.plan(variant, problem, device, self.chunk_prefill_size)
        known = None
        if not self.is_anew:
            planned = [plan.launch for plan in plans]
            known = _known(stamps.read(self.stamps, stamp), planned)
        if known is not None:
            seconds, allocated = known
        else:
            try:
                seconds, allocated = self._compile(
                    emitted.module(self.folder, variant.name), device
                )
            except Exception as error:  # whatever it is, it is what this is about
                return Outcome(variant.name, device, errors.reason(error))
            content = {name: dataclasses.asdict(each) for name, each in allocated.items()}
            stamps.write(self.stamps, stamp, {"seconds": seconds, "launches": content})
        return Outcome(
            variant.name,
            device,
            seconds=seconds,
            is_from_stamp=known is not None,
            launches=budgets.compare(plans, problem, allocated),
        )

    def _compile(self, module: Any, device: str) -> tuple[float, Mapping[str, Allocated]]:
        from rpagen.evidence import compile  # imports jax, which takes a second

        compiled = compile.compile_variant(
            module,
            device,
            self.shape,
            chunk_prefill_size=self.chunk_prefill_size,
            **compile.options_of(module.VARIANT),
        )
        return compiled.seconds, compiled.launches

    def _inputs(self, variant: Variant, device: str) -> dict[str, object]:
        """All that tells this compilation from others at the same time and place."""
        return {
            "device": device,
            "shape": dataclasses.asdict(self.shape),
            "chunk_prefill_size": self.chunk_prefill_size,
            "module": self._body(variant.name),
            "support": self._body("support"),
        }

    def _body(self, name: str) -> str:
        return header.split((self.folder / f"{name}.py").read_text(encoding="utf-8"))[1]


def _known(content: Any, planned: Collection[str]) -> tuple[float, Mapping[str, Allocated]] | None:
    """What a stamp says; None if there is none, or one of another form or of other launches."""
    try:
        allocated = {
            name: Allocated(Taken(**each["vmem"]), Taken(**each["smem"]), each["hbm_spills"])
            for name, each in content["launches"].items()
        }
        if allocations.not_as_planned(allocated, planned):
            return None
        return float(content["seconds"]), allocated
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
