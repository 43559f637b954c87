"""Variants named on the command line: `--set axis=value`, in place of a line in a spec."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rpagen import errors
from rpagen.errors import InputError, SpecError
from rpagen.spec import axes, expand, load, nodes
from rpagen.spec.axes import AxisValue
from rpagen.spec.model import Family, Setting, Settings, Variant

MOST_TO_ADD = 2
"""Options that an error says to add, at most, to make a choice one that is offered."""


def settings(options: Sequence[str]) -> dict[str, Setting]:
    """What each `axis=value` sets.

    Raises:
        InputError: no such axis, no such value, or an axis twice.
    """
    found: dict[str, Setting] = {}
    for option in options:
        path, _, text = option.partition("=")
        if path not in axes.BY_PATH:
            raise _wrong(
                option,
                f"there is no axis {errors.quoted(path)}",
                expected=f"one of {errors.listed(axes.BY_PATH)}",
                next_step=nodes.did_you_mean(path, axes.BY_PATH) or "choose one of these",
            )
        axis = axes.BY_PATH[path]
        if not text.strip():
            raise _wrong(
                option,
                "there is no value",
                expected=f"{path}= and {'some' if axis.is_set else 'one'} of"
                f" {errors.listed(axis.names)}",
                next_step=f"write none for no {path}" if axis.is_set else "write one of these",
            )
        if path in found:
            raise _wrong(
                option,
                f"{path} is set twice",
                expected="every axis once",
                next_step="remove one of the two",
            )
        try:
            found[path] = load.setting(path, _as_list(text) if axis.is_set else text)
        except SpecError as error:
            raise _wrong(
                option, error.problem, expected=error.expected, next_step=error.next_step
            ) from error
    return found


def _wrong(option: str, problem: str, *, expected: str, next_step: str) -> InputError:
    place = f"--set {errors.escaped(option)}"
    return InputError(problem, place=place, expected=expected, next_step=next_step)


def _as_list(text: str) -> str:
    """A set of values as a spec writes it: the brackets, which shells dislike, can be left out."""
    return text if text.startswith("[") else f"[{'' if text == 'none' else text}]"


def family_for(chosen: Settings, families: Sequence[Family]) -> Family:
    """The family whose layout is the one chosen, or else the first."""
    layout = chosen["layout"].value if "layout" in chosen else None
    suited = (family for family in families if family.defaults["layout"].value == layout)
    return next(suited, families[0])


def _based_on(variant: Variant, chosen: Settings) -> Settings:
    """The settings of a variant, with those chosen in place of its own."""
    # What is chosen for all launches holds for each, whatever the variant says of one.
    paths = [
        path
        for path in axes.FACTS
        if not any(path.startswith("launches.") and path.endswith(f".{each}") for each in chosen)
    ]
    return {**{path: variant.origins[path] for path in paths}, **chosen}


def variants(
    family: Family, chosen: Settings, option: str, base: Variant | None = None
) -> tuple[Variant, ...]:
    """The variant with the settings chosen; several where targets differ by TPU generation.

    option: what asked for it, for errors. base: a variant whose settings the others are, in place
    of the defaults of the family.

    Raises:
        InputError: a rule, or the family, does not offer it.
    """
    made = _chosen(family, chosen, base)
    reasons = expand.refusals_of_all(family, made)
    if reasons:
        to_add = next(_additions(family, chosen, base), None)
        raise InputError(
            f"not offered: {'; '.join(reasons)}",
            place=option,
            expected=f"a combination that family {family.name} offers",
            next_step=f"add {to_add}" if to_add else "choose other values",
        )
    return made


def _chosen(family: Family, chosen: Settings, base: Variant | None) -> tuple[Variant, ...]:
    return expand.choose(family, chosen if base is None else _based_on(base, chosen))


def _additions(family: Family, chosen: Settings, base: Variant | None) -> Iterator[str]:
    """Options that make the settings chosen a combination that is offered, the fewest first."""
    free = [
        (axis.path, name)
        for axis in axes.WHOLE_AXES
        if axis.path not in chosen and not axis.is_set
        for name in axis.names
    ]
    for count in range(1, MOST_TO_ADD + 1):
        for added in itertools.combinations(free, count):
            extended = {**chosen, **{path: _added(family, path, value) for path, value in added}}
            if len({path for path, _ in added}) == count and not expand.refusals_of_all(
                family, _chosen(family, extended, base)
            ):
                yield " ".join(f"--set {path}={value}" for path, value in added)


def _added(family: Family, path: str, value: AxisValue) -> Setting:
    return Setting(value, path, family.mark)
