"""From families to variants: every combination a family spans, minus what is not offered.

A variant is decided by settings in three layers: the family's defaults, what a target changes of
them for one TPU generation, and what the axes or a combo say, which holds for every generation.
Within a layer and across them, what is said of one launch wins over what is said of all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rpagen import errors
from rpagen.errors import SpecError
from rpagen.spec import axes, load, names, prove, rules
from rpagen.spec.model import (
    LAUNCHES,
    TIERS,
    Catalogue,
    Combo,
    Facts,
    Family,
    Pipelining,
    Setting,
    Settings,
    Variant,
    field_name,
)

MOST_COMBINATIONS = 10_000
"""Combinations that one family may span, before anything is left out."""


def load_variants(
    specs_dir: str | os.PathLike[str], tiers: Sequence[str] = (TIERS[0],)
) -> tuple[Variant, ...]:
    """The variants of every family below the specs root that are in one of `tiers`.

    Raises:
      SpecError: a spec is wrong, or two families get in each other's way.
    """
    return load_catalogue(specs_dir, tiers).variants


def load_catalogue(
    specs_dir: str | os.PathLike[str], tiers: Sequence[str] = (TIERS[0],)
) -> Catalogue:
    """Those variants, and the exclusions of all families and of the rules.

    Raises:
      SpecError: as for `load_variants`.
    """
    families = load.load_families(specs_dir)
    # A family speaks of its own layout, unless it says another.
    of_families = tuple(
        dataclasses.replace(each, when={"layout": (family.defaults["layout"].value,), **each.when})
        for family in families
        for each in family.exclusions
    )
    variants = tuple(variant for variant in expand_all(families) if variant.tier in tiers)
    return Catalogue(variants, rules.RULES + of_families)


def expand_all(families: Iterable[Family]) -> tuple[Variant, ...]:
    """The variants of all families, of every tier.

    Raises:
      SpecError: as for `expand`, or two families get in each other's way.
    """
    variants = tuple(variant for family in families for variant in expand(family))
    prove.distinct(variants)
    prove.one_default(variants)
    return variants


def expand(family: Family) -> tuple[Variant, ...]:
    """The variants of one family, of every tier, in the order of its spec.

    Raises:
      SpecError: a variant twice; a combo, an exclusion or a whole family that gives nothing; a
        dispatch key without exactly one default.
    """
    with errors.context(f"while expanding family {family.name}"):
        _refuse_explosion(family)
        made = [(combo, list(_variants_of(family, combo))) for combo in family.combos]
        _refuse_idle_exclusions(family, [variant for _, part in made for variant in part])
        core = {
            variant.name: variant
            for combo, part in made
            if combo.tier == TIERS[0]
            for variant in part
        }
        variants: list[Variant] = []
        for combo, part in made:
            variants += _offered(family, combo, part, core)
        if not variants:
            raise _nothing_offered(family, [variant for _, part in made for variant in part])
        prove.names_fit(variants)
        prove.distinct(variants)
        prove.one_default(variants)
    return tuple(variants)


def choose(family: Family, chosen: Settings) -> tuple[Variant, ...]:
    """The variant with these settings, whether or not the family's spec asks for it.

    They are several where the family's targets differ by TPU generation.
    """
    choices = {path: (setting,) for path, setting in chosen.items()}
    combo = Combo(choices, TIERS[-1], family.generations, family.mark)
    return tuple(_by_generation(family, combo, chosen))


def refusals(family: Family, variant: Variant) -> list[str]:
    """Why a variant is not offered, by the built-in rules and by its family's exclusions."""
    facts = variant.facts
    defaults = _facts(_per_launch(_defaults(family, variant.generations[0])))
    own = [each.reason for each in family.exclusions if rules.applies(each, facts)]
    return rules.refusals(facts, defaults) + own


def refusals_of_all(family: Family, made: Sequence[Variant]) -> list[str]:
    """Why any of the variants is not offered, every reason once."""
    reasons = (reason for variant in made for reason in refusals(family, variant))
    return list(dict.fromkeys(reasons))


def _refuse_explosion(family: Family) -> None:
    sizes = [math.prod(map(len, _choices(family, combo).values())) for combo in family.combos]
    if sum(sizes) > MOST_COMBINATIONS:
        largest = family.combos[sizes.index(max(sizes))]
        raise SpecError(
            f"the family spans {sum(sizes):,} combinations, {max(sizes):,} of them from here",
            mark=largest.mark,
            field="",
            expected=f"at most {MOST_COMBINATIONS:,}",
            next_step="list fewer values",
        )


def _choices(family: Family, combo: Combo) -> Mapping[str, tuple[Setting, ...]]:
    return {**family.axes, **combo.choices}


def _variants_of(family: Family, combo: Combo) -> Iterator[Variant]:
    """What a combo spans, whether offered or not."""
    choices = _choices(family, combo)
    for settings in itertools.product(*choices.values()):
        yield from _by_generation(family, combo, dict(zip(choices, settings, strict=True)))


def _by_generation(family: Family, combo: Combo, chosen: Settings) -> Iterator[Variant]:
    """One variant for the generations where targets change nothing, and one for each other."""
    base = _variant(family, combo, chosen, None)
    own = []
    for generation in combo.generations:
        variant = _variant(family, combo, chosen, generation)
        # With the same facts it may still be another step away from its generation's defaults.
        if variant.facts != base.facts or variant.name != f"{base.name}_{generation}":
            own.append(variant)
    changed = {variant.generations[0] for variant in own}
    shared = tuple(each for each in combo.generations if each not in changed)
    if shared:
        yield dataclasses.replace(base, generations=shared)
    yield from own


def _variant(family: Family, combo: Combo, chosen: Settings, generation: str | None) -> Variant:
    """The variant for one generation; with None, for all where targets change nothing."""
    defaults = _defaults(family, generation)
    settings = _per_launch({**defaults, **chosen})
    facts, default_facts = _facts(settings), _facts(_per_launch(defaults))
    suffix = (generation,) if generation else ()
    fields: dict[str, Any] = {
        field_name(axis.path): settings[axis.path].value for axis in axes.WHOLE_AXES
    }
    return Variant(
        name="_".join((family.name, *names.labels(facts, default_facts), *suffix)),
        family=family.name,
        launches={launch: _pipelining(settings, launch) for launch in LAUNCHES},
        tier=combo.tier,
        generations=suffix or combo.generations,
        is_default=all(
            facts[path] == default_facts[path] for path in facts if not axes.BY_PATH[path].in_key
        ),
        mark=combo.mark,
        origins=settings,
        **fields,
    )


def _defaults(family: Family, generation: str | None) -> Settings:
    """The family's defaults, as the target for a generation changes them."""
    return {**family.defaults, **family.targets.get(generation or "", {})}


def _per_launch(settings: Settings) -> Settings:
    """The settings, with every launch's own pipelining spelled out."""
    return {
        **settings,
        **{
            path: settings.get(path, settings[axis.path])
            for launch in LAUNCHES
            for axis in axes.PIPELINING_AXES
            for path in [axes.launch_path(launch, axis.path)]
        },
    }


def _facts(settings: Settings) -> Facts:
    return {path: settings[path].value for path in axes.FACTS}


def _pipelining(settings: Settings, launch: str) -> Pipelining:
    fields: dict[str, Any] = {
        field_name(axis.path): settings[axes.launch_path(launch, axis.path)].value
        for axis in axes.PIPELINING_AXES
    }
    return Pipelining(**fields)


def _refuse_idle_exclusions(family: Family, made: Sequence[Variant]) -> None:
    for exclusion in family.exclusions:
        if not any(rules.applies(exclusion, variant.facts) for variant in made):
            raise SpecError(
                "the exclusion matches no variant",
                mark=exclusion.mark or family.mark,
                field="exclude",
                expected="a condition that holds for something the axes or a combo make",
                next_step="correct its when, or remove it",
            )


def _offered(
    family: Family, combo: Combo, made: Sequence[Variant], core: Mapping[str, Variant]
) -> list[Variant]:
    """What remains of a combo without what is refused; of an extended one, without the core.

    Raises:
      SpecError: nothing remains of a combo that somebody wrote.
    """
    offered = [
        variant
        for variant in made
        if not refusals(family, variant) and not _is_in_core(variant, core)
    ]
    if not offered and combo.choices:
        why = "; ".join(refusals_of_all(family, made)) or "the core tier has all that it makes"
        raise SpecError(
            f"the combo adds no variant: {why}",
            mark=combo.mark,
            field="combos",
            expected="at least one variant that is offered",
            next_step="correct its values, or remove it",
        )
    return offered


def _is_in_core(variant: Variant, core: Mapping[str, Variant]) -> bool:
    """Whether an extended variant is one that the core has for all its generations already."""
    same = core.get(variant.name)
    return (
        variant.tier != TIERS[0]
        and same is not None
        and set(variant.generations) <= set(same.generations)
    )


def _nothing_offered(family: Family, made: Sequence[Variant]) -> SpecError:
    return SpecError(
        f"everything is excluded: {'; '.join(refusals_of_all(family, made))}",
        mark=family.mark,
        field="family",
        expected="at least one variant that is offered",
        next_step="relax an exclusion, or correct the defaults",
    )
