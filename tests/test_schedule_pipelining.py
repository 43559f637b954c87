"""The table of what each axis of the pipelining is worth."""

from __future__ import annotations

import dataclasses

import pytest

from rpagen.errors import RpagenError
from rpagen.schedule import pipelining
from rpagen.schedule.predict import Prediction
from rpagen.spec.model import GENERATIONS


def predictions(times: dict[str, float]) -> list[Prediction]:
    return [
        Prediction(name, device, workload, kernels=times.get(name, 1503.0))
        for name in (pipelining.BASE, *pipelining.CHANGES)
        for device in GENERATIONS
        for workload in pipelining.WORKLOADS
    ]


def test_times_and_changes():
    text = pipelining.document({"A": predictions({"rpa_depth0": 2254.5, "rpa_kv_slots2": 1000.0})})
    row = next(line for line in text.splitlines() if line.startswith("| v5e | decode-1k"))
    # v5e has 1,503 cycles a microsecond
    assert row == "| v5e | decode-1k | 1.0 | +50.0% | +0.0% | -33.5% | +0.0% | +0.0% |"
    assert text.count("\n| v6e |") == len(pipelining.WORKLOADS)


def test_a_call_that_failed_is_no_row():
    found = predictions({})
    found[0] = dataclasses.replace(found[0], problem="does not fit")
    with pytest.raises(RpagenError, match="rpa, v5e, decode-1k: does not fit"):
        pipelining.document({"A": found})


def test_a_call_that_failed_is_told_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    found = predictions({})
    found[0] = dataclasses.replace(found[0], problem="does not fit")
    monkeypatch.setattr(pipelining, "_predicted", lambda: {"A": found})
    assert pipelining.main(["--output", str(tmp_path / "table.md")]) == 2
    assert capsys.readouterr().err == "error: rpa, v5e, decode-1k: does not fit\n"
    assert not list(tmp_path.iterdir())


def test_what_follows_from_the_table(tmp_path, monkeypatch):
    times = {"rpa_depth0": 2254.5, "rpa_kv_slots2": 1000.0}
    found = {"A": predictions(times), "B": predictions(times | {"rpa_kv_slots2": 1800.0})}
    monkeypatch.setattr(pipelining, "_predicted", lambda: found)
    assert pipelining.main(["--output", str(tmp_path / "table.md")]) == 0
    lines = (tmp_path / "table.md").read_text().splitlines()
    fused = next(line for line in lines if line.startswith("- **Fused (depth 0)**"))
    assert fused.startswith(
        "- **Fused (depth 0)**: slower in 24 of 24 calls, never faster."
        " decode-1k +50.0% (v5e, A) to +50.0% (v7x, B); decode-8k"
    )
    slots = next(line for line in lines if line.startswith("- **2 KV slots**"))
    assert (
        ": faster in 12 of 24 calls, slower in 12. decode-1k -33.5% (v5e, A) to +19.8% (v7x, B)"
        in slots
    )
    assert "- **Two-step, depth 2**: no difference in any of 24 calls." in "\n".join(lines)


def test_the_variants_differ_from_the_base_in_one_axis():
    from rpagen.emit import resources
    from rpagen.spec import expand

    variants = {each.name: each for each in expand.load_variants(resources.specs_dir())}
    base = dataclasses.asdict(variants[pipelining.BASE].launches["decode"])
    for name in pipelining.CHANGES:
        other = dataclasses.asdict(variants[name].launches["decode"])
        assert sum(base[key] != other[key] for key in base) == 1, name
        assert variants[name].key == variants[pipelining.BASE].key
