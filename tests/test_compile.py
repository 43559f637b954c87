"""The real TPU compiler: every core variant, and the budget beside what it takes."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
from pathlib import Path

import pytest
import rpa_kernels
from cli_fixtures import run as run  # a fixture
from rpa_kernels import support

from rpagen.commands import shared
from rpagen.emit import resources
from rpagen.errors import InputError
from rpagen.evidence import allocations, devices, stamps
from rpagen.evidence import compile as aot
from rpagen.evidence.allocations import Allocated, Taken
from rpagen.spec import budget, expand, launches

CORE = {variant.name: variant for variant in expand.load_variants(resources.specs_dir())}
FAMILIES = ["rpa", "rpa_head_major"]

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is for x86-64 Linux only"
)


@pytest.fixture
def outcomes(run, tmp_path):
    """Runs the command: its exit status, and what it says of each pair."""

    def compiled(*arguments: object) -> tuple[int, list[dict]]:
        status, out, err = run("compile", *arguments, "--stamps", tmp_path / "stamps", "--json")
        assert err == ""
        return status, json.loads(out)

    return compiled


# --- with the compiler ---------------------------------------------------------------------------


@needs_libtpu
@pytest.mark.parametrize("name", CORE)
def test_every_variant_compiles_for_v6e_within_its_budget(outcomes, name):
    status, (outcome,) = outcomes(name, "--device", "v6e")
    assert (status, outcome["reason"]) == (0, "")
    assert [launch["name"] for launch in outcome["launches"]] == ["decode", "prefill", "mixed"]
    assert not outcome["is_from_stamp"] and outcome["seconds"] > 0


@needs_libtpu
@pytest.mark.parametrize(
    ("device", "shape"),
    # v5e has the VMEM of v6e; few kv heads spill most for their size.
    [("v6e", "32x8x128"), ("v7x", "32x8x128"), ("v7x", "16x2x128")],
)
def test_default_blocks_of_large_models_compile(outcomes, device, shape):
    status, (outcome,) = outcomes(
        *("rpa", "--device", device, "--shape", shape, "--page-size", 64),
        *("--tokens", 2048, "--sequences", 64, "--context", 8192, "--chunk-prefill-size", 512),
    )
    assert (status, outcome["reason"]) == (0, "")
    mixed = outcome["launches"][2]["vmem"]
    assert mixed["taken"]["of_compiler"] > 1 << 20, "here the compiler spills"


@needs_libtpu
@pytest.mark.parametrize(
    ("name", "device", "shape", "page_size"),
    [
        ("rpa_float32", "v5e", "5x1x128", 16),  # rows that are padded
        ("rpa_int8", "v7x", "6x2x256", 64),
        ("rpa_kv_share", "v6e", "8x8x64", 256),
        # Rows of new tokens that fill no tile of words, or several.
        ("rpa", "v6e", "12x3x128", 16),
        ("rpa_float32", "v6e", "9x3x128", 16),
        ("rpa_float8_e4m3fn", "v7x", "10x5x128", 16),
        ("rpa", "v7x", "8x4x256", 16),
        ("rpa_head_major", "v5e", "3x1x128", 64),
        ("rpa", "v5p", "8x2x128", 16),
        ("rpa_int8", "v4", "8x1x64", 16),
    ],
)
def test_the_budget_holds_for_other_shapes(outcomes, name, device, shape, page_size):
    status, (outcome,) = outcomes(
        *(name, "--device", device, "--shape", shape, "--page-size", page_size),
        *("--tokens", 16, "--chunk-prefill-size", 3),
    )
    assert (status, outcome["reason"]) == (0, "")


@needs_libtpu
@pytest.mark.parametrize("name", FAMILIES)
def test_a_thousand_query_rows_of_eight_heads_in_pages_of_256(name):
    shape = aot.CallShape(32, 8, 128, 256, 1024, 8, 16)
    blocks = {"d_block_sizes": (1, 256, 1, 64), "m_block_sizes": (256, 256, 128, 256)}
    mixed = aot.compile_variant(rpa_kernels.load(name), "v6e", shape, **blocks).launches["mixed"]
    left = budget.spill_bytes(
        kv_heads=8, group=4, head_dim=128, query_bytes=2, query_block=256, compute_block=256
    )
    assert 0 < mixed.vmem.of_compiler <= left
    # Four times as many are too many.
    blocks["m_block_sizes"] = (1024, 256, 128, 256)
    needed = {"rpa": 161161216, "rpa_head_major": 160890880}[name]
    with pytest.raises(ValueError, match=f"needs {needed} bytes of VMEM with the blocks") as error:
        aot.compile_variant(rpa_kernels.load(name), "v7x", shape, **blocks)
    assert "expected at most 67108864 on v7x: give smaller m_block_sizes" in str(error.value)


@needs_libtpu
@pytest.mark.parametrize(("query_block", "keys"), [(256, 512), (256, 256)])
def test_several_query_tiles_spill_no_more_than_is_left_to_them(query_block, keys):
    shape = aot.CallShape(8, 2, 128, 16, 1024, 4, 256)
    blocks = {"d_block_sizes": (1, 64, 1, 64), "m_block_sizes": (query_block, 512, 128, keys)}
    mixed = aot.compile_variant(rpa_kernels.load("rpa"), "v7x", shape, **blocks).launches["mixed"]
    left = budget.spill_bytes(
        kv_heads=2,
        group=4,
        head_dim=128,
        query_bytes=2,
        query_block=query_block,
        compute_block=keys,
    )
    assert 1 << 20 < mixed.vmem.of_compiler <= 0.8 * left


@needs_libtpu
@pytest.mark.parametrize("name", FAMILIES)
def test_a_page_table_that_does_not_fit_is_refused_with_its_size(outcomes, name):
    status, (outcome,) = outcomes(
        *(name, "--device", "v6e", "--page-size", 16, "--sequences", 256, "--context", 32768)
    )
    assert status == 1
    assert outcome["reason"] == (
        "page_indices holds 2048 pages for each of 256 sequences, which needs 2111488 bytes of"
        " SMEM; expected at most 1048576: use larger pages, fewer sequences a call, or shorter ones"
    )


@needs_libtpu
def test_the_largest_page_table_that_is_accepted_compiles():
    pages = 16184
    assert budget.smem_bytes(16, pages) == budget.SMEM_BYTES
    shape = aot.CallShape(2, 1, 128, 16, 16, 16, pages)
    compiled = aot.compile_variant(
        rpa_kernels.load("rpa"),
        "v6e",
        shape,
        d_block_sizes=(1, 64, 1, 64),
        m_block_sizes=(8, 64, 8, 64),
    )
    assert all(launch.hbm_spills for launch in compiled.launches.values())


@needs_libtpu
def test_what_is_read_is_what_the_compiler_compares_with_its_limit(monkeypatch):
    monkeypatch.setattr(support, "spill_bytes", lambda **_: 0)
    module = rpa_kernels.load("rpa_kv_slots2")  # of more, some are left out below a limit
    shape = aot.CallShape(16, 2, 128, 64, 64, 4, 8)
    blocks = {"d_block_sizes": (1, 64, 1, 64), "m_block_sizes": (64, 256, 64, 256)}
    vmem = aot.compile_variant(module, "v6e", shape, **blocks).launches["mixed"].vmem
    assert vmem.of_compiler > 0
    limit = vmem.of_kernel + vmem.of_compiler
    aot.compile_variant(module, "v6e", shape, **blocks, vmem_limit_bytes=limit)
    with pytest.raises(Exception, match="Ran out of memory in memory space vmem"):
        aot.compile_variant(module, "v6e", shape, **blocks, vmem_limit_bytes=limit - 512)


@needs_libtpu
def test_a_second_run_compiles_nothing(outcomes, monkeypatch):
    _, (first,) = outcomes("rpa", "--device", "v6e")
    monkeypatch.setattr(aot, "compile_variant", None)
    status, (second,) = outcomes("rpa", "--device", "v6e")
    assert status == 0
    assert second == {**first, "is_from_stamp": True}


# --- without it ----------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch):
    """A compiler that takes no time: the calls it got, and what it says that a launch takes."""
    said = Pretended()
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(aot, "compile_variant", said.compile_variant)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    return said


@dataclasses.dataclass
class Pretended:
    """vmem_bytes: what every launch takes of VMEM; what the budget says that it does if None."""

    calls: int = 0
    vmem_bytes: int | None = None
    hbm_spills: int = 0

    def compile_variant(self, module, generation, shape, *, chunk_prefill_size, **_):
        self.calls += 1
        variant = CORE[module.VARIANT.name]
        plans = launches.plan(variant, shape.problem(variant), generation, chunk_prefill_size)
        taken = {
            plan.launch: Allocated(
                Taken(self.vmem_bytes or plan.vmem_bytes, 1000), Taken(5120, 52), self.hbm_spills
            )
            for plan in plans
        }
        return aot.Compiled(1.0, taken)


def test_a_table_and_what_it_comes_to(run, pretended, tmp_path):
    arguments = ("compile", "rpa", "rpa_float8_e4m3fn_query_scale", "--stamps", tmp_path)
    status, out, err = run(*arguments, "--device", "v4,v6e")
    assert (status, err) == (0, "")
    heading, *rows, _, counts, worst = out.splitlines()
    assert heading.split() == [
        "NAME",
        "DEVICE",
        "SECONDS",
        "VMEM",
        "MiB",
        "SPILLS",
        "MiB",
        "SMEM",
        "KiB",
    ]
    assert [row.split()[:2] for row in rows] == [
        ["rpa", "v4"],
        ["rpa", "v6e"],
        ["rpa_float8_e4m3fn_query_scale", "v4"],
        ["rpa_float8_e4m3fn_query_scale", "v6e"],
    ]
    assert rows[2].endswith("excluded: the matrix unit of v4 does not multiply 8-bit floats")
    assert counts == "3 of 4 pairs compiled, 0 of them known from before; 1 excluded, 0 failed"
    assert worst.startswith("the budget is off by up to 0.0% of VMEM and 0.0% of SMEM; spills take")
    _, again, _ = run(*arguments, "--device", "v4,v6e")
    assert "3 of 4 pairs compiled, 3 of them known from before" in again
    assert pretended.calls == 3


@pytest.mark.parametrize(
    "otherwise",
    [("--page-size", 32), ("--shape", "4x2x128"), ("--tokens", 65), ("--again",)],
)
def test_whatever_differs_is_compiled_again(outcomes, pretended, otherwise):
    outcomes("rpa", "--device", "v6e")
    outcomes("rpa", "--device", "v6e", *otherwise)
    assert pretended.calls == 2


def test_another_source_version_or_variable_is_compiled_again(outcomes, pretended, monkeypatch):
    outcomes("rpa", "--device", "v6e")
    outcomes("rpa", "--device", "v5e")
    outcomes("rpa_soft_cap", "--device", "v6e")
    assert pretended.calls == 3
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_of_no_use")
        outcomes("rpa", "--device", "v6e")
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "0.0.0")
        outcomes("rpa", "--device", "v6e")
    assert pretended.calls == 5
    outcomes("rpa", "--device", "v6e")
    assert pretended.calls == 5


NOTHING_OF_DECODE = {
    "vmem": {"of_kernel": 0, "of_compiler": 0},
    "smem": {"of_kernel": 5120, "of_compiler": 52},
    "hbm_spills": 0,
}


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"seconds": 1}', '{"seconds": 1, "launches": {}}'),
        json.dumps({"seconds": 1, "launches": {"decode": NOTHING_OF_DECODE}}),
    ],
)
def test_a_stamp_that_is_not_whole_does_not_count(outcomes, pretended, tmp_path, content):
    outcomes("rpa", "--device", "v6e")
    (stamp,) = (tmp_path / "stamps").iterdir()
    stamp.write_text(content)
    status, (outcome,) = outcomes("rpa", "--device", "v6e")
    assert (status, outcome["is_from_stamp"], pretended.calls) == (0, False, 2)
    assert [path.name for path in (tmp_path / "stamps").iterdir()] == [stamp.name]


def test_what_fails_is_said_and_not_stamped(run, monkeypatch, pretended, tmp_path):
    def refuse(*_, **__):
        raise RuntimeError("INTERNAL: no such layout\nat some place")

    monkeypatch.setattr(aot, "compile_variant", refuse)
    arguments = ("compile", "rpa", "--device", "v6e", "--stamps", tmp_path / "stamps")
    status, out, _ = run(*arguments)
    assert status == 1
    assert "FAILED: INTERNAL: no such layout\n" in out
    assert "0 of 1 pair compiled, 0 of them known from before; 0 excluded, 1 failed" in out
    assert not (tmp_path / "stamps").exists()
    (outcome,) = json.loads(run(*arguments, "--json")[1])
    assert outcome["reason"] == "INTERNAL: no such layout\nat some place"


@pytest.fixture
def record(run, pretended, tmp_path):
    """Runs the command: what it writes for the report."""

    def written(*arguments: object) -> dict:
        file = tmp_path / "compile.json"
        stamps = tmp_path / "stamps"
        run("compile", *arguments, "--stamps", stamps, "--record", file)
        return json.loads(file.read_text())

    return written


@pytest.mark.parametrize(
    "options",
    [
        "",
        "rpa rpa_soft_cap --device v4,v6e",
        "rpa --shape 32x8x128 --page-size 64 --tokens 2048 --sequences 64 --context 8192"
        " --chunk-prefill-size 512",
    ],
)
def test_a_record_has_the_command_that_finds_the_same(record, options):
    assert record(*options.split())["command"] == f"rpagen compile {options}".rstrip()


def test_a_record_has_only_what_makes_a_difference(record, tmp_path):
    shutil.copytree(resources.specs_dir(), tmp_path / "own specs")
    at_defaults = ("--shape", "8x2x128", "--page-size", 16, "--device", "v5e,v6e,v7x", "--again")
    assert record("rpa", *at_defaults, "--specs", tmp_path / "own specs")["command"] == (
        f"rpagen compile rpa --specs '{tmp_path}/own specs'"
    )


def test_a_command_has_flags_and_values_that_look_like_options(tmp_path):
    def add_arguments(verb):
        verb.add_argument("name", nargs="?")
        verb.add_argument("--only", default="")
        verb.add_argument("--tpu", action="store_true")
        verb.add_argument("-o", dest="output")

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(["--tpu", "rpa", "--only=--a b", "-o", "there"])
    assert (
        shared.command("validate", add_arguments, options, apart=["output"])
        == "rpagen validate rpa '--only=--a b' --tpu"
    )


@pytest.mark.parametrize("vmem_bytes", [100, 1 << 26])
def test_a_budget_that_does_not_hold_is_an_error(run, pretended, tmp_path, vmem_bytes):
    pretended.vmem_bytes = vmem_bytes
    status, out, _ = run("compile", "rpa", "--device", "v6e", "--stamps", tmp_path)
    assert status == 1
    assert re.search(
        rf"BUDGET: decode VMEM takes {vmem_bytes} \+ 1000 bytes, budget \d+ \+ \d", out
    )


def test_scalar_registers_in_hbm_are_shown(run, pretended, tmp_path):
    pretended.hbm_spills = 18
    status, out, _ = run("compile", "rpa", "--device", "v6e", "--stamps", tmp_path)
    assert status == 0
    assert "18 scalar registers in HBM, since SMEM is too full" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rpa_slidng_window"], 'no variant "rpa_slidng_window": did you mean rpa_sliding_window?'),
        (["support"], "shared by all variants: name a variant"),
        (["--device", "v6"], 'there is no device "v6" (did you mean v6e?)'),
        (["--device", "v5e,"], 'there is no device "" (choose from v4, v5e, v5p, v6e, v7x)'),
        (["--shape", "8x128"], '"8x128" is not query heads, kv heads and head dim, such as'),
        (["--shape", "8x3x128"], "3 kv heads cannot share 8 query heads"),
        (["--shape", "8x0x128"], "0 kv heads cannot share 8 query heads"),
        (["--shape", "8x2x300"], "the head dim is from 1 to 256"),
        (["--tokens", "0"], "'0' is no whole number"),
    ],
)
def test_wrong_input_ends_with_2(run, arguments, said):
    status, out, err = run("compile", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and said in err


def test_where_there_is_no_compiler(run, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert run("compile", "rpa") == (
        2,
        "",
        "error: the TPU compiler, libtpu, is for Linux x86_64 only, and this is Darwin arm64\n",
    )
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libtpu" else find_spec(name)
    )
    assert run("compile", "rpa") == (
        2,
        "",
        "error: libtpu is not installed: pip install 'rpagen[compile]'\n",
    )


def test_where_stamps_are(monkeypatch, tmp_path):
    assert stamps.default_folder() == resources.checkout() / ".stamps"
    monkeypatch.setattr(resources, "checkout", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stamps.default_folder() == tmp_path / "rpagen/stamps"


def test_devices():
    assert set(devices.DEVICES) == set(budget.VMEM_BYTES)
    for name in ("rpa_float8_e4m3fn_query_scale", "rpa_float8_e5m2"):
        assert devices.exclusion(CORE[name], "v4") and not devices.exclusion(CORE[name], "v5p")
    assert not devices.exclusion(CORE["rpa_int8"], "v4")
    only = dataclasses.replace(CORE["rpa"], generations=("v5e", "v6e"))
    assert devices.exclusion(only, "v6e") is None
    for device in ("v7x", "v4"):
        assert devices.exclusion(only, device) == "its spec has it for v5e, v6e only"


def dumped(*allocations: str) -> str:
    """What libtpu dumps: allocations, of which we read place, size, offset and tag."""
    lines = (each.partition(" ") for each in allocations)
    return "\n".join(
        f"  #allocation{name} [shape = 'u8[1]{{0}}', {rest}]" for name, _, rest in lines
    )


DUMP = dumped(
    "0 space=smem, size = 0x4, offset = 0x4, fixed_abs, tag = 'smem constant byte address 0x4'",
    "1 space=sflag, size = 0x4, scoped, tag = 'scoped memory for rpa_mixed'",
    "2 space=vmem, size = 0x9000, offset = 0, scoped, tag = 'internal scratch'",
    "3 space=vmem, size = 0x400, offset = 0x9000, scoped, tag = 'scratch operand'",
    "4 space=smem, size = 0x200, offset = 0, scoped, tag = 'scratch operand'",
    "5 space=smem, size = 0x200, offset = 0x200, scoped, tag = 'prefetched SMEM operand 1'",
    "6_spill space=smem, size = 0x4, offset = 0x400, scoped, tag = 'spilled sreg/preg'",
    "7_spill space=vmem, size = 0x1000, offset = 0x9400, scoped, tag = 'spilled vreg'",
    "8_spill space=hbm, size = 0x400, offset = 0, scoped, tag = 'spilled sreg in HBM'",
)


def test_what_is_read_from_a_dump(tmp_path: Path):
    for name in ("rpa_mixed_p16_q8_8_kv64_64.1", "rpa_decode_p16_q1_1_kv64_64.1", "copy.1"):
        (tmp_path / f"17960-{name}-00-post-delay-converter.txt").write_text(DUMP)
    (tmp_path / "17960-rpa_prefill_p16_q8_8_kv64_64.1-01-other-pass.txt").write_text("")
    taken = Allocated(Taken(0x400, 0x9000 + 0x1000), Taken(0x400, 4), 1)
    read = allocations.read(tmp_path, ("mixed", "decode"))
    assert list(read.items()) == [("decode", taken), ("mixed", taken)]


KERNEL_DUMP = "17960-rpa_decode_p16_q1_1_kv64_64.1-00-post-delay-converter.txt"


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({}, "decode, mixed is missing, not understood or not planned (it wrote 0 files)"),
        ({"a": DUMP, "b": DUMP}, "decode, mixed is missing"),  # files of other names
        ({KERNEL_DUMP: DUMP}, "mixed is missing, not understood or not planned (it wrote 1 file)"),
        ({KERNEL_DUMP: DUMP.replace("scratch operand", "scratch")}, "decode, mixed is missing"),
        ({KERNEL_DUMP: DUMP.replace("offset = 0x", "at = 0x")}, "decode, mixed is missing"),
        ({KERNEL_DUMP: ""}, "decode, mixed is missing"),
        (
            {
                KERNEL_DUMP: DUMP,
                KERNEL_DUMP.replace("decode", "mixed"): DUMP,
                KERNEL_DUMP.replace("decode", "prefill"): DUMP,
            },
            "prefill is missing, not understood or not planned",
        ),
    ],
)
def test_a_dump_of_another_form_is_refused(tmp_path, files, wrong):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as error:
        allocations.read(tmp_path, ("decode", "mixed"))
    first, expected, next_step = str(error.value).splitlines()
    assert first.startswith(f"{tmp_path}: what libtpu says of {wrong}")
    assert expected == (
        "  expected: a file *_LAUNCH_p*_q*-post-delay-converter.txt of libtpu's for each of decode,"
        " mixed, that lists what its kernel takes of VMEM and SMEM"
    )
    assert next_step == (
        "  next: run `rpagen compile` in a process in which libtpu was not loaded before, since it"
        " reads LIBTPU_INIT_ARGS once; if it is so again, this libtpu writes another form: install"
        " 0.0.52, or mend rpagen/evidence/allocations.py"
    )


@needs_libtpu
def test_a_dump_that_is_not_written_is_said_and_not_stamped(run, monkeypatch, tmp_path):
    aot._set_environment()  # libtpu dumps where this says, whatever comes after
    monkeypatch.setattr(aot, "dump", lambda: tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    arguments = ("compile", "rpa", "--device", "v6e", "--stamps", tmp_path / "stamps")
    status, out, err = run(*arguments)
    assert (status, err) == (1, "")
    assert (
        f"FAILED: {tmp_path}/elsewhere: what libtpu says of decode, prefill, mixed is missing, not"
        " understood or not planned (it wrote 0 files)\n"
    ) in out
    assert not (tmp_path / "stamps").exists()
