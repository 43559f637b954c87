"""`rpagen explain`: where a variant's axes, or a line of its module, come from."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rpagen import errors
from rpagen.commands import shared
from rpagen.console import table
from rpagen.emit import explain, wording, write
from rpagen.emit.explain import Line, Otherwise
from rpagen.emit.render import Module
from rpagen.errors import RpagenError
from rpagen.spec.model import Catalogue, Setting, Variant

DOES = "say where the axes of a variant, or a line of its module, come from"
EXAMPLE = "rpagen explain rpa_sliding_window:237"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    verb.add_argument(
        "target",
        metavar="NAME[:LINE]",
        help="a variant, registry or support, or the path of its file; and a line of that file",
    )
    shared.add_specs(verb)
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Explain a variant, or a line."""
    name, number = _target(options.target)
    module, catalogue = shared.find(name, options.specs)
    if number is None:
        _explain_module(module, catalogue, options.json)
        return shared.ALL_WELL
    line = explain.line(module, catalogue, number)
    if line.place is not None:
        _refuse_other_text(options.target.rpartition(":")[0], line)
    _explain_line(module, line, options.json)
    return shared.ALL_WELL


def _target(text: str) -> tuple[str, int | None]:
    """The name of what is to be explained, and a line of it."""
    path, colon, number = text.rpartition(":")
    if not colon:
        path, number = text, ""
    elif not re.fullmatch("[0-9]{1,9}", number):
        raise RpagenError(f"{errors.quoted(number)} is no line: write NAME:LINE, such as rpa:200")
    name = Path(path).stem if path.endswith(".py") else path
    return name, int(number) if number else None


def _refuse_other_text(path: str, line: Line) -> None:
    """Refuse a file that has something else in the line than what is explained."""
    text = write.read(Path(path)) if path.endswith(".py") else None
    if text is not None and text.split("\n")[line.number - 1 : line.number] != [line.text]:
        raise RpagenError(
            f"{errors.printable(path)} is not as it is emitted now: its line {line.number} is"
            f" another one; compare with {line.text.strip()!r}, or emit it again"
        )


# --- a variant -----------------------------------------------------------------------------------


def _explain_module(module: Module, catalogue: Catalogue, as_json: bool) -> None:
    variant = module.variant
    if variant is None:
        if as_json:
            shared.print_json({"path": module.path, "origin": module.origin})
        else:
            print(f"{module.path}, which all variants share\nmade from {module.origin}")
        return
    stages = explain.stage_lines(module, catalogue)
    settings = {path: _setting(variant, path) for path in wording.axes_in_short(variant)}
    if as_json:
        shared.print_json(
            {
                "name": variant.name,
                "family": variant.family,
                "tier": variant.tier,
                "generations": list(variant.generations),
                "is_default": variant.is_default,
                "spec": module.origin,
                "axes": {path: _setting_record(setting) for path, setting in settings.items()},
                "stages": [
                    {
                        "template": f"templates/{stage.template}",
                        "launches": list(stage.launches),
                        "first_line": stage.lines[0],
                        "last_line": stage.lines[1],
                    }
                    for stage in stages
                ],
            }
        )
        return
    default = ", the default of its dispatch key" if variant.is_default else ""
    print(f"{variant.name}: family {variant.family}, tier {variant.tier}{default}")
    print(f"for {', '.join(variant.generations)}; asked for at {module.origin}\n")
    rows = [
        (path, wording.said(setting.value), setting.field, str(setting.mark))
        for path, setting in settings.items()
    ]
    print(table(("AXIS", "VALUE", "SPEC FIELD", "PLACE"), rows))
    print()
    lines = [
        (f"{stage.lines[0]}-{stage.lines[1]}", f"templates/{stage.template}", _launches(stage))
        for stage in stages
    ]
    print(table(("LINES", "TEMPLATE", "LAUNCHES"), lines))


def _setting(variant: Variant, path: str) -> Setting:
    """The setting that decided an axis: for pipelining, what its launches ended up with."""
    launch_path = next((each for each in variant.facts if each.endswith(f".{path}")), path)
    return variant.origins[launch_path]


def _launches(stage: explain.StageLines) -> str:
    return ", ".join(stage.launches)


def _setting_record(setting: Setting) -> dict[str, object]:
    value = list(setting.value) if isinstance(setting.value, tuple) else setting.value
    return {
        "value": value,
        "field": setting.field,
        "file": setting.mark.file,
        "line": setting.mark.line,
        "column": setting.mark.column,
    }


# --- a line --------------------------------------------------------------------------------------


def _explain_line(module: Module, line: Line, as_json: bool) -> None:
    variant = module.variant
    decided_by = {
        path: (_setting(variant, path), others)
        for path, others in line.depends_on.items()
        if variant is not None
    }
    if as_json:
        shared.print_json(
            {
                "path": module.path,
                "line": line.number,
                "text": line.text,
                "template": str(line.place) if line.place else None,
                "template_text": line.template_text,
                "decided_by": {
                    path: {
                        **_setting_record(setting),
                        "otherwise": [
                            {"value": each.value, "prints": each.text} for each in others
                        ],
                    }
                    for path, (setting, others) in decided_by.items()
                },
            }
        )
        return
    print(f"{module.path}:{line.number}\n    {line.text.strip()}")
    if line.place is None:
        print(f"no template printed it: it is {'blank' if not line.text.strip() else 'the header'}")
        return
    print(f"is printed by {line.place}\n    {line.template_text.strip()}")
    if variant is None:
        print(f"for {module.path}, which all variants share")
    elif not decided_by and variant.name in line.text:
        print("where the name follows from all axes")
    elif not decided_by:
        print("whatever the axes are")
    else:
        print("and depends on")
    for path, (setting, others) in decided_by.items():
        print(f"  {path}: {wording.said(setting.value)}, from {setting.field} at {setting.mark}")
        for each in others:
            print(f"    {wording.said(each.value)} {_would_print(each)}")


def _would_print(otherwise: Otherwise) -> str:
    if otherwise.text is None:
        return "would leave it out"
    return f"would print {otherwise.text}"
