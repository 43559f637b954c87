"""What must hold of any set of variants that are emitted together, proven at expansion.

The dispatcher relies on it: a name means one kernel, and a call finds one default.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpagen import errors
from rpagen.errors import SpecError
from rpagen.spec import axes, nodes
from rpagen.spec.model import GENERATIONS, TIERS, DispatchKey, Variant

LONGEST_NAME = 200
"""Characters of a name, which with a suffix is a file name on systems that allow 255 bytes."""


def names_fit(variants: Sequence[Variant]) -> None:
    """Raises SpecError where a name is too long for a file."""
    for variant in variants:
        if len(variant.name) > LONGEST_NAME:
            raise SpecError(
                f"the name {variant.name} has {len(variant.name)} characters",
                mark=variant.mark,
                field="",
                expected=f"names of at most {LONGEST_NAME} characters",
                next_step="differ from the defaults in fewer axes, or shorten the family's name",
            )


def distinct(variants: Sequence[Variant]) -> None:
    """Raises SpecError where two variants have one name, or compute the same in the same way."""
    by_name: dict[str, Variant] = {}
    by_facts: dict[object, Variant] = {}
    for variant in variants:
        facts = [(*variant.facts.values(), generation) for generation in variant.generations]
        same = by_name.get(variant.name)
        if same is None:
            same = next((by_facts[each] for each in facts if each in by_facts), None)
        if same is not None:
            alias = "" if same.name == variant.name else f" as {same.name}"
            raise SpecError(
                f"the variant {variant.name} is made twice, before this{alias} at {same.mark}",
                mark=variant.mark,
                field="",
                expected="every variant once",
                next_step="remove one of the two, or limit both with generations",
            )
        by_name[variant.name] = variant
        by_facts |= dict.fromkeys(facts, variant)


def one_default(variants: Sequence[Variant]) -> None:
    """Raises SpecError unless every dispatch key has exactly one default on each generation.

    The default of a key that is in the core is in the core too, since the core is emitted alone.
    """
    for generation in GENERATIONS:
        by_key: dict[DispatchKey, list[Variant]] = {}
        for variant in variants:
            if generation in variant.generations:
                by_key.setdefault(variant.key, []).append(variant)
        for candidates in by_key.values():
            defaults = [variant for variant in candidates if variant.is_default]
            core = [variant for variant in candidates if variant.tier == TIERS[0]]
            if len(defaults) != 1:
                raise _default_error(generation, candidates, defaults)
            if core and defaults[0] not in core:
                raise SpecError(
                    f"{defaults[0].name} is the default of {errors.listed(v.name for v in core)}"
                    " but not in the core tier as they are",
                    mark=defaults[0].mark,
                    field="tier",
                    expected="the default in the core tier, which is emitted alone",
                    next_step="move the default to the core, or the others to the extended tier",
                )


def _default_error(
    generation: str, candidates: Sequence[Variant], defaults: Sequence[Variant]
) -> SpecError:
    names = errors.listed(variant.name for variant in defaults or candidates)
    key = ", ".join(
        f"{axis.path}: {nodes.as_yaml(candidates[0].facts[axis.path])}"
        for axis in axes.AXES
        if axis.in_key
    )
    if defaults:
        problem = f"{names} would each be the default on {generation} for {key}"
        next_step = "limit one of the families with generations, or remove it"
    else:
        problem = f"none of {names} can be the default on {generation}"
        next_step = f"add the combo {{{key}}}, or let one that is there serve {generation} too"
    return SpecError(
        problem,
        mark=(defaults or candidates)[-1].mark,
        field="",
        expected="one variant with the family's defaults for everything the call does not decide",
        next_step=next_step,
    )
