"""A timeline in the Chrome trace event format, for Perfetto's viewer and chrome://tracing.

Each step of the call is a process, and the call one before them. Slices are written as pairs of a
begin and an end: viewers cut times to nanoseconds, which could make a slice with a duration outlast
the one around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from rpagen.schedule import accuracy, timeline
from rpagen.schedule.call import Timed
from rpagen.schedule.generations import Generation
from rpagen.schedule.timeline import Process, Track

Event = dict[str, object]

CALL = 1
"""The process of the whole call. The core is the main thread of its process, which has the same
number: viewers show it first."""

_THREADS = 1000
"""Numbers of threads for each process."""


def events(timed: Timed) -> dict[str, object]:
    """The trace of a call that was timed with its paths, to be written as JSON (see `text`).

    Times are microseconds since the call began; those in `args` are cycles.

    Raises:
        InputError: see `loops.nest`, `accuracy.trust`.
    """
    made = timeline.of(timed)
    found = list(_called("the call", CALL, made.steps, made.generation))
    for pid, process in enumerate(made.processes, CALL + 1):
        found += _process(process, pid, made.generation)
    said: dict[str, object] = {
        "generation": timed.generation.name,
        "cycles": f"{timed.cycles:.0f}",
        "cycles a second": f"{timed.generation.clock:.0f}",
        "how far to trust it": accuracy.trust([timed.generation.name]),
    }
    if made.notes:
        said["notes"] = "; ".join(made.notes)
    return {"displayTimeUnit": "ns", "otherData": said, "traceEvents": found}


def text(trace: Mapping[str, object]) -> str:
    """A trace as a file has it: one event a line."""
    listed = trace["traceEvents"]
    assert isinstance(listed, list)
    rest = {name: value for name, value in trace.items() if name != "traceEvents"}
    lines = ",\n".join(_json(event) for event in listed)
    return f'{_json(rest)[:-1]},"traceEvents":[\n{lines}\n]}}\n'


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _called(name: str, pid: int, track: Track, generation: Generation) -> Iterator[Event]:
    yield _named("process_name", pid, 0, name)
    yield {
        "ph": "M",
        "pid": pid,
        "tid": 0,
        "name": "process_sort_index",
        "args": {"sort_index": pid},
    }
    yield from _track(track, pid, pid, generation)


def _process(process: Process, pid: int, generation: Generation) -> Iterator[Event]:
    name = process.name if process.is_kernel else f"{process.name} (XLA)"
    yield from _called(name, pid, process.core, generation)
    for tid, track in enumerate(process.copies, pid * _THREADS):
        yield from _track(track, pid, tid, generation)
    for point in process.in_flight:
        yield {
            "ph": "C",
            "pid": pid,
            "name": "bytes in flight",
            "ts": _time(point.at, generation),
            "args": {"reads": point.read, "writes": point.written},
        }


def _track(track: Track, pid: int, tid: int, generation: Generation) -> Iterator[Event]:
    yield _named("thread_name", pid, tid, track.name)
    yield {
        "ph": "M",
        "pid": pid,
        "tid": tid,
        "name": "thread_sort_index",
        "args": {"sort_index": tid},
    }
    ends: list[float] = []

    def ended() -> Event:
        return {"ph": "E", "pid": pid, "tid": tid, "ts": _time(ends.pop(), generation)}

    for each in track.slices:
        while len(ends) > each.depth:
            yield ended()
        ends.append(each.ended)
        event: Event = {
            "ph": "B",
            "pid": pid,
            "tid": tid,
            "ts": _time(each.begun, generation),
            "name": each.name,
            "cat": each.kind,
        }
        if each.details:
            event["args"] = dict(each.details)
        yield event
    while ends:
        yield ended()


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _time(cycles: float, generation: Generation) -> float:
    return round(generation.microseconds(cycles), 3)
