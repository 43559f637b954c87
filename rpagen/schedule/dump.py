"""Schedules of emitted modules: compiled once, and kept for the next time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from rpagen.emit import header, resources
from rpagen.evidence import stamps
from rpagen.evidence.shapes import CallShape
from rpagen.schedule import kept

FOLDER = ".schedules"


def default_folder() -> Path:
    """In a source checkout, `.schedules`; else a folder of the user's cache."""
    checkout = resources.checkout()
    return checkout / FOLDER if checkout else stamps.default_folder().with_name("schedules")


def of_module(
    parent: Path,
    emitted: Path,
    module: ModuleType,
    device: str,
    shape: CallShape,
    options: Mapping[str, object],
    launch: str = "",
) -> Path:
    """The folder of what libtpu wrote of a call of an emitted module.

    parent: the folder in which such folders are looked for, and left. emitted: that of the module.
    launch: the only one of the call that is compiled; all of them if empty.

    Raises:
        Exception: whatever the compiler, or a check of the module, has against the call.
    """
    name = stamps.name(
        {
            **stamps.surroundings(),
            "device": device,
            "shape": asdict(shape),
            "options": {key: str(value) for key, value in options.items()},
            **({"launch": launch} if launch else {}),
            **{
                each: header.split((emitted / f"{each}.py").read_text(encoding="utf-8"))[1]
                for each in (module.VARIANT.name, "support")
            },
        }
    )
    folder = parent / name
    if not folder.is_dir():
        from rpagen.evidence import compile

        compile.compile_variant(module, device, shape, launch=launch, **options)
        with kept.workplace(parent) as workplace:
            kept.copy(compile.dump(), workplace / "made")
            kept.name(workplace / "made", folder)
    return folder
