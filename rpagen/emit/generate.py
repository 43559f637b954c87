"""Emitting the package: everything is made and found good before the first file is touched."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rpagen.emit import bodies, package, plan, write
from rpagen.emit.bodies import Progress
from rpagen.emit.plan import State


@dataclasses.dataclass(frozen=True)
class Report:
    """What a run did, by the names of files below the folder it wrote to.

    rendered: modules made anew. written: files whose bytes changed. overwritten: those among
    them that had been edited by hand. removed: files that nothing emits any more. kept: such
    files that were left, since they were edited by hand. total: files of the package.
    """

    rendered: list[str]
    written: list[str]
    overwritten: list[str]
    removed: list[str]
    kept: list[str]
    total: int


def generate(
    root: Path,
    specs: Path,
    tier: str = plan.DEFAULT_TIER,
    *,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Bring the package below `root` up to date with `specs`, and say what was done.

    jobs: processes that render; as many as there are cores when None.
    force: render every module, whatever its digests say.

    Raises:
        SpecError: a spec is wrong.
        EmitError: a template is wrong, a body is no Python or breaks a rule of `lint`, or `root`
            is somebody else's project.
        InputError: a file could not be read or written. After any of these no file has changed.
    """
    package.refuse_foreign(root)
    wanted = plan.make(root, specs, tier)
    due = [found.module for found in wanted.found if force or found.must_render]
    made = bodies.make(due, wanted.catalogue, jobs, progress)

    texts = {}
    entries = []
    for found in wanted.found:
        body = made.get(found.module.path, found.body)
        signed = found.expected.sign(body)
        entries.append((found.module, signed))
        texts[found.module.path] = signed.text() + body
    texts.update(package.files(entries))

    edited = [found.module.path for found in wanted.found if found.state is State.HAND_EDITED]
    removed = [name for name, is_edited in wanted.orphans.items() if not is_edited]
    written = write.write_changed(root, texts, removed)
    return Report(
        rendered=[module.path for module in due],
        written=written,
        overwritten=[name for name in edited if name in written],
        removed=removed,
        kept=[name for name, is_edited in wanted.orphans.items() if is_edited],
        total=len(texts),
    )
