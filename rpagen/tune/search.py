"""The search: from the default blocks downhill, step by step, until no step is worth it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from rpagen.errors import RpagenError
from rpagen.tune.blocks import Blocks, Space

LEAST_GAIN = 0.01
"""Of a step, as a share of the time: predicted times that are closer are the same."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search came to. tried: the cost of all blocks that were tried, of the best too."""

    start: Blocks
    best: Blocks
    tried: Mapping[Blocks, float]


def downhill(
    space: Space, start: Blocks, cost: Callable[[Sequence[Blocks]], Sequence[float]]
) -> Found:
    """The best blocks that single steps lead to, each to the best neighbour.

    cost: of some blocks, in their order; infinite where the compiler has something against them.

    Raises:
        RpagenError: the start has no cost.
    """
    tried = dict(zip([start], cost([start]), strict=True))
    if math.isinf(tried[start]):
        raise RpagenError(f"the default blocks {start.argument} of {space.launch} do not compile")
    here = start
    while True:
        new = [each for each in space.neighbours(here) if each not in tried]
        tried |= dict(zip(new, cost(new), strict=True))
        # Among equals the smallest, so that what is found does not depend on the order of trials.
        best = min(space.neighbours(here), key=lambda each: (tried[each], each), default=here)
        if tried[best] > (1 - LEAST_GAIN) * tried[here]:
            return Found(start, here, tried)
        here = best
