"""Drift: which emitted files are not what the specs and templates at hand would emit.

Nothing is rendered and git is not asked: the headers say what each module was made from.
"""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from rpagen.emit import package, plan, write
from rpagen.emit.plan import State
from rpagen.spec import schema


@dataclasses.dataclass(frozen=True)
class Fault:
    """One file that is not as it should be, and what to do about it."""

    path: Path
    state: State
    next_step: str


def check(root: Path, specs: Path, tier: str, regenerate: str) -> list[Fault]:
    """Every emitted file below `root` that differs from what `specs` ask for.

    regenerate: the command that puts most of them right.

    Raises:
        SpecError: a spec is wrong.
    """
    wanted = plan.make(root, specs, tier)
    next_steps = {
        State.MISSING: regenerate,
        State.STALE: regenerate,
        State.HAND_EDITED: f"move the change to the templates or the specs, then {regenerate}",
    }
    faults = [
        Fault(root / found.module.path, found.state, next_steps[found.state])
        for found in wanted.found
        if found.state is not State.CURRENT
    ]
    for name, is_edited in wanted.orphans.items():
        # `generate` removes what it emitted, and leaves what somebody worked on.
        next_step = f"rm {shlex.quote(str(root / name))}" if is_edited else regenerate
        faults.append(Fault(root / name, State.ORPHANED, next_step))

    entries = [(found.module, found.expected.sign(found.body)) for found in wanted.found]
    for name, text in package.files(entries).items():
        actual = write.read(root / name)
        # The manifest repeats the digests of the modules: as long as one is wrong, so is it.
        if actual is None or (actual != text and not (name == package.MANIFEST and faults)):
            faults.append(_of_text(root / name, actual, regenerate))
    return faults


def check_schema(path: Path, regenerate: str) -> list[Fault]:
    """The fault of the JSON Schema at `path`, if it has one."""
    actual = write.read(path)
    return [] if actual == schema.text() else [_of_text(path, actual, regenerate)]


def _of_text(path: Path, actual: str | None, regenerate: str) -> Fault:
    return Fault(path, State.MISSING if actual is None else State.STALE, regenerate)
