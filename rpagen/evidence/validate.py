"""Emitted kernels, judged by every call there is for them: what `rpagen validate` runs.

Calls that share a compilation are one piece of work, and pieces run side by side in processes of
their own; on a TPU, one after the other in this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rpagen.console import first_line
from rpagen.emit import resources
from rpagen.errors import RpagenError
from rpagen.evidence import emitted, records, workers
from rpagen.evidence.calls import Call
from rpagen.spec.model import Variant


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a call of a variant.

    problem: what was wrong; empty if nothing was. fraction: the largest error, as a
    fraction of what is tolerated; None if there was a problem.
    """

    variant: str
    call: Call
    problem: str
    fraction: float | None
    seconds: float


@dataclasses.dataclass(frozen=True)
class Work:
    """Calls of one variant that differ in data alone. folder: of the emitted modules."""

    folder: Path
    variant: Variant
    calls: tuple[Call, ...]


def work(folder: Path, variant: Variant, chosen: Sequence[Call]) -> list[Work]:
    """The calls of a variant, cut into pieces by what they are compiled for."""

    def compiled_for(call: Call) -> tuple[object, ...]:
        case = call.case
        return (
            *(case.geometry.name, case.sliding_window, case.new_kv_in_cache_dtype),
            *(case.out_dtype, case.traced),
        )

    groups: dict[tuple[object, ...], list[Call]] = {}
    for call in chosen:
        groups.setdefault(compiled_for(call), []).append(call)
    return [Work(folder, variant, tuple(group)) for group in groups.values()]


def outcomes(pieces: Sequence[Work], jobs: int) -> Iterator[Outcome]:
    """The outcome of every call in interpret mode, as they come."""
    for found in workers.results(run, died, pieces, jobs):
        yield from found


def outcomes_on_tpu(pieces: Sequence[Work]) -> Iterator[Outcome]:
    """The outcome of every call on the TPU at hand."""
    for piece in pieces:
        yield from run(piece, on_tpu=True)


def tpu() -> str:
    """What kind of TPU there is.

    Raises:
        RpagenError: there is none.
    """
    import jax

    try:
        device = jax.devices("tpu")[0]
    except RuntimeError as error:
        raise RpagenError(
            "jax finds no TPU: leave --tpu away to run the kernels on this CPU, in interpret mode"
        ) from error
    return str(device.device_kind)


def run(piece: Work, on_tpu: bool = False) -> list[Outcome]:
    """The outcomes of a piece of work, in this process."""
    import jax

    from rpagen.evidence import cases, judge

    attention = judge.of_module(emitted.module(piece.folder, piece.variant.name))
    found = []
    for call in piece.calls:
        start = time.monotonic()
        fraction, problem = None, ""
        try:
            fraction = judge.judge(
                attention,
                piece.variant.query_dtype,
                cases.build(call.case, piece.variant.key, call.seed),
                contextlib.nullcontext() if on_tpu else _interpreter(call),
            )
        except Exception as error:  # whatever it is, it is what this is about
            problem = said(error)
        seconds = time.monotonic() - start
        found.append(Outcome(piece.variant.name, call, problem, fraction, seconds))
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return found


def said(error: Exception) -> str:
    """All that an error says, after its name. Files of the checkout are named from its root.

    So a record names no place that is on one machine only.
    """
    text = f"{type(error).__name__}: {str(error).strip()}"
    root = resources.checkout()
    return text.replace(f"{root}/", "") if root else text


def died(piece: Work, why: str) -> list[Outcome]:
    """The outcomes of a piece of work whose process ended before it did."""
    return [Outcome(piece.variant.name, call, why, None, 0.0) for call in piece.calls]


def _interpreter(call: Call) -> contextlib.AbstractContextManager[None]:
    from rpagen.evidence.interpreter import tpu_interpret_mode

    return tpu_interpret_mode(**call.interpreter_options)


def record(
    folder: Path,
    variants: Sequence[Variant],
    found: Sequence[Outcome],
    *,
    command: str,
    where: str,
    seconds: float,
) -> dict[str, Any]:
    """What was found, as `records` keep it."""
    return {
        "made_with": records.made_with(),
        "instrument": records.instrument(),
        "command": command,
        "where": where,
        "seconds": round(seconds, 1),
        "variants": [
            {
                "variant": variant.name,
                "digest": records.digest(folder, variant.name),
                "query_dtype": variant.query_dtype,
                "kv_dtype": variant.kv_dtype,
                "calls": [_call(outcome) for outcome in found if outcome.variant == variant.name],
            }
            for variant in variants
        ],
    }


def _call(outcome: Outcome) -> dict[str, Any]:
    call, fraction = outcome.call, outcome.fraction
    return {
        "case": call.case.name,
        "mode": call.mode,
        "seed": call.seed,
        "races": call.mode != records.ON_TPU,
        "problem": outcome.problem,
        "fraction": None if fraction is None else round(fraction, 4),
        "seconds": round(outcome.seconds, 2),
    }


def junit(found: Sequence[Outcome]) -> str:
    """What was found, in the form that CI services read."""
    failures = sum(bool(outcome.problem) for outcome in found)
    suite = xml.Element(
        "testsuite", name="rpagen validate", tests=str(len(found)), failures=str(failures)
    )
    for outcome in found:
        case = xml.SubElement(
            suite,
            "testcase",
            classname=outcome.variant,
            name=outcome.call.name,
            time=f"{outcome.seconds:.3f}",
        )
        if outcome.problem:
            failure = xml.SubElement(
                case, "failure", message=_printable(first_line(outcome.problem))
            )
            failure.text = "\n".join(map(_printable, outcome.problem.splitlines()))
    xml.indent(suite)
    return xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(each if each.isprintable() else "?" for each in text)
