"""`rpagen emit`: any variant that is offered, in a folder of the user's own."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import run as run  # a fixture
from spec_fixtures import PLAIN, write

from rpagen.emit import header
from rpagen.errors import InputError
from rpagen.spec import axes, expand, load, option

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "generated/rpa_kernels"


def body_of(path: Path) -> str:
    return header.split(path.read_text())[1]


def emitted(run, folder: Path, *arguments) -> Path:
    """The module that a command writes, the only one in the folder but for what it imports."""
    status, out, err = run("emit", *arguments, "-o", folder)
    assert (status, err) == (0, "")
    module, support = (Path(line) for line in out.splitlines())
    assert support == folder / "support.py"
    assert sorted(folder.iterdir()) == sorted([module, support])
    return module


def refusal(run, folder: Path, *arguments) -> str:
    status, out, err = run("emit", *arguments, "-o", folder)
    assert (status, out) == (2, "")
    return err


# --- what is emitted -----------------------------------------------------------------------------


def test_a_variant_that_is_checked_in_is_the_same_elsewhere(run, tmp_path):
    module = emitted(run, tmp_path / "mine", "rpa_sliding_window")
    assert body_of(module) == body_of(GENERATED / "rpa_sliding_window.py")
    assert body_of(module.with_name("support.py")) == body_of(GENERATED / "support.py")


def test_what_is_set_is_in_the_record(run, tmp_path):
    module = emitted(
        *(run, tmp_path / "mine", "--set", "kv.dtype=int8", "--set", "quantization=per_tensor"),
        *("--set", "features=sliding_window,kv_share", "--set", "pipelining.kv_slots=2"),
        *("--set", "launches.decode.pipelining.attention.depth=0"),
    )
    assert module.name == "rpa_int8_sliding_window_kv_share_kv_slots2_decode_depth0.py"
    found, body = header.split(module.read_text())
    assert found.command == (
        "rpagen emit --set kv.dtype=int8 --set quantization=per_tensor"
        " --set features=sliding_window,kv_share --set pipelining.kv_slots=2"
        " --set launches.decode.pipelining.attention.depth=0"
    )
    assert found.origin.startswith("specs/families/rpa.yaml:")
    assert 'features=("sliding_window", "kv_share")' in body
    done = subprocess.run(
        [sys.executable, "-c", f"import mine.{module.stem} as m; print(m.VARIANT.launches)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "('decode', Pipelining(kv_slots=2, attention_depth=0" in done.stdout, done.stderr


def test_a_variant_to_start_from_keeps_what_is_not_set(run, tmp_path):
    module = emitted(run, tmp_path / "mine", "rpa_decode_kv_slots2", "--set", "features=soft_cap")
    assert module.name == "rpa_soft_cap_decode_kv_slots2.py"
    module = emitted(
        run, tmp_path / "yours", "rpa_decode_kv_slots2", "--set", "pipelining.kv_slots=6"
    )
    assert module.name == "rpa.py", "what is set for all launches holds for each"


def test_no_features_and_the_other_layout(run, tmp_path):
    module = emitted(run, tmp_path / "a", "rpa_soft_cap", "--set", "features=none")
    assert module.name == "rpa.py"
    module = emitted(run, tmp_path / "b", "--set", "layout=head_major")
    assert module.name == "rpa_head_major.py"
    assert body_of(module) == body_of(GENERATED / "rpa_head_major.py")


def test_every_name_that_is_emitted_is_the_name_its_facts_have_in_a_spec():
    """Set on the command line, the facts of any variant give that variant."""
    families = {family.name: family for family in load.load_families(ROOT / "specs")}
    for variant in expand.load_variants(ROOT / "specs", ("core", "extended")):
        typed = [
            f"{path}={','.join(value) or 'none' if isinstance(value, tuple) else value}"
            for path, value in variant.facts.items()
        ]
        chosen = option.settings(typed)
        family = families[variant.family]
        assert option.family_for(chosen, tuple(families.values())) == family
        (made,) = option.variants(family, chosen, "")
        assert (made.name, made.facts, made.key) == (variant.name, variant.facts, variant.key)


EXCLUDE = "exclude:\n  - {when: {features: [kv_share]}, reason: not for us}\n"


def test_a_spec_of_ones_own(run, tmp_path):
    write(tmp_path, PLAIN + "axes:\n  features: [[], [kv_share]]\n" + EXCLUDE)
    specs = ("--specs", tmp_path / "specs")
    module = emitted(run, tmp_path / "mine", "--set", "features=soft_cap", *specs)
    assert module.name == "plain_soft_cap.py"
    assert header.split(module.read_text())[0].command == (
        f"rpagen emit --set features=soft_cap --specs {tmp_path}/specs"
    )
    said = refusal(run, tmp_path / "other", "--set", "features=kv_share", *specs)
    assert "not offered: not for us" in said


def test_targets_give_a_module_for_each_generation_that_differs(run, tmp_path):
    write(tmp_path, PLAIN + "targets:\n  v5e: {pipelining.kv_slots: 3}\n")
    status, out, _ = run(
        *("emit", "--set", "features=soft_cap", "--specs", tmp_path / "specs"),
        *("-o", tmp_path / "mine"),
    )
    assert status == 0
    assert [Path(line).name for line in out.splitlines()] == [
        *("plain_soft_cap.py", "plain_soft_cap_v5e.py", "support.py")
    ]


def test_a_line_break_in_what_was_typed_makes_no_code(run, tmp_path):
    write(tmp_path, PLAIN, "a\nCODE = 2\n.yaml")
    specs = (tmp_path / "specs").rename(tmp_path / "my\nCODE = 1\nspecs")
    typed = "features=[soft_cap,\nsliding_window]"
    module = emitted(run, tmp_path / "mine", "--set", typed, "--specs", specs)
    text = module.read_text()
    found, body = header.split(text)
    assert "CODE" not in body and "\\nCODE" in found.command
    assert found.body == header.digest(body)
    ast.parse(text)
    assert run("emit", "--set", typed, "--specs", specs, "-o", tmp_path / "mine")[0] == 0


def test_emitted_again_it_is_not_written_again(run, tmp_path):
    module = emitted(run, tmp_path / "mine", "rpa")
    before = module.stat()
    emitted(run, tmp_path / "mine", "rpa")
    assert module.stat().st_ino == before.st_ino


def test_several_kernels_share_a_folder(run, tmp_path, monkeypatch):
    for name in ("rpa", "rpa_int8"):
        assert run("emit", name, "-o", tmp_path / "several")[0] == 0
    monkeypatch.syspath_prepend(tmp_path)
    both = [importlib.import_module(f"several.{name}") for name in ("rpa", "rpa_int8")]
    assert both[0].support is both[1].support


# --- what is refused -----------------------------------------------------------------------------

VALUES = "float32, bfloat16, float8_e4m3fn, float8_e5m2, int8"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["kv.dtype=int8"],
            "--set kv.dtype=int8: not offered: an integer cache needs a scale\n"
            "  expected: a combination that family rpa offers\n"
            "  next: add --set quantization=per_tensor",
        ),
        (
            ["query.dtype=float32"],
            "--set query.dtype=float32: not offered: float32 queries are offered with a float32"
            " cache only\n"
            "  expected: a combination that family rpa offers\n"
            "  next: add --set kv.dtype=float32",
        ),
        (
            ["layout=head_major", "kv.dtype=int8", "features=soft_cap"],
            "--set layout=head_major --set kv.dtype=int8 --set features=soft_cap: not offered: an"
            " integer cache needs a scale; the head_major layout is offered with a bfloat16 cache"
            " only, so far; the head_major layout is offered without features, so far\n"
            "  expected: a combination that family rpa_head_major offers\n"
            "  next: choose other values",
        ),
        (
            ["kv.dtyp=int8"],
            '--set kv.dtyp=int8: there is no axis "kv.dtyp"\n'
            "  expected: one of layout, query.dtype, kv.dtype, quantization,"
            " features, numerics, pipelining.kv_slots, pipelining.attention.depth,"
            " pipelining.dma_wait, pipelining.new_kv_fetch and 12 more\n"
            "  next: did you mean kv.dtype?",
        ),
        (
            ["zzz=int8"],
            '--set zzz=int8: there is no axis "zzz"\n'
            "  expected: one of layout, query.dtype, kv.dtype, quantization,"
            " features, numerics, pipelining.kv_slots, pipelining.attention.depth,"
            " pipelining.dma_wait, pipelining.new_kv_fetch and 12 more\n"
            "  next: choose one of these",
        ),
        (
            ["kv.dtype"],
            "--set kv.dtype: there is no value\n"
            f"  expected: kv.dtype= and one of {VALUES}\n"
            "  next: write one of these",
        ),
        (
            ["features="],
            "--set features=: there is no value\n"
            "  expected: features= and some of sliding_window, soft_cap, bidirectional, kv_share\n"
            "  next: write none for no features",
        ),
        (
            ["kv.dtype=int9"],
            '--set kv.dtype=int9: the text "int9" is not allowed here\n'
            f"  expected: one of {VALUES}\n"
            "  next: did you mean int8?",
        ),
        (
            ["pipelining.kv_slots=200"],
            "--set pipelining.kv_slots=200: the number 200 is not allowed here\n"
            "  expected: one of 2, 3, 4, 6\n"
            "  next: write one of these",
        ),
        (
            ["kv.dtype=int8", "kv.dtype=bfloat16"],
            "--set kv.dtype=bfloat16: kv.dtype is set twice\n"
            "  expected: every axis once\n"
            "  next: remove one of the two",
        ),
        (
            ["features=windows"],
            '--set features=windows: the text "windows" is not allowed here\n'
            "  expected: one of sliding_window, soft_cap, bidirectional, kv_share\n"
            "  next: write one of these",
        ),
        (
            ["features=soft_cap,soft_cap"],
            "--set features=soft_cap,soft_cap: the same value twice\n"
            "  expected: every value once\n"
            "  next: remove one of the two",
        ),
        (
            ["features=!!python/object/apply:os.system [id]"],
            "--set features=!!python/object/apply:os.system [id]:"
            ' "!!python/object/apply:os.system" is a tag\n'
            "  expected: plain mappings, lists, words and numbers\n"
            "  next: remove the tag",
        ),
        (
            ["kv.dtype=*x"],
            '--set kv.dtype=*x: "*x" is an alias\n'
            "  expected: plain mappings, lists, words and numbers\n"
            "  next: write the value out at each place",
        ),
        (
            ["kv.dtype={a: b}"],
            "--set kv.dtype={a: b}: found a mapping\n"
            f"  expected: one of {VALUES}\n"
            "  next: write one of these",
        ),
    ],
)
def test_what_cannot_be_set(run, tmp_path, arguments, said):
    typed = [word for argument in arguments for word in ("--set", argument)]
    assert refusal(run, tmp_path / "mine", *typed) == f"error: {said}\n"
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("name", "typed", "to_add", "made"),
    [
        ("rpa_soft_cap", "kv.dtype=int8", "quantization=per_tensor", "rpa_int8_soft_cap"),
        ("rpa_int8", "kv.dtype=bfloat16", "quantization=none", "rpa"),
        ("rpa_kv_slots2", "query.dtype=float32", "kv.dtype=float32", "rpa_float32_kv_slots2"),
    ],
)
def test_what_to_add_to_a_variant_to_start_from(run, tmp_path, name, typed, to_add, made):
    said = refusal(run, tmp_path / "mine", name, "--set", typed)
    assert said.endswith(f"\n  next: add --set {to_add}\n")
    assert emitted(run, tmp_path / "mine", name, "--set", typed, "--set", to_add).stem == made


@pytest.mark.parametrize("path", axes.BY_PATH)
def test_no_value_gives_a_traceback(path):
    for value in (
        "",
        "\t",
        "\0",
        "\ud800",
        "../x",
        "'; import os",
        "[",
        "{",
        "&a b",
        "- x",
        "9" * 5000,
    ):
        with pytest.raises(InputError) as caught:
            option.settings([f"{path}={value}"])
        said = str(caught.value)
        assert said.startswith(f"--set {path}=") and said.replace("\n", "").isprintable()
        assert "\n  expected: " in said and "\n  next: " in said
        assert len(said) < 600


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rpa_int9"], 'there is no variant "rpa_int9": did you mean rpa_int8?'),
        (["support"], "rpa_kernels/support.py is shared by all variants: name a variant"),
        (["rpa", "--family", "rpa_head_major"], "rpa is of family rpa: leave out --family"),
        ([], "name a variant, or say what it is like with --set AXIS=VALUE"),
        (
            ["--set", "features=none", "--family", "rpa_head_mayor"],
            'there is no family "rpa_head_mayor": did you mean rpa_head_major?',
        ),
        (
            ["--set", "layout=head_interleaved", "--family", "rpa_head_major"],
            "family rpa_head_major has another layout: leave out --family",
        ),
        (
            ["--set", "features=none", "--family", "zzz"],
            'there is no family "zzz": there are rpa, rpa_head_major',
        ),
    ],
)
def test_names_there_are_not(run, tmp_path, arguments, said):
    assert refusal(run, tmp_path / "mine", *arguments) == f"error: {said}\n"


def test_the_parts_of_an_error_are_kept_apart():
    """`emit` prints paths, so its errors have their parts in Python only."""
    with pytest.raises(InputError) as caught:
        option.settings(["kv.dtype=int9"])
    assert json.loads(json.dumps(caught.value.parts())) == {
        "place": "--set kv.dtype=int9",
        "field": "",
        "problem": 'the text "int9" is not allowed here',
        "expected": f"one of {VALUES}",
        "next_step": "did you mean int8?",
        "notes": [],
    }


# --- what is in the way --------------------------------------------------------------------------


def test_what_is_not_rpagens_is_left(run, tmp_path):
    (tmp_path / "support.py").write_text("MINE = 1\n")
    assert refusal(run, tmp_path, "rpa", "--force") == (
        f"error: {tmp_path}/support.py is not rpagen's: emit into another folder, or move it away\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["support.py"]


def test_what_was_edited_by_hand_is_overwritten_when_told(run, tmp_path):
    module = emitted(run, tmp_path, "rpa")
    text = module.read_text()
    module.write_text(text + "EXTRA = 1\n")
    assert refusal(run, tmp_path, "rpa") == (
        f"error: {module} was edited by hand: move it away, or overwrite it with --force\n"
    )
    assert module.read_text() == text + "EXTRA = 1\n"
    assert run("emit", "rpa", "-o", tmp_path, "--force")[0] == 0
    assert module.read_text() == text


def test_the_package_of_generate_is_not_added_to(run):
    said = refusal(run, GENERATED, "rpa_int8", "--set", "pipelining.kv_slots=2")
    assert said == (
        f"error: {GENERATED} is a package of `rpagen generate`, which would remove a kernel that no"
        " spec asks for: emit into a folder of its own, or add the variant to a spec\n"
    )


def test_a_file_where_the_folder_should_be(run, tmp_path):
    (tmp_path / "file").write_text("")
    assert refusal(run, tmp_path / "file", "rpa") == (
        f"error: {tmp_path}/file: cannot be written: File exists; no file was changed\n"
        "  expected: a folder that can be written to, with room in it\n"
        "  next: move the file away that stands there, or choose another folder\n"
    )
