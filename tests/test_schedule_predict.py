"""Which requests are compiled together, and what becomes of those that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpagen.errors import RpagenError
from rpagen.schedule import predict, workloads
from rpagen.schedule.call import Timed
from rpagen.schedule.generations import GENERATIONS
from rpagen.schedule.predict import Request

KNOWN = workloads.load()


def request(workload: str, variant: str = "rpa", device: str = "v6e") -> Request:
    heads = KNOWN.configuration("A")
    return Request(variant, device, KNOWN.workload(workload), heads, 64, Path("e"), Path("d"))


def test_workloads_of_the_same_call_are_compiled_together():
    asked = [
        request(*each)
        for each in (
            ("decode-1k",),
            ("prefill-2k",),
            ("decode-8k",),
            ("decode-8k", "rpa_depth0"),
            ("decode-8k", "rpa", "v7x"),
            ("mixed",),
        )
    ]
    found = [[asked.index(each) for each in group] for group in predict.grouped(asked)]
    assert found == [[0, 2], [1, 5], [3], [4]]


class OneCall:
    """A compiled call, of which the first workload that is timed is not understood."""

    def __init__(self) -> None:
        self.timed = 0

    def time(self, operands: object) -> Timed:
        self.timed += 1
        if self.timed == 1:
            raise RpagenError("a form that is not known")
        return Timed(GENERATIONS["v6e"], ())


def test_a_call_is_compiled_once_for_all_of_its_workloads(monkeypatch):
    asked = []
    monkeypatch.setattr(predict, "call_of", lambda each: asked.append(each) or OneCall())
    group = [request("decode-1k"), request("decode-8k")]
    found = predict.predict(group)
    assert asked == group[:1]
    assert [each.problem for each in found] == ["a form that is not known", ""]
    assert [each.workload for each in found] == ["decode-1k", "decode-8k"]


@pytest.mark.parametrize(("error", "problem"), [("no VMEM", "no VMEM"), (" ", "ValueError")])
def test_what_cannot_be_compiled_is_so_for_all(monkeypatch, error, problem):
    def refuse(_):
        raise ValueError(error)

    monkeypatch.setattr(predict, "call_of", refuse)
    found = predict.predict([request("decode-1k"), request("decode-8k")])
    assert [each.problem for each in found] == [problem] * 2
