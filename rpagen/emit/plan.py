"""What the emitted package should be, and how far the files at hand are from it.

`generate` mends what `check` reports: both ask here, and neither renders to find out.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from pathlib import Path

import rpagen
from rpagen import errors
from rpagen.emit import header, inputs, render, write
from rpagen.emit.format import black_version
from rpagen.emit.header import Header
from rpagen.emit.render import Module
from rpagen.spec import expand
from rpagen.spec.model import TIERS, Catalogue

TIER_CHOICES = {**{tier: (tier,) for tier in TIERS}, "all": TIERS}
DEFAULT_TIER = TIERS[0]


class State(enum.Enum):
    """How an emitted file differs from what it should be."""

    CURRENT = "current"
    MISSING = "missing"
    STALE = "stale"
    HAND_EDITED = "hand-edited"
    ORPHANED = "orphaned"


@dataclasses.dataclass(frozen=True)
class Found:
    """A module that should be there, and what is there.

    expected: its header, the digest of the body not yet known.
    actual: the header of the file, None when it has none that can be read.
    body: the text below the header.
    """

    module: Module
    expected: Header
    actual: Header | None
    body: str
    state: State

    @property
    def must_render(self) -> bool:
        """Whether the body at hand cannot be kept: where only the header is stale it can."""
        if self.state is State.STALE:
            return self.actual is None or self.actual.inputs != self.expected.inputs
        return self.state is not State.CURRENT


@dataclasses.dataclass(frozen=True)
class Plan:
    """The modules of the package, and the files that belong to none of them any more.

    orphans: names of emitted files that nothing emits any more, each with whether it was edited
    since.
    """

    root: Path
    catalogue: Catalogue
    found: tuple[Found, ...]
    orphans: dict[str, bool]


def make(root: Path, specs: Path, tier: str = DEFAULT_TIER) -> Plan:
    """Read the specs, and compare what they ask for with the files below `root`.

    Raises:
        SpecError: a spec is wrong.
    """
    catalogue = expand.load_catalogue(specs, TIER_CHOICES[tier])
    modules = render.modules(catalogue)
    found = tuple(_find(root, module, catalogue, tier) for module in modules)
    return Plan(root, catalogue, found, _orphans(root, [module.path for module in modules]))


def expected_header(module: Module, catalogue: Catalogue, command: str) -> Header:
    """The header that a module should have, but for the digest of its body.

    command: what to type to emit it again.
    """
    return Header(
        # A line break in a path would end the comment, and make code of the rest.
        origin=errors.printable(module.origin),
        command=errors.printable(command),
        inputs=inputs.digest(render.inputs(module, catalogue)),
        generator=rpagen.__version__,
        black=black_version(),
    )


def _find(root: Path, module: Module, catalogue: Catalogue, tier: str) -> Found:
    command = "rpagen generate" + (f" --tier {tier}" if tier != DEFAULT_TIER else "")
    expected = expected_header(module, catalogue, command)
    text = write.read(root / module.path)
    if text is None:
        return Found(module, expected, None, "", State.MISSING)
    actual, body = header.split(text)
    if actual is None or actual.body != header.digest(body):
        state = State.HAND_EDITED
    elif actual != expected.sign(body):
        state = State.STALE
    else:
        state = State.CURRENT
    return Found(module, expected, actual, body, state)


def _orphans(root: Path, paths: Iterable[str]) -> dict[str, bool]:
    """The emitted files, in the folders of the package, that are not among `paths`."""
    wanted = {root / path for path in paths}
    orphans = {}
    for folder in sorted({path.parent for path in wanted}):
        for path in sorted(folder.glob("*.py")):
            text = write.read(path) or ""
            if path not in wanted and header.is_ours(text):
                found, body = header.split(text)
                is_edited = found is None or found.body != header.digest(body)
                orphans[path.relative_to(root).as_posix()] = is_edited
    return orphans
