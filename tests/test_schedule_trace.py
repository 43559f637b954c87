"""The timeline of a call, and it as a Chrome trace: answers counted by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from schedule_fixtures import dumped

from rpagen.schedule import accuracy, timeline, trace
from rpagen.schedule.timeline import Slice

TIMES = " \N{MULTIPLICATION SIGN} "


@pytest.fixture
def timed(tmp_path):
    return dumped(tmp_path).time({}, with_path=True)


def shown(slices: tuple[Slice, ...]) -> list[tuple[str, float, float, int]]:
    return [(each.name, round(each.begun), round(each.ended), each.depth) for each in slices]


def test_slices_of_the_core(timed):
    (process,) = timeline.of(timed).processes
    # 20 cycles of launch; an iteration is 17 bundles and a wait of 6 cycles.
    expected = [
        ("launch", 0, 20, 0),
        ("bundles", 20, 91, 0),
        (f"loop 0x1{TIMES}3: reads, waits", 21, 90, 1),
    ]
    for number, begun in enumerate((21, 44, 67), 1):
        expected += [
            (f"iteration {number} of 3", begun, begun + 23, 2),
            (f"loop 0x3{TIMES}2: multiplies", begun + 2, begun + 12, 3),
            ("wait at 0x8", begun + 12, begun + 18, 3),
        ]
    assert shown(process.core.slices) == expected
    details = {each.name: dict(each.details) for each in process.core.slices}
    assert details["bundles"] == {"bundles": 53, "waited": 18.0, "held": 0.0}
    assert details["iteration 2 of 3"] == {"bundles": 17, "waited": 6.0, "held": 0.0}
    kinds = {each.name.partition(" ")[0]: each.kind for each in process.core.slices[1:3]}
    assert kinds == {"bundles": "run", "loop": "loop"}
    assert process.core.slices[4].kind == "multiplying loop"


def test_copies_from_issue_to_arrival_and_bytes_in_flight(timed):
    (process,) = timeline.of(timed).processes
    (track,) = process.copies
    assert track.name == "HBM reads 1"
    assert shown(track.slices) == [("read 256 B", begun, begun + 18, 0) for begun in (21, 44, 67)]
    assert dict(track.slices[0].details) == {
        "bytes": 256,
        "copies": 1,
        "kind": "hbm_to_vmem",
        "bundle": "0x1",
    }
    assert [(round(each.at), each.read, each.written) for each in process.in_flight] == [
        (21, 256, 0),
        (39, 0, 0),
        (44, 256, 0),
        (62, 0, 0),
        (67, 256, 0),
        (85, 0, 0),
    ]


def test_a_copy_that_overlaps_another_gets_a_lane_of_its_own(timed):
    (step,) = timed.steps
    assert step.run is not None
    first, second, third = step.run.copies
    moved = (first, replace(second, issued=first.done - 1, kind="hbm_to_smem"), third)
    written = replace(third, kind="vmem_to_hbm")
    run = replace(step.run, copies=(*moved, written))
    (process,) = timeline.of(replace(timed, steps=(replace(step, run=run),))).processes
    assert [(track.name, len(track.slices)) for track in process.copies] == [
        ("HBM reads 1", 2),
        ("HBM reads 2", 1),
        ("HBM writes 1", 1),
    ]
    assert max(each.read for each in process.in_flight) == 512
    assert max(each.written for each in process.in_flight) == 256


def test_what_would_be_too_much_is_left_out_or_merged_and_told(timed, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_SLICES", 5)
    monkeypatch.setattr(timeline, "MOST_WAITS", 1)
    monkeypatch.setattr(timeline, "MOST_COPIES", 2)
    made = timeline.of(timed)
    (process,) = made.processes
    names = [each.name for each in process.core.slices]
    assert f"loop 0x1{TIMES}3: reads, waits" in names and "iteration 3 of 3" in names
    assert not [name for name in names if name.startswith("loop 0x3")]
    copies = [each for track in process.copies for each in track.slices]
    assert shown(tuple(copies)) == [("read 512 B", 21, 62, 0), ("read 256 B", 67, 85, 0)]
    assert copies[0].details["copies"] == 2
    assert [(round(each.at), each.read) for each in process.in_flight][-1] == (85, 0)
    assert made.notes[0] == "loops that 1 others are around are left out: there are too many"
    assert made.notes[-1] == "2 copies that were issued one after the other are drawn as one"


def test_a_call_without_paths_has_no_loops(tmp_path):
    (process,) = timeline.of(dumped(tmp_path).time({})).processes
    assert not [each for each in process.core.slices if "loop" in each.kind]
    assert len([each for each in process.core.slices if each.kind == "wait"]) == 3


def test_events_are_pairs_that_nest_in_the_order_of_time(timed):
    made = trace.events(timed)
    events = made["traceEvents"]
    assert isinstance(events, list)
    around: dict[tuple[int, int], list[str]] = {}
    last: dict[tuple[int, int], float] = {}
    taken = {}
    for event in events:
        assert event["ph"] in "MBEC" and event["pid"] in (1, 2)
        if event["ph"] in "BE":
            track = event["pid"], event["tid"]
            assert event["ts"] >= last.get(track, 0)
            last[track] = event["ts"]
            if event["ph"] == "B":
                around.setdefault(track, []).append((event["name"], event["ts"]))
            else:
                name, begun = around[track].pop()
                taken[name] = round(event["ts"] - begun, 3)
    assert not any(around.values())
    assert taken["tiny.1"] == 0.091
    assert taken["iteration 1 of 3"] == 0.023
    assert taken["wait at 0x8"] == 0.006
    assert taken["read 256 B"] == 0.018
    named = [event["args"]["name"] for event in events if event.get("name") == "thread_name"]
    assert named == ["steps", "core", "HBM reads 1"]


def test_the_counter_and_what_is_said_of_the_call(timed):
    made = trace.events(timed)
    events = made["traceEvents"]
    assert isinstance(events, list)
    counter = [event for event in events if event["ph"] == "C"]
    assert counter[:2] == [
        {
            "ph": "C",
            "pid": 2,
            "name": "bytes in flight",
            "ts": ts,
            "args": {"reads": reads, "writes": 0},
        }
        for ts, reads in ((0.021, 256), (0.039, 0))
    ]
    assert made["otherData"] == {
        "generation": "tiny",
        "cycles": "91",
        "cycles a second": "1000000000",
        "how far to trust it": accuracy.trust(["tiny"]),
    }


def test_the_text_is_the_same_each_time_and_holds_the_events(timed, tmp_path):
    made = trace.events(timed)
    assert json.loads(trace.text(made)) == made
    assert trace.text(trace.events(dumped(tmp_path).time({}, with_path=True))) == trace.text(made)
