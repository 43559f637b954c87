"""`rpagen emit`: any variant that is offered, into a folder of the user's own."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rpagen import errors
from rpagen.commands import shared
from rpagen.emit import resources
from rpagen.errors import RpagenError
from rpagen.spec import expand, load, option
from rpagen.spec.model import TIERS, Family, Variant

DOES = "emit one variant, whether or not a spec asks for it, into a folder of your own"
EXAMPLE = "rpagen emit rpa_int8 --set pipelining.kv_slots=3 -o /tmp/mine"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    verb.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="a variant, of any tier, to start from (default: the plainest of its family)",
    )
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="AXIS=VALUE",
        help="the value of an axis, as a spec would write it; may be repeated",
    )
    verb.add_argument("--family", metavar="NAME", help="the family it is of (default: by layout)")
    verb.add_argument(
        "-o", dest="output", type=shared.place, metavar="DIR", required=True, help="where to"
    )
    verb.add_argument("--force", action="store_true", help="overwrite what was edited by hand")
    shared.add_specs(verb)


def run(options: argparse.Namespace) -> int:
    """Emit the variant and the file that it imports."""
    from rpagen.emit import single

    if options.name is None and not options.set:
        raise RpagenError("name a variant, or say what it is like with --set AXIS=VALUE")
    made = _variants(options)
    folder = Path(options.output)
    for name in single.emit(folder, made, _command(options), options.force):
        print(shared.shown(folder / name))
    return shared.ALL_WELL


def _variants(options: argparse.Namespace) -> tuple[Variant, ...]:
    families = load.load_families(options.specs)
    known = {variant.name: variant for variant in expand.load_variants(options.specs, TIERS)}
    chosen = option.settings(options.set)
    if options.name is not None:
        base, _, _ = shared.find_variant(options.name, options.specs)
        if options.family not in (None, base.family):
            raise RpagenError(f"{base.name} is of family {base.family}: leave out --family")
        if not chosen:
            return (base,)
        chosen = dict(option.based_on(base, chosen))
        family = next(each for each in families if each.name == base.family)
    elif options.family is not None:
        family = _family(options.family, families)
    else:
        family = option.family_for(chosen, families)
    typed = " ".join(f"--set {each}" for each in options.set)
    made = option.variants(family, chosen, typed)
    # One that a spec has is emitted as that.
    return tuple(known.get(variant.name, variant) for variant in made)


def _family(name: str, families: tuple[Family, ...]) -> Family:
    by_name = {family.name: family for family in families}
    if name not in by_name:
        near = errors.nearest(name, by_name)
        hint = f"did you mean {near}?" if near else f"there are {errors.listed(by_name)}"
        raise RpagenError(f"there is no family {errors.quoted(name)}: {hint}")
    return by_name[name]


def _command(options: argparse.Namespace) -> str:
    """What to type to have the same again."""
    words = ["rpagen", "emit"]
    words += [options.name] if options.name else []
    for each in options.set:
        words += ["--set", each]
    words += ["--family", options.family] if options.family else []
    if options.specs != resources.specs_dir():
        words += ["--specs", str(options.specs)]
    return shlex.join(words)
