"""What each cycle of an attention kernel is spent on, told by where its values come from and go.

A schedule says nothing of the source that it was made of. But an attention kernel has an
exponential between two matmuls, and that tells its parts apart: what flows into the exponential
comes from the first matmul, what flows out of it goes to the second. A bundle's cycle is divided
evenly among its vector operations; where it has none, its scalar operations decide.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping

from rpagen.schedule import slots
from rpagen.schedule.read import Bundle, Operation, Schedule
from rpagen.schedule.run import Run

REGIONS = {
    "issue": "addresses of copies, and their start",
    "waits": "waiting for copies",
    "unpack": "loading keys, values and queries, and bringing them to the form of the matrix unit",
    "scores": "the first matmul",
    "softmax": "scale, mask, maximum, exponential, sums",
    "values": "the second matmul, and adding up",
    "store": "writing results",
    "spills": "registers to VMEM and back",
    "glue": "the rest: loops, scalars, latencies",
}
"""The regions, in the order in which they are shown, and what each is."""

_SPILL = re.compile(r"#allocation\d+_spill[^\]]*")
_EXPONENTIAL = re.compile(r"v(exp2|pow2|pow)\.\w+")
_MATRIX = re.compile(r"v(?P<does>matmul|matpush|matprep)\d?\..*mxu(?P<unit>\d)")
_POP = re.compile(r"vpop\.\w+\.mr[fb](\[\d+\])?\.mxu(\d)")

Weights = Mapping[str, float]


def of_run(run: Run) -> dict[str, float]:
    """Cycles of a run, by region; they add up to its cycles."""
    bundles = _of_bundles(run.program.schedule)
    spent: dict[str, float] = dict.fromkeys(REGIONS, 0.0)
    for count, weights in zip(run.executions(), bundles, strict=True):
        for region, share in weights.items():
            spent[region] += count * share
    for block, held in zip(run.program.blocks, run.matrix_stalls, strict=True):
        if held:
            shares = _total(bundles[block.first : block.last + 1], ("scores", "values"))
            for region, share in shares.items():
                spent[region] += held * share
    spent["waits"] += sum(stall.ended - stall.begun for stall in run.stalls)
    spent["waits"] += run.cycles - sum(spent.values())  # for copies that no one waits for
    return spent


def _total(bundles: Iterable[Weights], regions: tuple[str, ...]) -> dict[str, float]:
    sums = {region: sum(weights.get(region, 0.0) for weights in bundles) for region in regions}
    whole = sum(sums.values())
    return {region: each / whole if whole else 1 / len(regions) for region, each in sums.items()}


def _of_bundles(schedule: Schedule) -> list[Weights]:
    graph = _Graph(schedule)
    found: list[Weights] = []
    for bundle in schedule.bundles:
        regions = [
            graph.region(operation)
            for operation in bundle.operations
            if slots.is_vector(operation.name)
        ]
        if not regions:
            regions = _of_scalars(bundle, graph)
        if not regions:  # nothing happens: this is the latency of what came before
            found.append(found[-1] if found else {"glue": 1.0})
            continue
        counts = collections.Counter(regions)
        found.append({region: count / len(regions) for region, count in counts.items()})
    return found


def _of_scalars(bundle: Bundle, graph: _Graph) -> list[str]:
    names = [operation.name for operation in bundle.operations]
    if any(name in ("dma.done.wait", "vsyncadd") for name in names):
        return ["waits"]
    if any(graph.is_of_copy(operation) for operation in bundle.operations):
        return ["issue"]
    return ["glue"] if names else []


class _Graph:
    """Where the values of a schedule come from, and where they go."""

    def __init__(self, schedule: Schedule) -> None:
        self._operations = [each for bundle in schedule.bundles for each in bundle.operations]
        self._definition = {each.result: each for each in self._operations if each.result}
        self._uses: dict[str, list[Operation]] = collections.defaultdict(list)
        for operation in self._operations:
            for value in operation.values:
                self._uses[value].append(operation)
        self._spilled: dict[str, list[Operation]] = collections.defaultdict(list)
        self._filled: dict[str, list[Operation]] = collections.defaultdict(list)
        for operation in self._operations:
            if operation.name.startswith(("vld", "vst")) and (place := _spill(operation)):
                stored = operation.name.startswith("vst")
                (self._spilled if stored else self._filled)[place].append(operation)
        exponentials = [each for each in self._operations if _EXPONENTIAL.fullmatch(each.name)]
        self._before = self._backward(exponentials)
        self._after = self._forward(exponentials)
        self._copied = self._backward(
            each
            for each in self._operations
            if each.name.startswith("dma.") and each.name != "dma.done.wait"
        )
        pops = [each for each in self._operations if _POP.fullmatch(each.name)]
        self._of_scores = self._forward(each for each in pops if id(each) in self._before)
        self._of_values = self._forward(each for each in pops if id(each) not in self._before)
        self._of_units = self._matmuls()

    def region(self, operation: Operation) -> str:
        """Of a vector operation."""
        name, key = operation.name, id(operation)
        if name.startswith(("vld", "vst")) and _spill(operation):
            return "spills"
        if key in self._of_units:
            return self._of_units[key]
        if _POP.fullmatch(name):
            return "scores" if key in self._before else "values"
        if name.startswith("vst"):
            return "store"
        if key in self._of_values:
            return "values"
        if key in self._of_scores or key in self._after or _EXPONENTIAL.fullmatch(name):
            return "softmax"
        return "unpack"

    def is_of_copy(self, operation: Operation) -> bool:
        """Whether a scalar operation starts a copy, or computes what one takes."""
        return id(operation) in self._copied or operation.name.startswith("dma.")

    def _matmuls(self) -> dict[int, str]:
        """The region of every operation that feeds a matrix unit.

        What is pushed to a unit is for the next multiplication there.
        """
        found: dict[int, str] = {}
        waiting: dict[str, list[int]] = collections.defaultdict(list)
        for operation in self._operations:
            match = _MATRIX.fullmatch(operation.name)
            if match is None:
                continue
            if match["does"] != "matmul":
                waiting[match["unit"]].append(id(operation))
                continue
            region = "values" if self._is_after(operation) else "scores"
            for each in (id(operation), *waiting.pop(match["unit"], ())):
                found[each] = region
        return found

    def _is_after(self, operation: Operation) -> bool:
        sources = (self._definition.get(value) for value in operation.values)
        return any(each is not None and id(each) in self._after for each in sources)

    def _sources(self, operation: Operation) -> list[Operation]:
        found = [self._definition[value] for value in operation.values if value in self._definition]
        if operation.name.startswith("vld"):
            found += self._spilled.get(_spill(operation), [])
        return found

    def _receivers(self, operation: Operation) -> list[Operation]:
        if operation.name.startswith("vst"):
            return self._filled.get(_spill(operation), [])
        return self._uses.get(operation.result, [])

    def _backward(self, ends: Iterable[Operation]) -> set[int]:
        """All that the operations are made of, themselves not."""
        seen: set[int] = set()
        left = [source for each in ends for source in self._sources(each)]
        while left:
            each = left.pop()
            if id(each) not in seen:
                seen.add(id(each))
                left += self._sources(each)
        return seen

    def _forward(self, begins: Iterable[Operation]) -> set[int]:
        """All that is made of the operations, up to the matrix units and memory."""
        seen: set[int] = set()
        left = list(begins)
        while left:
            each = left.pop()
            for use in self._receivers(each):
                if id(use) not in seen and not use.name.startswith("vmatmul"):
                    seen.add(id(use))
                    left.append(use)
        return seen


def _spill(operation: Operation) -> str:
    """The place of a register in VMEM; empty for what is no spill."""
    match = _SPILL.search(operation.operands[0])
    return match[0] if match else ""
