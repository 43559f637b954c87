"""Records as the runs behind the report write them, made up: every kind of outcome once.

`rpa` is well in all respects; of others something failed, survived, is excluded or was tried on
another text. Type `python tests/report_fixtures.py DIR` to have them in a folder, with
`--sizeable` those of a whole run.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from pathlib import Path
from typing import Any

from rpagen.emit import resources
from rpagen.evidence import budgets, records
from rpagen.evidence.allocations import Taken
from rpagen.evidence.survey import Outcome
from rpagen.spec import expand
from rpagen.spec.model import GENERATIONS, LAUNCHES, Variant

SPECS = resources.specs_dir()
CORE = expand.load_variants(SPECS)
NAMES = [variant.name for variant in CORE]

FAILED = "rpa_soft_cap"
RACY = "rpa_depth2"
EXCLUDED = "rpa_float8_e4m3fn_query_scale"
OVER_BUDGET = "rpa_float32"
STALE = "rpa_int8"
NOT_TRIED = "rpa_head_major"
EXTENDED = "rpa_int8_bidirectional"
GONE = "rpa_of_old"

PROBLEM_LINE = (
    "AssertionError: out: 7 of 512 elements are out of tolerance <script>alert(1)</script> & so"
)
PROBLEM = f"""{PROBLEM_LINE}
  the first: [3, 0, 17] is 0.25, expected 0.5 < 0.501
  the largest error: 12.5 of what is tolerated"""
RACE_LINE = "RaceError: race between two accesses that nothing orders:"
RACE = f"""{RACE_LINE}
  a copy into kv.slots_ref[0], started in start_kv_fetch
  a load of kv.slots_ref[0:128], in load_keys_and_values"""
LAYOUT = "INTERNAL: no such layout\n  of <vector<8x128xf32>>"
MADE_WITH = {"python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2", "numpy": "2.4.0"}

CASES = ("gqa4_three_ranges", "gqa3_three_ranges", "gqa4_large_logits", "fuzz_7", "random_12")
MODES = (("on_wait", 0), ("on_wait", 3), ("eager", 0), ("random", 0), ("random", 1))

LOOSE = "float32"
"""KV dtype of which all errors are small, in many calls."""

SELDOM = "float8_e5m2"
"""KV dtype of which all errors are small, in few calls."""

OLD_INSTRUMENT = "2" * 64


def digest(name: str) -> str:
    """Of the kernel at hand, or of another one."""
    if name in (STALE, GONE):
        return "0" * 64
    return records.digest(SPECS.parent / "generated/rpa_kernels", name)


def tried(variant: Variant, modes: Any = MODES, cases: Any = CASES) -> dict[str, Any]:
    chance = random.Random(variant.name)
    share = 0.1 if variant.kv_dtype in (LOOSE, SELDOM) else 1
    calls = [
        {
            "case": case,
            "mode": mode,
            "seed": seed,
            "races": mode != "tpu",
            "problem": "",
            "fraction": round(chance.uniform(0.1, 0.6) * share, 4),
            "seconds": round(chance.uniform(0.5, 4), 2),
        }
        for case in cases
        for mode, seed in modes
    ]
    return {
        "variant": variant.name,
        "digest": digest(variant.name),
        "query_dtype": variant.query_dtype,
        "kv_dtype": variant.kv_dtype,
        "calls": calls,
    }


def validation() -> dict[str, Any]:
    entries = [tried(variant) for variant in CORE if variant.name != NOT_TRIED]
    by_name = {entry["variant"]: entry for entry in entries}
    by_name["rpa"]["calls"][3]["fraction"] = 0.6249
    by_name[FAILED]["calls"][7] |= {"problem": PROBLEM, "fraction": None}
    by_name[RACY]["calls"][3] |= {"problem": RACE, "fraction": None}
    entries.append(by_name["rpa"] | {"variant": GONE, "digest": digest(GONE)})
    return {
        "made_with": MADE_WITH,
        "instrument": records.instrument(),
        "command": "rpagen validate --seeds 3",
        "where": "interpret mode on a CPU",
        "seconds": 1234.5,
        "variants": entries,
    }


def hardware() -> dict[str, Any]:
    entries = [tried(variant, [("tpu", 0)]) for variant in CORE[:5]]
    entries[0]["calls"][2]["seed"] = 5
    entries[4]["calls"][1] |= {"problem": "AssertionError: kv_cache: 1 differs", "fraction": None}
    return validation() | {
        "instrument": OLD_INSTRUMENT,
        "command": "rpagen validate --tpu --record docs/evidence/hardware.json",
        "where": "TPU v6 lite",
        "variants": entries,
    }


def mutants() -> dict[str, Any]:
    causal = [name for name in NAMES if "bidirectional" not in name]

    def mutant(mutation: str, function: str, host: str, stands_for: list[str], **more: Any) -> Any:
        return {
            "mutation": mutation,
            "function": function,
            "variant": host,
            "stands_for": stands_for,
            "outcome": "killed",
            "case": "gqa4_three_ranges",
            "mode": "on_wait",
            "how": "AssertionError: out: 20 of 512 elements are out of tolerance",
            "tried": 1,
            "seconds": 3.0,
        } | more

    return {
        "made_with": MADE_WITH,
        "instrument": records.instrument(),
        "command": "make mutants",
        "seconds": 432.1,
        "digests": {name: digest(name) for name in NAMES if name != NOT_TRIED},
        "mutants": [
            mutant("the last key is left out", "kv_block_rows", "rpa", causal),
            mutant(
                "a wait is left out",
                "wait_pages",
                "rpa",
                ["rpa", "rpa_soft_cap"],
                mode="random 0",
                how=RACE,
                tried=9,
            ),
            mutant(
                "the cap is <b>twice</b> as high",
                "scores",
                "rpa_soft_cap",
                ["rpa_soft_cap", "rpa_sliding_window_soft_cap"],
                outcome="survived",
                case="",
                mode="",
                how="",
                tried=64,
                seconds=201.0,
            ),
            mutant(
                "queries are not packed",
                "load_query_tile",
                "rpa_float32",
                ["rpa_float32", "rpa_float32_soft_cap"],
                outcome="broken",
                case="",
                mode="",
                how="TypeError: cannot reshape <f32[8,128]>\n  in load_query_tile",
            ),
        ],
        "harmless": [
            {
                "mutation": "one row too many is waited for",
                "function": "wait_kv_fetch",
                "variants": ["rpa_bidirectional", "rpa_depth0"],
                "reason": "a block that is <whole> has no row past its last",
            },
            {
                "mutation": "the last key is left out",
                "function": "kv_block_rows",
                "variants": ["rpa_kv_share"],
                "reason": "no key is left",
            },
        ],
    }


def outcome(name: str, device: str) -> Outcome:
    if (name, device) == (EXCLUDED, "v4"):
        reason = "the matrix unit of v4 does not multiply 8-bit floats"
        return Outcome(name, device, reason, is_excluded=True)
    if (name, device) == (FAILED, "v5e"):
        return Outcome(name, device, LAYOUT)
    margin = 1000 if (name, device) == (OVER_BUDGET, "v7x") else 5 << 20
    launches = tuple(
        budgets.Launch(
            launch,
            budgets.Compared(3 << 20, margin, Taken(3 << 20, 1 << 20)),
            budgets.Compared(5120, 8192, Taken(5120, 52)),
            0,
        )
        for launch in LAUNCHES
    )
    return Outcome(name, device, seconds=4.2, launches=launches)


def compilation() -> dict[str, Any]:
    pairs = [(name, device) for name in NAMES for device in GENERATIONS if name != NOT_TRIED]
    pairs += [("rpa", "v4"), (EXCLUDED, "v4"), (EXTENDED, "v6e")]
    outcomes = [outcome(*pair) for pair in pairs]
    return {
        "made_with": MADE_WITH | {"libtpu": "0.0.52"},
        "command": "rpagen compile --device v5e,v6e,v7x",
        "seconds": 345.0,
        "digests": {name: digest(name) for name in NAMES} | {EXTENDED: "1" * 64},
        "outcomes": [{**dataclasses.asdict(each), "is_well": each.is_well} for each in outcomes],
    }


def compilation_large() -> dict[str, Any]:
    pairs = [(name, device) for name in NAMES for device in GENERATIONS if name != NOT_TRIED]
    outcomes = [outcome(*pair) for pair in pairs if pair[0] != FAILED]
    outcomes += [Outcome(FAILED, device, "RESOURCE_EXHAUSTED: VMEM") for device in GENERATIONS]
    return compilation() | {
        "command": "rpagen compile --shape 32x8x128 --page-size 64 --tokens 2048",
        "digests": {name: digest(name) for name in NAMES},
        "outcomes": [{**dataclasses.asdict(each), "is_well": each.is_well} for each in outcomes],
    }


def sizeable() -> dict[str, Any]:
    """Records with as much in them as a whole run has, by file."""
    chance = random.Random(0)
    valid, real = validation(), hardware()
    cases = [f"case_of_some_length_{number}" for number in range(14)]
    on_tpu = [("tpu", seed) for seed in range(5)]
    valid["variants"] = [tried(variant, MODES, cases) for variant in CORE]
    real["variants"] = [tried(variant, on_tpu, cases) for variant in CORE]
    table = mutants()
    table["mutants"] = []
    for number in range(180):
        # As in the table of mutations, of which most are put into several variants.
        left = chance.sample(NAMES, chance.randint(20, len(NAMES)))
        texts = [left[start::5] for start in range(5)]
        for together in texts:
            table["mutants"].append(
                {
                    "mutation": f"what a function does is done otherwise, number {number}",
                    "function": "load_keys_and_values",
                    "variant": together[0],
                    "stands_for": together,
                    "outcome": "killed",
                    "case": chance.choice(cases),
                    "mode": "on_wait",
                    "how": chance.choice((PROBLEM, RACE)) + "\n  in a line of the kernel" * 25,
                    "tried": 3,
                    "seconds": 12.0,
                }
            )
    return {
        "validate.json": valid,
        "hardware.json": real,
        "mutants.json": table,
        "compile.json": compilation(),
        "compile-large.json": compilation_large(),
    }


RECORDS = {
    "validate.json": validation,
    "hardware.json": hardware,
    "mutants.json": mutants,
    "compile.json": compilation,
    "compile-large.json": compilation_large,
}


def write(folder: Path, *names: str) -> Path:
    """Write records, all if none is named."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or RECORDS:
        (folder / name).write_text(json.dumps(RECORDS[name]()))
    return folder


def write_sizeable(folder: Path) -> Path:
    """Write records with as much in them as a whole run has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in sizeable().items():
        (folder / name).write_text(json.dumps(record))
    return folder


if __name__ == "__main__":
    (write_sizeable if "--sizeable" in sys.argv else write)(Path(sys.argv[1]))
