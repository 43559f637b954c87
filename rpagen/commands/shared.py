"""What several verbs share: options, the places they speak of, and how they print."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rpagen import errors
from rpagen.emit import plan, render, resources, write
from rpagen.emit.render import Module
from rpagen.errors import RpagenError
from rpagen.spec import axes, expand
from rpagen.spec.model import GENERATIONS, TIERS, Catalogue, Variant

ALL_WELL = 0
FELL_SHORT = 1

GENERATED = "generated"
SCHEMA = "schema.json"

MOST = 1 << 30
"""Of any number that an option takes: kernels count in 32 bits."""


def add_specs(verb: argparse.ArgumentParser) -> None:
    """Add `--specs`: where the families are."""
    verb.add_argument(
        "--specs",
        type=path,
        default=resources.specs_dir(),
        metavar="DIR",
        help="the folder that holds families/ (default: the specs rpagen comes with)",
    )


def add_tier(verb: argparse.ArgumentParser) -> None:
    """Add `--tier`: which of the variants."""
    verb.add_argument(
        "--tier",
        choices=tuple(plan.TIER_CHOICES),
        default=plan.DEFAULT_TIER,
        help="which variants (default: %(default)s)",
    )


def add_model(verb: argparse.ArgumentParser) -> None:
    """Add what says which heads are meant: a model, the devices that share it, and dtypes."""
    verb.add_argument(
        "config", type=Path, metavar="CONFIG.json", help="the config.json of a Hugging Face model"
    )
    verb.add_argument(
        "--tp",
        type=size,
        default=1,
        metavar="N",
        help="devices that share the heads of every layer; a v7x chip is two (default: 1)",
    )
    verb.add_argument(
        "--device",
        choices=GENERATIONS,
        default="v6e",
        help="the TPU generation (default: %(default)s)",
    )
    verb.add_argument(
        "--dtype",
        choices=axes.words("query.dtype"),
        help="of the queries (default: that of the model)",
    )
    verb.add_argument(
        "--kv-dtype",
        choices=axes.words("kv.dtype"),
        help="of the KV cache (default: that of the queries)",
    )


def add_package(verb: argparse.ArgumentParser) -> None:
    """Add what says which package of kernels is meant: `--specs`, `--tier` and `-o`."""
    add_specs(verb)
    add_tier(verb)
    verb.add_argument(
        "-o",
        dest="output",
        type=place,
        metavar="DIR",
        help=f"the folder of the package (default: {GENERATED}/ of the source checkout)",
    )


def add_json(verb: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    verb.add_argument("--json", action="store_true", help="print JSON")


def place(text: str) -> str:
    """The path that an option names. An empty one is a variable that a shell does not know."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: write . for the current folder")
    return text


def path(text: str) -> Path:
    """The same, as a path."""
    return Path(place(text))


def check_places(options: argparse.Namespace, *names: str) -> None:
    """Try whether the files that options name can be written, before what takes long.

    Raises:
        InputError: one cannot.
    """
    for name in names:
        file = getattr(options, name)
        if file is not None:
            write.check_place(file)


def size(text: str) -> int:
    """A number of something, as an option takes it."""
    return _whole(text, 1)


def count(text: str) -> int:
    """A number of something that there may be none of."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or not least <= int(text[:20]) <= MOST:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no whole number from {least} to {MOST}")
    return int(text)


def add_variants(verb: argparse.ArgumentParser) -> None:
    """Add what says which variants are meant: names, or else `--tier`, of `--specs`."""
    verb.add_argument(
        "names", nargs="*", metavar="NAME", help="variants (default: all that --tier says)"
    )
    add_specs(verb)
    add_tier(verb)


def variants(options: argparse.Namespace) -> Sequence[Variant]:
    """The variants that a command is about.

    Raises:
        RpagenError: there is none of a name.
        SpecError: a spec is wrong.
    """
    if options.names:
        names = dict.fromkeys(options.names)
        return [find_variant(name, options.specs)[0] for name in names]
    return expand.load_variants(options.specs, plan.TIER_CHOICES[options.tier])


def output(options: argparse.Namespace) -> Path:
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


def is_checked_in(options: argparse.Namespace) -> bool:
    """Whether a command is about the files that the source checkout keeps."""
    return options.output is None and options.specs == resources.specs_dir()


def regenerate(options: argparse.Namespace) -> str:
    """The command that brings up to date what a command looked at."""
    words = ["rpagen", "generate"]
    if options.tier != plan.DEFAULT_TIER:
        words += ["--tier", options.tier]
    if options.specs != resources.specs_dir():
        words += ["--specs", str(options.specs)]
    if options.output is not None:
        words += ["-o", options.output]
    return "make generate" if len(words) == 2 else shlex.join(words)


def find(name: str, specs: Path) -> tuple[Module, Catalogue]:
    """The module of that name, a variant of any tier or one that all share, and its catalogue.

    Raises:
        RpagenError: there is none.
        SpecError: a spec is wrong.
    """
    for tiers in (TIERS[:1], TIERS):  # the registry that is checked in is that of the core
        catalogue = expand.load_catalogue(specs, tiers)
        modules = {Path(module.path).stem: module for module in render.modules(catalogue)}
        if name in modules:
            return modules[name], catalogue
    near = errors.nearest(name, modules)
    hint = f"did you mean {near}?" if near else "`rpagen list --tier all` shows those there are"
    raise RpagenError(f"there is no variant {errors.quoted(name)}: {hint}")


def find_variant(name: str, specs: Path) -> tuple[Variant, Module, Catalogue]:
    """The variant of that name, of any tier, with its module.

    Raises:
        RpagenError: there is none.
        SpecError: a spec is wrong.
    """
    module, catalogue = find(name, specs)
    if module.variant is None:
        raise RpagenError(f"{module.path} is shared by all variants: name a variant")
    return module.variant, module, catalogue


def command(
    verb: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    options: argparse.Namespace,
    *,
    apart: Collection[str] = (),
    **written: str,
) -> str:
    """The command with these options, as a record keeps it: what is at its default is left out.

    add_arguments: of the module of the verb. apart: the options that make no difference to what is
    found, by the names of their values. written: how a value is written of which `str` is another.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    defaults = parser.parse_args([])
    words = ["rpagen", verb]
    for action in parser._actions:  # argparse has no public list of them
        name = action.dest
        value = getattr(options, name)
        if name in apart or value == getattr(defaults, name):
            continue
        if not action.option_strings:
            words += value if isinstance(value, list) else [str(value)]
            continue
        option = action.option_strings[-1]
        text = written.get(name, str(value))
        if action.nargs == 0:
            words.append(option)
        else:  # a value that begins with a dash would be taken for an option
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(words)


def shown(path: Path) -> str:
    """A path as a person at hand would type it."""
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def complain(problem: str) -> None:
    """Say what went wrong, on standard error, without control characters of whatever it names."""
    said = "\n".join(map(errors.printable, problem.split("\n")))
    with contextlib.suppress(OSError):  # there is nobody left to tell
        print(f"error: {said}", file=sys.stderr, flush=True)
