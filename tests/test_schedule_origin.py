"""A dump that is timed as if it were for another TPU generation."""

from __future__ import annotations

from pathlib import Path

import pytest
from schedule_fixtures import SLOTS

from rpagen.errors import InputError
from rpagen.schedule import origin, read
from rpagen.schedule.call import Call
from rpagen.schedule.generations import GENERATIONS

SCHEDULES = Path(__file__).parent / "data" / "schedules"
KERNEL = "sum_pages.1"
HEAD = "= control target key end\n"


def _error(text: str, slots: str, device: str) -> str:
    made = read.schedule(text, "k", "k.txt")
    with pytest.raises(InputError) as raised:
        origin.check(made, read.slots(slots, "u.txt"), GENERATIONS[device])
    assert raised.value.place == "k.txt"
    assert raised.value.next_step == "give the --device that the call was compiled for"
    return f"{raised.value.problem}; {raised.value.expected}"


@pytest.mark.parametrize(("of", "device"), [("v5e", "v6e"), ("v5e", "v7x"), ("v6e", "v5e")])
@pytest.mark.parametrize("libtpu", ["0.0.48", "0.0.52"])
def test_slots_of_another_generation(of, device, libtpu):
    call = Call(SCHEDULES / f"{of}-{libtpu}", GENERATIONS[device])
    with pytest.raises(InputError, match=f"is not for {device}"):
        call.program(KERNEL)


@pytest.mark.parametrize("dump", sorted(path.name for path in SCHEDULES.glob("v*")))
def test_the_right_generation(dump):
    assert Call(SCHEDULES / dump, GENERATIONS[dump[:3]]).program(KERNEL)


@pytest.mark.parametrize(
    ("name", "device", "others"),
    [("vpop.f32.mrf.mxu0", "v7x", "v5e or v6e"), ("vpop.f32.mrb[3].mxu0", "v6e", "v7x")],
)
def test_a_matrix_unit_of_another_generation(name, device, others):
    said = _error(f"{HEAD}     0   :  {{ %v1_v0 = {name} }}\n", SLOTS, device)
    assert said == (
        f"the schedule of k is not for {device}; a schedule for {device}; this one is for {others}"
    )


def test_slots_and_matrix_unit_that_do_not_go_together():
    text = f"{HEAD}     0   :  {{ %v1_v0 = vpop.f32.mrb[3].mxu0 }}\n"
    said = _error(text, SLOTS.replace("MATMUL", "XLU").replace("    1  ", "    3  "), "v5e")
    assert said.endswith("this one is for no generation that is known")
