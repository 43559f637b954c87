"""Reading family specs: what a spec means, and the pinned text of every refusal."""

from __future__ import annotations

import ast
import os
import pathlib
import random
import time

import pytest
from spec_fixtures import ALIAS_BOMB, END, PLAIN, SPECS, changed, write

from rpagen.errors import SpecError
from rpagen.spec import axes, expand, grammar, load, model

TOP = "family, doc, generations, defaults, axes, combos, exclude, targets"


def refusal(folder: pathlib.Path, text: str | bytes) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load.load_family(write(folder, text))
    return caught.value


def test_hidden_files_are_no_specs(tmp_path: pathlib.Path) -> None:
    write(tmp_path, PLAIN)
    write(tmp_path, b"\xff", "._plain.yaml")
    (tmp_path / "specs/families/.#plain.yaml").symlink_to("somebody@here.1234")
    assert [family.name for family in load.load_families(tmp_path / "specs")] == ["plain"]


@pytest.mark.parametrize("name", ["other.yml", "other.YAML", "other.Yml"])
def test_a_spec_that_would_not_be_read_is_said(tmp_path: pathlib.Path, name: str) -> None:
    write(tmp_path, PLAIN)
    write(tmp_path, PLAIN, name)
    with pytest.raises(SpecError) as caught:
        load.load_families(tmp_path / "specs")
    assert str(caught.value) == (
        f"specs/families/{name}:1:1: the name does not end in .yaml, so the file would not be"
        " read\n"
        "  expected: names such as families/rpa.yaml\n"
        "  next: rename it to other.yaml, or move it away"
    )


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(SpecError, match="specs/families:1:1: cannot be read: Permission denied"):
        load.load_families(tmp_path / "specs")


def test_reads_every_field(tmp_path: pathlib.Path) -> None:
    text = PLAIN.replace("decode: {}", "decode: {pipelining: {kv_slots: 3}}") + (
        "generations: [v7x, v6e]\n"
        "axes:\n"
        "  features: [[], [soft_cap, sliding_window]]\n"
        "combos:\n"
        "  - {tier: extended, kv.dtype: int8, each: {pipelining.attention.depth: [0, 2]}}\n"
        "  - {generations: [v6e], pipelining.kv_slots: 3}\n"
        "exclude:\n"
        "  - {when: {kv.dtype: [int8, float32], features: [soft_cap]}, reason: not wanted}\n"
        "targets:\n"
        "  v6e: {pipelining.dma_wait: per_page}\n"
    )
    family = load.load_family(write(tmp_path, text))
    assert (family.name, family.doc) == ("plain", "A family for tests.")
    assert family.mark == model.Mark("specs/families/plain.yaml", 1, 1)
    assert family.generations == ("v6e", "v7x")
    assert family.defaults["pipelining.kv_slots"] == model.Setting(
        2, "defaults.pipelining.kv_slots", model.Mark("specs/families/plain.yaml", 11, 15)
    )
    assert family.defaults["launches.decode.pipelining.kv_slots"].value == 3
    assert [setting.value for setting in family.axes["features"]] == [
        (),
        ("sliding_window", "soft_cap"),
    ]
    product, extended, limited = family.combos
    assert (product.choices, product.tier, product.generations) == ({}, "core", ("v6e", "v7x"))
    assert str(product.mark) == f"specs/families/plain.yaml:{END + 1}:1"
    assert extended.tier == "extended"
    assert {path: [s.value for s in each] for path, each in extended.choices.items()} == {
        "kv.dtype": ["int8"],
        "pipelining.attention.depth": [0, 2],
    }
    assert limited.generations == ("v6e",)
    assert [(each.when, each.reason) for each in family.exclusions] == [
        ({"kv.dtype": ("int8", "float32"), "features": (("soft_cap",),)}, "not wanted")
    ]
    assert family.targets["v6e"]["pipelining.dma_wait"].value == "per_page"


def test_every_axis_has_a_default(tmp_path: pathlib.Path) -> None:
    family = load.load_family(write(tmp_path, PLAIN))
    assert set(family.defaults) == {axis.path for axis in axes.AXES}


@pytest.mark.parametrize("text", ["\ufeff" + PLAIN, PLAIN.replace("\n", "\r\n")])
def test_other_editors_files_are_read(tmp_path: pathlib.Path, text: str) -> None:
    assert load.load_family(write(tmp_path, text)).name == "plain"


def test_marks_do_not_depend_on_where_the_specs_lie(tmp_path: pathlib.Path) -> None:
    write(tmp_path, PLAIN)
    (relative,) = load.load_families(os.path.relpath(tmp_path / "specs"))
    (absolute,) = load.load_families(tmp_path / "specs")
    (odd,) = load.load_families(tmp_path / "specs" / "families" / "..")
    assert relative == absolute == odd


def test_checked_in_specs_are_read() -> None:
    names = [family.name for family in load.load_families(SPECS)]
    assert {"rpa", "rpa_head_major"} <= set(names)


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "duplicate key": (
        PLAIN + "family: other\n",
        f"""{END}:1: the key "family" is a duplicate of line 1
  expected: every key once
  next: keep one of the two""",
    ),
    "duplicate key below": (
        changed("kv_slots: 2", "kv_slots: 2\n    kv_slots: 3"),
        """12:5: defaults.pipelining: the key "kv_slots" is a duplicate of line 11
  expected: every key once
  next: keep one of the two""",
    ),
    "unknown key": (
        PLAIN + "axis: {}\n",
        f"""{END}:1: unknown key "axis"
  expected: one of {TOP}
  next: did you mean axes?""",
    ),
    "unknown key, nothing near": (
        PLAIN + "zzz: {}\n",
        f"""{END}:1: unknown key "zzz"
  expected: one of {TOP}
  next: remove the key""",
    ),
    "unknown axis": (
        PLAIN + "targets:\n  v5e: {pipelining.depth: 2}\n",
        f"""{END + 1}:9: targets.v5e: unknown key "pipelining.depth"
  expected: one of layout, query.dtype, kv.dtype, quantization, features, numerics, \
pipelining.kv_slots, pipelining.attention.depth, pipelining.dma_wait, pipelining.new_kv_fetch \
and 12 more
  next: did you mean pipelining.attention.depth?""",
    ),
    "nested where dots are": (
        PLAIN + "exclude:\n  - {when: {kv: {dtype: int8}}, reason: no need}\n",
        f"""{END + 1}:13: exclude.when: unknown key "kv"
  expected: one of layout, query.dtype, kv.dtype, quantization, features, numerics, \
pipelining.kv_slots, pipelining.attention.depth, pipelining.dma_wait, pipelining.new_kv_fetch \
and 12 more
  next: did you mean kv.dtype?""",
    ),
    "dots where it is nested": (
        changed("kv: {dtype: bfloat16}", "kv.dtype: bfloat16"),
        """6:3: defaults: unknown key "kv.dtype"
  expected: one of layout, query, kv, quantization, features, numerics, pipelining, launches
  next: did you mean kv: {dtype: ...}?""",
    ),
    "merge key": (
        PLAIN + "<<: {a: b}\n",
        f"""{END}:1: unknown key "<<"
  expected: one of {TOP}
  next: remove the key""",
    ),
    "missing key": (
        changed("doc: A family for tests.\n", ""),
        """1:1: the key doc is missing
  expected: the keys family, doc, defaults
  next: add the key doc""",
    ),
    "missing default": (
        changed("  numerics: exact\n", ""),
        """4:3: defaults: the key numerics is missing
  expected: the keys layout, query, kv, quantization, features, numerics, pipelining, launches
  next: add the key numerics""",
    ),
    "missing launch": (
        changed(", mixed: {}", ""),
        """15:13: defaults.launches: the key mixed is missing
  expected: the keys decode, prefill, mixed: without one, the sequences of its range would get \
no output
  next: add the key mixed""",
    ),
    "misspelt value": (
        changed("kv: {dtype: bfloat16}", "kv: {dtype: int9}"),
        """6:15: defaults.kv.dtype: the text "int9" is not allowed here
  expected: one of float32, bfloat16, float8_e4m3fn, float8_e5m2, int8
  next: did you mean int8?""",
    ),
    "out of range": (
        changed("kv_slots: 2", "kv_slots: 200"),
        """11:15: defaults.pipelining.kv_slots: the number 200 is not allowed here
  expected: one of 2, 3, 4, 6
  next: write one of these""",
    ),
    "negative": (
        changed("depth: 1", "depth: -1"),
        """12:24: defaults.pipelining.attention.depth: the number -1 is not allowed here
  expected: one of 0, 1, 2
  next: write one of these""",
    ),
    "another way to write a number": (
        changed("kv_slots: 2", "kv_slots: 0x2"),
        """11:15: defaults.pipelining.kv_slots: the number 0x2 is not allowed here
  expected: one of 2, 3, 4, 6
  next: write one of these""",
    ),
    "very long number": (
        changed("kv_slots: 2", "kv_slots: " + "9" * 10_000),
        f"""11:15: defaults.pipelining.kv_slots: the number {"9" * 60}... is not allowed here
  expected: one of 2, 3, 4, 6
  next: write one of these""",
    ),
    "word for a number": (
        changed("kv_slots: 2", "kv_slots: two"),
        """11:15: defaults.pipelining.kv_slots: found the text "two"
  expected: one of 2, 3, 4, 6
  next: write one of these""",
    ),
    "number in quotes": (
        changed("kv_slots: 2", 'kv_slots: "2"'),
        """11:15: defaults.pipelining.kv_slots: found the text "2"
  expected: one of 2, 3, 4, 6
  next: remove the quotes""",
    ),
    "list for a value": (
        changed("layout: head_interleaved", "layout: [head_interleaved]"),
        """4:11: defaults.layout: found a list
  expected: one of head_interleaved, head_major
  next: write one of these""",
    ),
    "nothing for a value": (
        changed("layout: head_interleaved", "layout:"),
        """4:10: defaults.layout: found nothing
  expected: one of head_interleaved, head_major
  next: write one of these""",
    ),
    "truth value": (
        changed("layout: head_interleaved", "layout: no"),
        """4:11: defaults.layout: found the truth value no
  expected: one of head_interleaved, head_major
  next: write one of these""",
    ),
    "word for a list": (
        changed("features: []", "features: soft_cap"),
        """8:13: defaults.features: found the text "soft_cap"
  expected: a list of sliding_window, soft_cap, bidirectional, kv_share
  next: write it in brackets: [soft_cap]""",
    ),
    "feature twice": (
        changed("features: []", "features: [soft_cap, soft_cap]"),
        """8:24: defaults.features: the same value twice
  expected: every value once
  next: remove one of the two""",
    ),
    "number for a mapping": (
        changed("kv: {dtype: bfloat16}", "kv: 16"),
        """6:7: defaults.kv: found the number 16
  expected: a mapping (keys: dtype)
  next: write it as {key: value}""",
    ),
    "value for a list": (
        PLAIN + "axes:\n  pipelining.kv_slots: 3\n",
        f"""{END + 1}:24: axes.pipelining.kv_slots: found the number 3
  expected: a list of 2, 3, 4, 6
  next: write it in brackets: [3]""",
    ),
    "empty list": (
        PLAIN + "axes:\n  pipelining.kv_slots: []\n",
        f"""{END + 1}:24: axes.pipelining.kv_slots: the list is empty
  expected: a list of 2, 3, 4, 6
  next: add a value, or remove the key""",
    ),
    "value twice": (
        PLAIN + "axes:\n  features: [[sliding_window, soft_cap], [soft_cap, sliding_window]]\n",
        f"""{END + 1}:42: axes.features: the same value twice
  expected: every value once
  next: remove one of the two""",
    ),
    "set and listed": (
        PLAIN + "combos:\n  - {kv.dtype: int8, each: {kv.dtype: [int8]}}\n",
        f"""{END + 1}:6: combos: kv.dtype is set in the combo and listed in its each
  expected: every axis once
  next: keep one of the two""",
    ),
    "exclusion without a reason": (
        PLAIN + "exclude:\n  - when: {kv.dtype: int8}\n",
        f"""{END + 1}:5: exclude: the key reason is missing
  expected: the keys when, reason
  next: add the key reason""",
    ),
    "exclusion with an empty reason": (
        PLAIN + 'exclude:\n  - {when: {kv.dtype: int8}, reason: " "}\n',
        f"""{END + 1}:38: exclude.reason: the text is empty
  expected: a text
  next: write it""",
    ),
    "exclusion without a condition": (
        PLAIN + "exclude:\n  - {when: {}, reason: all of them}\n",
        f"""{END + 1}:12: exclude.when: no condition, so that everything would be excluded
  expected: at least one axis and its value
  next: say which variants are meant, such as {{kv.dtype: int8}}""",
    ),
    "target of the dispatch key": (
        PLAIN + "targets:\n  v5e: {kv.dtype: int8}\n",
        f"""{END + 1}:9: targets.v5e: kv.dtype is decided by the call, whatever the generation
  expected: axes that say how a kernel runs, such as pipelining.kv_slots
  next: remove the key, or limit a combo with generations""",
    ),
    "target of a generation not served": (
        PLAIN + "generations: [v6e]\ntargets:\n  v5e: {}\n",
        f"""{END + 2}:3: targets: unknown key "v5e"
  expected: one of v6e
  next: did you mean v6e?""",
    ),
    "doc that ends a docstring": (
        changed("doc: A", 'doc: \'"""\' # A'),
        """2:6: doc: a backslash, three quotes in a row, or a quote at the end
  expected: a sentence that can stand in a docstring
  next: reword it""",
    ),
    "doc with a control character": (
        changed("doc: A family for tests.", 'doc: "a \\a bell"'),
        """2:6: doc: the text has characters that cannot be printed
  expected: a text that can stand in source code
  next: write it without escapes""",
    ),
    "tab": (
        changed("  layout", "\tlayout"),
        """4:1: a tab
  expected: spaces: YAML does not indent with tabs
  next: replace every tab with spaces""",
    ),
    "not UTF-8": (
        PLAIN.encode() + "doc: caf\u00e9".encode("latin-1"),
        f"""{END}:9: the byte 0xe9 is not UTF-8
  expected: a YAML file of at most 1,048,576 bytes in UTF-8
  next: save the file as UTF-8""",
    ),
    "UTF-16": (
        PLAIN.encode("utf-16"),
        """1:1: the byte 0xff is not UTF-8
  expected: a YAML file of at most 1,048,576 bytes in UTF-8
  next: save the file as UTF-8""",
    ),
    "control character": (
        changed("doc: A", "doc: \x1b A"),
        """2:6: not YAML: the character U+001B is not printable
  expected: YAML as in specs/families/rpa.yaml
  next: look at this line and the one above it""",
    ),
    "empty": (
        "",
        """1:1: the file says nothing
  expected: a YAML file of at most 1,048,576 bytes in UTF-8
  next: begin with family: NAME""",
    ),
    "comments only": (
        "# to do\n",
        """1:1: the file says nothing
  expected: a YAML file of at most 1,048,576 bytes in UTF-8
  next: begin with family: NAME""",
    ),
    "no mapping": (
        "- family: plain\n",
        f"""1:1: found a list
  expected: a mapping (keys: {TOP})
  next: begin with family: NAME""",
    ),
    "syntax": (
        changed("query: {dtype: bfloat16}", "query: {dtype: bfloat16"),
        """6:5: not YAML: while parsing a flow mapping, expected ',' or '}', but got ':'
  expected: YAML as in specs/families/rpa.yaml
  next: look at this line and the one above it""",
    ),
    "two documents": (
        PLAIN + "---\n" + PLAIN,
        f"""{END}:1: not YAML: expected a single document in the stream, but found another document
  expected: YAML as in specs/families/rpa.yaml
  next: look at this line and the one above it""",
    ),
    "escape out of range": (
        changed("doc: A family for tests.", 'doc: "\\U99999999"'),
        """2:9: not YAML: an escape or a number out of range
  expected: YAML as in specs/families/rpa.yaml
  next: look at this line and the one above it""",
    ),
    "anchor": (
        changed("query: {", "query: &both {"),
        """5:10: "&both" is an anchor
  expected: plain mappings, lists, words and numbers
  next: write the value out at each place""",
    ),
    "alias": (
        changed("query: {dtype: bfloat16}", "query: *both"),
        """5:10: "*both" is an alias
  expected: plain mappings, lists, words and numbers
  next: write the value out at each place""",
    ),
    "Python object": (
        "family: !!python/object/apply:os.system [exit]\n",
        """1:9: "!!python/object/apply:os.system" is a tag
  expected: plain mappings, lists, words and numbers
  next: remove the tag""",
    ),
    "key that is a list": (
        PLAIN + "? [a, b]\n: c\n",
        f"""{END}:3: a key that is a list or a mapping
  expected: plain mappings, lists, words and numbers
  next: quote it if it is a word""",
    ),
    "nested deeply": (
        "[" * 100_000,
        """1:17: nested more than 16 deep
  expected: plain mappings, lists, words and numbers
  next: remove the needless nesting""",
    ),
    "very many values": (
        "\n".join(f"key{index}: value" for index in range(50_000)),
        """5000:10: more than 10,000 values
  expected: plain mappings, lists, words and numbers
  next: split it into families""",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_says_where_what_and_what_next(tmp_path: pathlib.Path, name: str) -> None:
    text, expected = REFUSED[name]
    assert str(refusal(tmp_path, text)) == f"specs/families/plain.yaml:{expected}"


@pytest.mark.parametrize(
    "name",
    [
        "../plain",
        "/etc/plain",
        "plain.py",
        "Plain",
        "plain-2",
        "2plain",
        "_plain",
        "class",
        "registry",
        "caf\u00e9",
        "a" * 41,
        '__import__("os")',
    ],
)
def test_names_are_identifiers(tmp_path: pathlib.Path, name: str) -> None:
    error = refusal(tmp_path, changed("family: plain", f"family: {name}"))
    assert str(error) == (
        f'specs/families/plain.yaml:1:9: family: "{name}" is no name for a family\n'
        "  expected: a lower-case identifier of at most 40 characters that is neither a Python"
        " keyword nor a name of rpa_kernels itself\n"
        "  next: write a name such as rpa_head_major"
    )
    assert error.exit_status == 2


def test_parts_are_kept_apart(tmp_path: pathlib.Path) -> None:
    error = refusal(tmp_path, changed("kv: {dtype: bfloat16}", "kv: {dtype: int9}"))
    assert error.parts() == {
        "file": "specs/families/plain.yaml",
        "line": 6,
        "column": 15,
        "field": "defaults.kv.dtype",
        "problem": 'the text "int9" is not allowed here',
        "expected": "one of float32, bfloat16, float8_e4m3fn, float8_e5m2, int8",
        "next_step": "did you mean int8?",
        "notes": [],
    }


def test_large_file_is_refused_unread(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, PLAIN)
    with open(path, "r+b") as file:
        file.truncate(50_000_000)
    started = time.perf_counter()
    with pytest.raises(SpecError) as caught:
        load.load_family(path)
    assert time.perf_counter() - started < 0.1
    assert str(caught.value) == (
        "specs/families/plain.yaml:1:1: the file has 50,000,000 bytes\n"
        "  expected: a YAML file of at most 1,048,576 bytes in UTF-8\n"
        "  next: split it into several families"
    )


def test_alias_bomb_costs_nothing(tmp_path: pathlib.Path) -> None:
    started = time.perf_counter()
    assert refusal(tmp_path, ALIAS_BOMB).problem == '"&a0" is an anchor'
    assert time.perf_counter() - started < 0.5


def test_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SpecError) as caught:
        load.load_family(tmp_path / "specs" / "families" / "none.yaml")
    assert str(caught.value) == (
        "specs/families/none.yaml:1:1: cannot be read: No such file or directory\n"
        "  expected: a YAML file of at most 1,048,576 bytes in UTF-8\n"
        "  next: check the path and its permissions"
    )


def test_no_families(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SpecError) as caught:
        load.load_families(tmp_path / "specs")
    assert str(caught.value) == (
        "specs/families:1:1: no family spec\n"
        "  expected: files such as families/rpa.yaml below the specs folder\n"
        "  next: give the folder that holds families/, or write a spec there"
    )


def test_no_input_is_worse_than_refused(tmp_path: pathlib.Path) -> None:
    """Whatever is done to a spec, it is read or refused with a place inside it."""
    source = random.Random(0)
    pieces = ["{", "}", "[", "]", ":", "- ", "? ", "&a ", "*a", "!!x ", "|\n", '"', "\\", "#", "\n"]
    pieces += ["\u2028", "\x85", "\ud7ff", "<<: ", "%TAG", "---\n", "  ", "0x", "~", "=", "\r"]
    text = (SPECS / "families" / "rpa_head_major.yaml").read_text()
    for _ in range(300):
        mutant = text
        for _ in range(source.randint(1, 3)):
            start = source.randrange(len(mutant))
            end = start + source.choice([0, 0, 1, 5])
            mutant = mutant[:start] + source.choice(pieces) + mutant[end:]
        try:
            load.load_family(write(tmp_path, mutant))
        except SpecError as error:
            assert 1 <= error.mark.line <= len(mutant.splitlines()) + 1
            assert str(error)


def test_names_of_the_emitted_package_are_taken() -> None:
    package = SPECS.parent / "generated" / "rpa_kernels"
    variants = {variant.name for variant in expand.load_variants(SPECS)}
    modules = {path.stem for path in package.glob("*.py")} - variants - {"__init__"}
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    exports = {alias.name for node in imports for alias in node.names if alias.name.islower()}
    assert modules | exports <= set(grammar.NAMES_TAKEN)
