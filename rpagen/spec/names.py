"""The names of variants: the family, and a label for every axis that is not its default.

Names are public API. They are made from a variant's facts alone, never from the way a spec came
to them, so that within a family one name is one set of facts.
"""

from __future__ import annotations

from rpagen.spec import axes
from rpagen.spec.model import BIT_WIDTHS, Facts


def labels(facts: Facts, defaults: Facts) -> tuple[str, ...]:
    """The label of every axis in which `facts` differ from `defaults`, in table order."""
    own = tuple(
        axis.label(facts[axis.path])
        for axis in axes.WHOLE_AXES
        if facts[axis.path] != defaults[axis.path]
        and not _goes_without_saying(axis.path, facts, defaults)
    )
    # What holds for every launch is said before what holds for one.
    shared = {
        axis.path: axis.label(facts[axes.launch_path(axes.LAUNCHES[0], axis.path)])
        for axis in axes.PIPELINING_AXES
        if _differs(axis.path, facts, defaults)
        and len({facts[axes.launch_path(launch, axis.path)] for launch in axes.LAUNCHES}) == 1
    }
    single = tuple(
        axes.BY_PATH[path].label(facts[path])
        for launch in axes.LAUNCHES
        for axis in axes.PIPELINING_AXES
        for path in [axes.launch_path(launch, axis.path)]
        if axis.path not in shared and facts[path] != defaults[path]
    )
    return (*own, *shared.values(), *single)


def _differs(path: str, facts: Facts, defaults: Facts) -> bool:
    paths = [axes.launch_path(launch, path) for launch in axes.LAUNCHES]
    return any(facts[path] != defaults[path] for path in paths)


def _goes_without_saying(path: str, facts: Facts, defaults: Facts) -> bool:
    if path == "query.dtype":
        # Where both dtypes are the same, the label of the cache's says it for both.
        return facts["kv.dtype"] == facts[path] and facts["kv.dtype"] != defaults["kv.dtype"]
    if path == "quantization":
        return facts[path] == _usual(facts) and defaults[path] == _usual(defaults)
    return False


def _usual(facts: Facts) -> str:
    """The quantization that the dtype of a cache implies."""
    return "per_tensor" if BIT_WIDTHS[str(facts["kv.dtype"])] == 8 else "none"
