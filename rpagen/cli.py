"""The front door: `rpagen VERB`.

Exit status: 0 all well, 1 the thing checked fell short, 2 wrong usage or bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import rpagen
from rpagen.console import ProgressBar, table
from rpagen.emit import plan, resources, write
from rpagen.errors import RpagenError
from rpagen.spec import axes, expand, schema
from rpagen.spec.model import GENERATIONS, Variant, field_name

ALL_WELL = 0
FELL_SHORT = 1
BAD_INPUT = 2
# What a shell reports for a process that a signal ended.
INTERRUPTED = 130
PIPE_CLOSED = 141

_EQUAL_FILTERS = {
    path: field_name(path) for path in ("layout", "query.dtype", "kv.dtype", "quantization")
}
"""The axes by which `list` filters, with the field of a variant that an option must equal."""

GENERATED = "generated"
SCHEMA = "schema.json"
PLAIN = "none"
"""What `list --feature` calls a variant that has no features."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status."""
    options = argparse.Namespace(json=False)
    try:
        options = _parser().parse_args(arguments, options)
        status: int = options.run(options)
        sys.stdout.flush()  # so that a reader that left is noticed here
        return status
    except RpagenError as error:
        if options.json:
            _print_json({"error": error.parts()})
        _complain(str(error))
        return error.exit_status
    except BrokenPipeError:
        # The interpreter flushes once more when it ends; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        _complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


# --- verbs ---------------------------------------------------------------------------------------


def _generate(options: argparse.Namespace) -> int:
    from rpagen.emit import generate

    root = _output(options)
    with ProgressBar("rendering") as progress:
        report = generate.generate(
            root,
            options.specs,
            options.tier,
            jobs=options.jobs,
            force=options.force,
            progress=progress,
        )
    for name in report.overwritten:
        print(f"overwrote {name}, which had been edited by hand")
    for name in report.removed:
        print(f"removed {name}, which nothing emits any more")
    for name in report.kept:
        path = shlex.quote(str(root / name))
        print(f"left {name}, which nothing emits but somebody edited; to be rid of it: rm {path}")
    written = len(report.written)
    if _is_checked_in(options):
        written += len(write.write_changed(resources.specs_dir(), {SCHEMA: schema.text()}))
    print(f"{report.total} files, {len(report.rendered)} rendered, {written} written")
    return ALL_WELL


def _check(options: argparse.Namespace) -> int:
    from rpagen.emit import check

    regenerate = _regenerate(options)
    faults = check.check(_output(options), options.specs, options.tier, regenerate)
    if _is_checked_in(options):
        faults += check.check_schema(resources.specs_dir() / SCHEMA, regenerate)
    if options.json:
        _print_json(
            [
                {
                    "path": _shown(fault.path),
                    "state": fault.state.value,
                    "next_step": fault.next_step,
                }
                for fault in faults
            ]
        )
    else:
        for fault in faults:
            print(f"{fault.state.value}: {_shown(fault.path)}; to do: {fault.next_step}")
        if not faults:
            print("everything is up to date")
    return FELL_SHORT if faults else ALL_WELL


def _list(options: argparse.Namespace) -> int:
    variants = expand.load_variants(options.specs, plan.TIER_CHOICES[options.tier])
    chosen = [variant for variant in variants if _is_chosen(variant, options)]
    if options.json:
        _print_json([_record(variant) for variant in chosen])
        return ALL_WELL
    if not chosen:
        everywhere = "" if options.tier == "all" else f" in the tier {options.tier}; try --tier all"
        print(f"no variant is like that{everywhere}", file=sys.stderr)
        return ALL_WELL
    headings = ("NAME", "LAYOUT", "QUERY", "KV", "QUANTIZATION", "FEATURES", "TIER", "DEFAULT")
    rows = [
        (
            variant.name,
            variant.layout,
            variant.query_dtype,
            variant.kv_dtype,
            variant.quantization,
            ",".join(variant.features) or PLAIN,
            variant.tier,
            "yes" if variant.is_default else "",
        )
        for variant in chosen
    ]
    print(table(headings, rows))
    return ALL_WELL


def _schema(options: argparse.Namespace) -> int:
    if options.output == "-":
        sys.stdout.write(schema.text())
        return ALL_WELL
    path = Path(options.output) if options.output else _checked_in_schema()
    if options.check:
        if write.read(path) == schema.text():
            print(f"{_shown(path)} is up to date")
            return ALL_WELL
        command = "rpagen schema" + (f" -o {shlex.quote(options.output)}" if options.output else "")
        print(f"{_shown(path)} is {'stale' if path.exists() else 'missing'}; to do: {command}")
        return FELL_SHORT
    changed = write.write_changed(path.parent, {path.name: schema.text()})
    print(f"wrote {_shown(path)}" if changed else f"{_shown(path)} is up to date")
    return ALL_WELL


# --- what the verbs share ------------------------------------------------------------------------


def _output(options: argparse.Namespace) -> Path:
    """The folder that holds, or will hold, the emitted package."""
    if options.output is not None:
        return Path(options.output)
    checkout = resources.checkout()
    if checkout is None:
        raise RpagenError("rpagen does not run from its source checkout: say where with -o DIR")
    if options.tier != plan.DEFAULT_TIER:
        raise RpagenError(
            f"{GENERATED}/ holds the tier {plan.DEFAULT_TIER}: say where to have the tier"
            f" {options.tier} with -o DIR"
        )
    return checkout / GENERATED


def _checked_in_schema() -> Path:
    if resources.checkout() is None:
        raise RpagenError(
            "rpagen does not run from its source checkout: say where with -o FILE, or -o - to print"
        )
    return resources.specs_dir() / SCHEMA


def _is_checked_in(options: argparse.Namespace) -> bool:
    """Whether a command is about the files that the source checkout keeps."""
    return options.output is None and options.specs == resources.specs_dir()


def _regenerate(options: argparse.Namespace) -> str:
    """The command that brings up to date what a command looked at."""
    words = ["rpagen", "generate"]
    if options.tier != plan.DEFAULT_TIER:
        words += ["--tier", options.tier]
    if options.specs != resources.specs_dir():
        words += ["--specs", str(options.specs)]
    if options.output is not None:
        words += ["-o", options.output]
    return "make generate" if len(words) == 2 else shlex.join(words)


def _is_chosen(variant: Variant, options: argparse.Namespace) -> bool:
    """Whether `list` shows a variant."""
    is_equal = all(
        value is None or getattr(variant, name) == value
        for name, value in ((name, getattr(options, name)) for name in _EQUAL_FILTERS.values())
    )
    has_features = all(
        not variant.features if feature == PLAIN else variant.has(feature)
        for feature in options.feature
    )
    has_generation = options.generation is None or options.generation in variant.generations
    return is_equal and has_features and has_generation


def _record(variant: Variant) -> dict[str, object]:
    """A variant as `--json` prints it."""
    return {
        "name": variant.name,
        "family": variant.family,
        "layout": variant.layout,
        "query_dtype": variant.query_dtype,
        "kv_dtype": variant.kv_dtype,
        "quantization": variant.quantization,
        "features": list(variant.features),
        "launches": {launch: dataclasses.asdict(plan) for launch, plan in variant.launches.items()},
        "numerics": variant.numerics,
        "tier": variant.tier,
        "generations": list(variant.generations),
        "is_default": variant.is_default,
        "spec": f"{variant.mark.file}:{variant.mark.line}",
    }


def _shown(path: Path) -> str:
    """A path as a person at hand would type it."""
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _complain(problem: str) -> None:
    print(f"error: {problem}", file=sys.stderr)


# --- the command line ----------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong as every other error does, and where to look."""
        self.exit(BAD_INPUT, f"error: {message}\nsee: {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rpagen",
        description="Specs in, specialised ragged paged attention kernels for TPUs out.",
        epilog="Exit status: 0 all well, 1 the thing checked fell short, 2 wrong usage or input.",
    )
    parser.add_argument("--version", action="version", version=f"rpagen {rpagen.__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    generate = _add_verb(
        verbs,
        _generate,
        "emit the package of kernels, as far as it is not up to date",
        "rpagen generate -o /tmp/kernels",
    )
    _add_place(generate)
    generate.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="processes that render (default: as many as there are cores)",
    )
    generate.add_argument(
        "--force", action="store_true", help="render every module, whatever its digests say"
    )

    check = _add_verb(
        verbs,
        _check,
        "tell which emitted files are missing, stale, orphaned or edited by hand",
        "rpagen check --json",
    )
    _add_place(check)
    _add_json(check)

    listing = _add_verb(
        verbs,
        _list,
        "show the variants that the specs make",
        "rpagen list --kv-dtype float8_e4m3fn --feature sliding_window",
    )
    _add_specs(listing)
    for path, name in _EQUAL_FILTERS.items():
        listing.add_argument(
            f"--{name.replace('_', '-')}",
            choices=axes.words(path),
            help=axes.BY_PATH[path].doc,
        )
    listing.add_argument(
        "--feature",
        action="append",
        default=[],
        choices=(PLAIN, *axes.words("features")),
        help=f"may be repeated, then all of them; {PLAIN} is no feature at all",
    )
    listing.add_argument("--generation", choices=GENERATIONS, help="the TPU generation it serves")
    _add_json(listing)

    schema_verb = _add_verb(
        verbs,
        _schema,
        "write the JSON Schema with which an editor completes and checks specs",
        "rpagen schema -o -",
    )
    schema_verb.add_argument(
        "-o",
        dest="output",
        metavar="FILE",
        help="where to; - prints it (default: specs/schema.json of the source checkout)",
    )
    schema_verb.add_argument(
        "--check", action="store_true", help="write nothing, and end with 1 where it is stale"
    )
    return parser


def _add_verb(
    verbs: argparse._SubParsersAction[_Parser],
    run: Callable[[argparse.Namespace], int],
    does: str,
    example: str,
) -> _Parser:
    verb: _Parser = verbs.add_parser(
        run.__name__.removeprefix("_"),
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"Example: {example}",
    )
    verb.set_defaults(run=run)
    return verb


def _add_place(verb: _Parser) -> None:
    _add_specs(verb)
    verb.add_argument(
        "-o",
        dest="output",
        metavar="DIR",
        help=f"the folder of the package (default: {GENERATED}/ of the source checkout)",
    )


def _add_specs(verb: _Parser) -> None:
    verb.add_argument(
        "--specs",
        type=Path,
        default=resources.specs_dir(),
        metavar="DIR",
        help="the folder that holds families/ (default: the specs rpagen comes with)",
    )
    verb.add_argument(
        "--tier",
        choices=tuple(plan.TIER_CHOICES),
        default=plan.DEFAULT_TIER,
        help="which variants (default: %(default)s)",
    )


def _add_json(verb: _Parser) -> None:
    verb.add_argument("--json", action="store_true", help="print JSON")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return int(text)
