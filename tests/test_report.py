"""The page of `rpagen report`: what its cells say and link to, and which records it refuses."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_fixtures as made_up
from cli_fixtures import run as run  # a fixture

from rpagen import cli
from rpagen.emit import resources
from rpagen.evidence import records
from rpagen.evidence.report import formats, kernels, page, typed, view

VOID = {"meta", "br", "input", "link", "img", "hr"}
DASH = "\N{EN DASH}"
COLUMNS = ("calls", "races", "mutants", "v5e", "v6e", "v7x", "v4", "error", "hardware")


class Element:
    """An element of the page with what is in it, text or elements."""

    def __init__(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tag, self.attributes = tag, attributes
        self.inside: list[Element | str] = []

    def __getitem__(self, name: str) -> str:
        return self.attributes[name] or ""

    def all(self, tag: str = "") -> list[Element]:
        """All elements below, in order."""
        below = [each for each in self.inside if isinstance(each, Element)]
        found = [each for child in below for each in (child, *child.all())]
        return [each for each in found if not tag or each.tag == tag]

    @property
    def text(self) -> str:
        """What is read, with marks that a screen reader leaves out."""
        parts = [each if isinstance(each, str) else each.text for each in self.inside]
        return " ".join("".join(parts).split())


class Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        element = Element(tag, dict(attrs))
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag, f"</{tag}> at {self.getpos()} ends something else"

    def handle_data(self, data):
        self.open[-1].inside.append(data)


class Page:
    """A page that was written, parsed: `cells` are by variant and column."""

    def __init__(self, file: Path) -> None:
        self.text = file.read_text(encoding="utf-8")
        parser = Parser()
        parser.feed(self.text)
        parser.close()
        (self.root,) = parser.open
        self.by_id = {each["id"]: each for each in self.root.all() if "id" in each.attributes}
        self.rows = {
            each["data-variant"]: each
            for each in self.root.all("tr")
            if "data-variant" in each.attributes
        }

    def cell(self, variant: str, column: str) -> Element:
        cells = self.rows[variant].all("td")
        columns = [each for each in COLUMNS if each != "v4" or len(cells) == len(COLUMNS)]
        return dict(zip(columns, cells, strict=True))[column]

    def said(self, variant: str, column: str) -> tuple[str, str]:
        """The class and the text of a cell."""
        cell = self.cell(variant, column)
        return cell["class"], cell.text

    def figure(self, name: str) -> tuple[str, ...]:
        """What is said at the top under a name."""
        (figure,) = (
            each
            for each in self.root.all("li")
            for heading in each.all("h3")
            if heading.text.endswith(f" {name}")
        )
        return tuple(each.text for each in figure.all("p"))


@pytest.fixture
def report(run, tmp_path):
    """Writes the page of a folder of records, and parses it."""

    def written(folder: Path) -> Page:
        file = tmp_path / "report.html"
        status, out, err = run("report", "-o", file, "--records", folder)
        assert (status, err) == (0, "") and out
        return Page(file)

    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All records."""
    return made_up.write(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory) -> Page:
    """The page of all records."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    assert cli.main(["report", "-o", str(file), "--records", str(folder)]) == 0
    return Page(file)


# --- the table -----------------------------------------------------------------------------------


def test_every_core_variant_has_a_row_and_of_others_those_in_records(whole):
    assert list(whole.rows) == [*made_up.NAMES, made_up.EXTENDED]
    assert whole.rows[made_up.EXTENDED].all("th")[0].text == f"{made_up.EXTENDED} extended"
    assert f"what no spec makes: {made_up.GONE}." in whole.root.text


def test_what_is_well_is_said(whole):
    said = {column: whole.said("rpa", column) for column in COLUMNS}
    assert said == {
        "calls": ("well", "✓ 25 of 25"),
        "races": ("well", "✓ none in 25"),
        "mutants": ("well", "✓ 2 of 2 2 here, 0 elsewhere"),
        "v5e": ("well", "✓ yes ✓ large: yes"),
        "v6e": ("well", "✓ yes ✓ large: yes"),
        "v7x": ("well", "✓ yes ✓ large: yes"),
        "v4": ("well", "✓ yes"),
        "error": ("well", "✓ 0.62"),
        "hardware": ("well", "✓ yes older"),
    }


@pytest.mark.parametrize(
    ("variant", "column", "state", "text"),
    [
        (made_up.FAILED, "calls", "bad", "✗ 24 of 25"),
        (made_up.FAILED, "races", "well", "✓ none in 25"),
        (made_up.FAILED, "mutants", "bad", "✗ 2 of 3, 1 survived 0 here, 2 elsewhere"),
        (
            *("rpa_sliding_window_soft_cap", "mutants"),
            *("bad", "✗ 1 of 2, 1 survived 0 here, 1 elsewhere"),
        ),
        ("rpa_float32", "mutants", "bad", "✗ 1 of 2, 1 broken 0 here, 1 elsewhere"),
        ("rpa_kv_share", "mutants", "apart", f"{DASH} none apply"),
        (made_up.FAILED, "v5e", "bad", "✗ failed ✗ large: failed"),
        (made_up.FAILED, "v6e", "well", "✓ yes ✗ large: failed"),
        (made_up.RACY, "calls", "bad", "✗ 24 of 25"),
        (made_up.RACY, "races", "bad", "✗ 1 race in 25"),
        (made_up.EXCLUDED, "v4", "apart", f"{DASH} excluded"),
        (made_up.OVER_BUDGET, "v7x", "bad", "✗ over budget ✗ large: over budget"),
        ("rpa_bidirectional", "mutants", "apart", f"{DASH} none apply"),
        ("rpa_bidirectional", "v4", "apart", f"{DASH} not run"),
        (made_up.NAMES[4], "hardware", "bad", "✗ no, 1 of 5 failed older"),
        (made_up.STALE, "calls", "well", "✓ 25 of 25 stale"),
        (made_up.STALE, "races", "well", "✓ none in 25 stale"),
        (made_up.STALE, "mutants", "well", "✓ 1 of 1 stale 0 here, 1 elsewhere"),
        (made_up.STALE, "v6e", "well", "✓ yes stale ✓ large: yes stale"),
    ],
)
def test_what_is_not_well_is_said(whole, variant, column, state, text):
    assert whole.said(variant, column) == (state, text)


@pytest.mark.parametrize(
    ("variant", "column", "command"),
    [
        (made_up.NOT_TRIED, "calls", formats.VALIDATION.command),
        (made_up.NOT_TRIED, "races", formats.VALIDATION.command),
        (made_up.NOT_TRIED, "error", formats.VALIDATION.command),
        (made_up.EXTENDED, "mutants", formats.MUTANTS.command),
        ("rpa_bidirectional", "hardware", formats.HARDWARE.command),
    ],
)
def test_what_was_not_run_says_how_to_run_it(whole, variant, column, command):
    state, text = whole.said(variant, column)
    no = "no, " if column == "hardware" else ""
    assert (state, text) == ("unknown", f"? {no}not run: make it with {command}")
    (link,) = whole.cell(variant, column).all("a")
    assert link["title"] == f"make it with {command}"
    assert f"not run: make it with {command}" in whole.by_id[link["href"][1:]].text


def test_each_shape_that_was_not_compiled_says_how_to_compile_it(whole):
    sources = (formats.COMPILATION, formats.COMPILATION_LARGE)
    first, second = whole.cell(made_up.NOT_TRIED, "v7x").all("a")
    assert [first["title"], second["title"]] == [f"make it with {each.command}" for each in sources]
    assert first.text == "? not run: make it with make compile"
    assert second.text == "? large: not run: make it with make compile-large"
    state, text = whole.said(made_up.EXTENDED, "v6e")
    assert state == "well" and text.startswith("✓ yes stale ? large: not run: make it with ")
    for link, source in zip((first, second), sources, strict=True):
        assert f"not run: make it with {source.command}" in whole.by_id[link["href"][1:]].text


def test_of_a_production_shape_nothing_is_said_where_there_is_no_record(report, tmp_path):
    page = report(made_up.write(tmp_path / "records", "compile.json"))
    assert page.said("rpa", "v6e") == ("well", "✓ yes")
    assert not [each for each in page.rows["rpa"].all("div")]
    for said in ("compile-large", "production", "large shape"):
        assert said not in page.root.text


def test_every_column_says_it_where_there_is_no_record(report, tmp_path):
    (tmp_path / "none").mkdir()
    page = report(tmp_path / "none")
    assert list(page.rows) == made_up.NAMES
    for variant in page.rows:
        cells = page.rows[variant].all("td")
        assert len(cells) == len(COLUMNS) - 1
        assert all("not run: make it with" in cell.text for cell in cells)
    for name in ("Calls in interpret mode", "Mutants", "Compiled", "Seen on hardware"):
        assert page.figure(name) == ("not run", "how to run it")
    for source in formats.SOURCES:
        said = f"not run: make it with {source.command}" in page.root.text
        assert said is not source.is_optional


def test_a_kernel_whose_text_changes_makes_its_records_stale(report, folder, tmp_path, monkeypatch):
    package = tmp_path / "checkout/generated/rpa_kernels"
    shutil.copytree(resources.root() / "generated/rpa_kernels", package)
    with (package / "rpa.py").open("a") as file:
        file.write("EXTRA = 1\n")
    (package / "rpa_float8_e5m2.py").unlink()
    monkeypatch.setattr(resources, "checkout", lambda: tmp_path / "checkout")
    monkeypatch.setattr(resources, "root", lambda: made_up.SPECS.parent)
    page = report(folder)
    badges = {
        column: [each.text for each in page.cell("rpa", column).all("strong")] for column in COLUMNS
    }
    of_both_shapes = {device: ["stale", "stale"] for device in ("v5e", "v6e", "v7x")}
    assert badges == {column: ["stale"] for column in COLUMNS} | of_both_shapes | {
        "hardware": ["stale", "older"]
    }
    assert not page.cell("rpa_soft_cap", "calls").text.endswith("stale")
    # What the folder does not have is emitted anew, and is the same.
    assert not page.cell("rpa_float8_e5m2", "calls").text.endswith("stale")


def test_without_a_checkout_kernels_are_those_that_the_specs_make(monkeypatch):
    monkeypatch.setattr(resources, "root", lambda: made_up.SPECS.parent)
    monkeypatch.setattr(resources, "checkout", lambda: None)
    rpa = made_up.CORE[0]
    package = made_up.SPECS.parent / "generated/rpa_kernels"
    assert kernels.digests([rpa]) == {rpa.name: records.digest(package, rpa.name)}


# --- the top -------------------------------------------------------------------------------------


def test_figures_count_what_the_rows_say(whole):
    core = len(made_up.NAMES)
    calls, pairs = 25 * (core - 1), 3 * core
    assert whole.figure("Variants") == (
        *(str(core + 1), f"{core} of the core tier", "1 of other tiers, in records"),
        "6 with something that is not well",
    )
    assert whole.figure("Calls in interpret mode") == (
        f"{calls - 2} of {calls}",
        "passed, of 5 cases",
    )
    assert whole.figure("Races") == ("1", f"in {calls} calls that looked for them")
    assert whole.figure("Mutants") == ("2 of 4", "killed, of 4 mutations, 1 survived, 1 broken")
    assert whole.figure("Compiled") == (
        f"{pairs - 2} of {pairs}",
        *("pairs of a variant and a generation", "1 excluded, 1 failed"),
        f"launches within their budget: {3 * (pairs - 2) - 3} of {3 * (pairs - 2)}",
    )
    large = 3 * (core - 1)
    assert whole.figure("Compiled, large shape") == (
        f"{large - 3} of {large}",
        *("pairs of a variant and a generation", "0 excluded, 3 failed"),
        f"launches within their budget: {3 * (large - 3) - 3} of {3 * (large - 3)}",
    )
    assert whole.figure("Seen on hardware") == (
        *(f"4 of {core + 1}", "variants, on TPU v6 lite", "1 failed there"),
    )
    assert whole.figure("Stale") == (
        *("3", "variants of which a record tried another text than that at hand"),
        *("5 judged by an older instrument", "24 of which something was not run"),
    )


def test_the_largest_error_of_each_pair_of_dtypes_links_to_its_call(whole):
    (table,) = (
        each
        for each in whole.root.all("table")
        if each.all("caption") and each.all("caption")[0].text.startswith("The largest error")
    )
    rows = [
        [cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in table.all("tr")
    ]
    assert rows[1][:2] == ["float32", "float32"]
    calls = len(made_up.CASES) * len(made_up.MODES) * 12
    assert [
        *("bfloat16", "bfloat16", "interpret mode on a CPU", str(calls)),
        *("0.62", "✓ tight enough", "rpa, gqa4_three_ranges"),
    ] in rows
    assert {row[2] for row in rows[1:]} == {"interpret mode on a CPU", "TPU v6 lite"}
    for link in table.all("a"):
        variant, case = link.text.split(", ")
        call = whole.by_id[link["href"][1:]]
        assert link["href"].startswith(f"#{variant}-")
        assert call.tag == "tr" and call.all("th")[0].text == case
        assert call.text.count("the largest") == 1


def test_a_bound_that_is_far_from_all_errors_is_not_well(whole):
    rows = {
        tuple(cell.text for cell in row.all()[1:3]): row.all("td")
        for row in whole.root.all("table")[0].all("tr")[1:]
    }
    said = {
        kv_dtype: [cell.text for cell in cells][1:-1]
        for (kv_dtype, where), cells in rows.items()
        if where == "interpret mode on a CPU"
    }
    assert said[made_up.LOOSE] == [
        *("interpret mode on a CPU", "100", "0.06"),
        "✗ too loose: more than 8 times the largest error",
    ]
    assert said[made_up.SELDOM] == [
        *("interpret mode on a CPU", "50", "0.06"),
        f"{DASH} too few calls to say: fewer than 100",
    ]


@pytest.mark.parametrize(
    ("fraction", "calls", "state"),
    [
        (0.125, 100, "well"),
        (0.1249, 100, "bad"),
        (0.1249, 99, "apart"),
        (0.0, 100, "bad"),
        (1.0, 1, "well"),
        (1.01, 1, "bad"),
    ],
)
def test_an_eighth_of_the_bound_is_the_least_that_the_largest_error_is(fraction, calls, state):
    assert view._bound(fraction, calls)[1] == state


def test_it_says_what_the_records_were_made_with(whole):
    for said in (
        "rpagen validate --seeds 3",
        "interpret mode on a CPU; python 3.11.7, jax 0.10.2, jaxlib 0.10.2, numpy 2.4.0",
        "numpy 2.4.0, libtpu 0.0.52",
    ):
        assert said in whole.root.text


def test_it_is_the_same_whenever_it_is_made(run, folder, tmp_path):
    file = tmp_path / "report.html"
    arguments = ("report", "-o", file, "--records", folder)
    first, second = run(*arguments)[1], run(*arguments)[1]
    variants = len(made_up.NAMES) + 1
    assert first.startswith(
        f"wrote {file}\n{variants} variants: 6 with something that is not well, 3 with a record"
        " that is stale, 5 judged by an older instrument, 24 of which something was not run\n"
        "1 variant that no spec makes: 0 with something that is not well\n"
    )
    assert second.startswith(f"{file} is up to date\n")


# --- the details ---------------------------------------------------------------------------------


def test_the_calls_of_a_variant_begin_with_those_that_failed(whole):
    rows = whole.by_id[f"{made_up.FAILED}-calls"].all("tr")
    assert len(rows) == 1 + len(made_up.CASES) * len(made_up.MODES)
    cells = [cell for cell in rows[1].all() if cell.tag in ("th", "td")]
    first = [cell.text for cell in cells]
    assert first[:4] == ["gqa3_three_ranges", "eager", "", "detected"] and first[5] == ""
    assert cells[4].all("span")[0].text == f"✗ {made_up.PROBLEM_LINE}"
    (folded,) = cells[4].all("details")
    assert "open" not in folded.attributes and folded.all("summary")[0].text == "the whole message"
    (whole_message,) = folded.all("pre")
    assert whole_message.inside == [f"\n{made_up.PROBLEM}"]  # HTML leaves out that line break
    outcomes = [row.all("td")[3].text for row in rows[2:]]
    assert set(outcomes) == {"✓ passed"}
    assert {tuple(cell.text for cell in row.all("td")[:2]) for row in rows[1:]} == {
        *(("on_wait", ""), ("on_wait", "3"), ("eager", "")),
        *(("random", "0"), ("random", "1")),
    }
    hardware = whole.by_id["rpa-hardware"].all("tr")[1:]
    assert [row.all("td")[1].text for row in hardware] == ["", "", "5", "", ""]


@pytest.mark.parametrize(
    ("said", "first", "folded"),
    [
        ("Error: one line", "Error: one line", ""),
        ("\nError:\n  more\n", "Error:", "Error:\n  more"),
        ("x" * 200, "x" * 200, ""),
        ("x" * 201, "x" * 200 + " \N{HORIZONTAL ELLIPSIS}", "x" * 201),
        ("", "", ""),
    ],
)
def test_of_a_message_the_first_line_is_shown(said, first, folded):
    assert view.message(said) == view.Message(first, folded)


def tables(page, part):
    """Of a part of a variant, by the beginning of their captions: rows of cells."""
    return {
        table.all("caption")[0].text.split(",")[0]: [
            [cell for cell in row.all() if cell.tag in ("th", "td")] for row in table.all("tr")[1:]
        ]
        for table in page.by_id[part].all("table")
    }


def test_the_mutants_of_a_host_begin_with_those_that_live(whole):
    (survived,) = tables(whole, f"{made_up.FAILED}-mutants")["Put into this variant"]
    assert [cell.text for cell in survived] == [
        *("the cap is <b>twice</b> as high", "scores", "✗ survived", "", "64", "201.0"),
    ]
    (broken,) = tables(whole, "rpa_float32-mutants")["Put into this variant"]
    assert broken[2].text == "✗ broken: it cannot be traced, which shows nothing"
    assert (
        broken[3].all("pre")[0].text == "TypeError: cannot reshape <f32[8,128]> in load_query_tile"
    )
    _, killed = tables(whole, "rpa-mutants")["Put into this variant"]
    assert [cell.text for cell in killed[:3]] == [
        *("a wait is left out", "wait_pages", "✓ killed by gqa4_three_ranges, random 0"),
    ]
    assert killed[3].text.startswith(made_up.RACE_LINE)
    assert killed[3].all("pre")[0].inside == [f"\n{made_up.RACE}"]


def test_mutants_of_another_variant_are_links_to_where_they_are(whole):
    rows = tables(whole, "rpa_sliding_window_soft_cap-mutants")["Put into another variant"]
    assert [[cell.text for cell in row] for row in rows] == [
        [made_up.FAILED, "✗ 1 survived", "the cap is <b>twice</b> as high"],
        ["rpa", "✓ 1 killed", "the last key is left out"],
    ]
    for row in rows:
        host, (mutation,) = row[0].all("a")[0], row[2].all("a")
        assert host["href"] == f"#{host.text}-mutants"
        place = whole.by_id[mutation["href"][1:]]
        assert place in whole.by_id[f"{host.text}-mutants"].all("tr")
        assert place.all("th")[0].text == mutation.text
    summary = whole.by_id[f"{made_up.FAILED}-mutants"].all("summary")[0].text
    assert summary.endswith(
        "2 of 3 mutants killed: 0 in this variant, 2 in another that stands for it; 1 survived"
    )


def test_mutants_of_a_host_that_is_not_on_the_page_are_no_links(report, tmp_path):
    record = made_up.mutants()
    record["mutants"][0] |= {"variant": made_up.GONE, "stands_for": [made_up.GONE, "rpa"]}
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/mutants.json").write_text(json.dumps(record))
    page = report(tmp_path / "odd")
    assert page.said("rpa", "mutants")[1] == "✓ 2 of 2 1 here, 1 elsewhere"
    (row,) = tables(page, "rpa-mutants")["Put into another variant"]
    assert row[0].text == made_up.GONE and row[2].text == "the last key is left out"
    assert not [link for cell in row for link in cell.all("a")]


def test_what_cannot_matter_is_listed_and_not_counted(whole):
    ((name, function, why),) = tables(whole, "rpa_bidirectional-mutants")[
        "Not counted: what cannot matter in this variant"
    ]
    assert (name.text, function.text) == ("one row too many is waited for", "wait_kv_fetch")
    assert why.text == "a block that is <whole> has no row past its last"
    # Also where the variant is one of those that a mutant stands for.
    assert "none of them applies; 1 cannot matter here" in whole.by_id["rpa_kv_share-mutants"].text
    assert list(tables(whole, "rpa_kv_share-mutants")) == [
        "Not counted: what cannot matter in this variant"
    ]


def test_every_launch_has_what_it_takes_of_its_budget(whole):
    launches = whole.by_id[f"{made_up.OVER_BUDGET}-compile-v7x"].all("tr")
    assert [row.all("th")[-1].text for row in launches] == ["decode", "prefill", "mixed"]
    assert [cell.text for cell in launches[1].all("td")] == [
        *("4.00 of 3.00", "3.00 of 3.00", "1.00 of 0.00"),
        *("5.1 of 13.0", "5.0 of 5.0", "0.1 of 8.0"),
        *("0", "✗ budget does not hold"),
    ]
    excluded = whole.by_id[f"{made_up.EXCLUDED}-compile-v4"].text
    assert excluded == (f"v4 {DASH} excluded: the matrix unit of v4 does not multiply 8-bit floats")
    failed = whole.by_id[f"{made_up.FAILED}-compile"]
    assert "✗ failed: INTERNAL: no such layout" in failed.text
    assert [each.inside for each in failed.all("pre")] == [[f"\n{made_up.LAYOUT}"]]


def test_a_production_shape_has_a_section_of_its_own(whole):
    section = whole.by_id[f"{made_up.FAILED}-compile-large"]
    summary = section.all("summary")[0].text
    assert summary == "Compiled for a production shape ✗ failed for v5e, v6e, v7x"
    assert "✗ failed: RESOURCE_EXHAUSTED: VMEM" in section.text and not section.all("pre")
    links = [each["href"] for each in whole.cell("rpa", "v6e").all("a")]
    assert links == ["#rpa-compile-v6e", "#rpa-compile-large-v6e"]
    assert all(link[1:] in whole.by_id for link in links)


def test_what_is_stale_says_which_text_was_tried(whole):
    said = whole.by_id[f"{made_up.STALE}-calls"].text
    at_hand = records.digest(resources.root() / "generated/rpa_kernels", made_up.STALE)
    assert f"{'0' * 12} was tried, {at_hand[:12]} is at hand" in said


# --- as a page -----------------------------------------------------------------------------------


def test_ids_are_unique_and_every_link_has_its_target(whole):
    ids = [each["id"] for each in whole.root.all() if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    links = [each["href"] for each in whole.root.all("a")]
    assert links and all(link.startswith("#") and link[1:] in whole.by_id for link in links)
    for name in ("aria-labelledby", "aria-describedby", "for"):
        for each in whole.root.all():
            assert all(word in whole.by_id for word in (each.attributes.get(name) or "").split())
    # Every cell of the table leads somewhere.
    assert all(cell.all("a") for row in whole.rows.values() for cell in row.all("td"))


def test_headings_of_tables_say_what_they_are_of(whole):
    heads = whole.root.all("th")
    scopes = {each.attributes.get("scope") for each in heads}
    assert heads and scopes == {"col", "row", "colgroup", "rowgroup"}


def test_nothing_comes_from_elsewhere(whole):
    assert {each.tag for each in whole.root.all()}.isdisjoint({"link", "img", "iframe", "base"})
    assert not [each for each in whole.root.all() if "src" in each.attributes]
    assert not re.search(r"https?:|//\w|@import|url\(", whole.text.replace("// ", ""))


def test_text_of_records_is_escaped(whole, report, tmp_path):
    assert "<script>alert" not in whole.text and "<b>twice" not in whole.text
    assert len(whole.root.all("script")) == 1
    record = made_up.validation()
    record["where"] = '"><script>x</script>\x1b[31m\ud800'
    record["variants"][0]["calls"][0]["case"] = "' onclick='x"
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/validate.json").write_text(json.dumps(record))
    page = report(tmp_path / "odd")
    assert len(page.root.all("script")) == 1
    assert r'"><script>x</script>\x1b[31m\ud800' in page.root.text


def test_rows_are_found_by_axes_and_by_what_came_of_them(whole):
    def has(variant: str, *words: str) -> bool:
        return all(word in whole.rows[variant]["data-words"] for word in words)

    assert has("rpa_depth2", "pipelining.attention.depth=2", "kv.dtype=bfloat16", "core", "race in")
    assert has("rpa_sliding_window_soft_cap", "features=sliding_window,soft_cap", "survived")
    assert has(made_up.STALE, "stale") and not has("rpa", "stale")
    kinds = {name: row["data-kinds"].split() for name, row in whole.rows.items()}
    assert kinds["rpa"] == ["all", "older"] and has("rpa", "older") and has("rpa", "large: yes")
    assert kinds[made_up.STALE] == ["all", "not-well", "stale", "not-run"]
    assert kinds[made_up.FAILED] == ["all", "not-well", "older"]
    assert kinds["rpa_bidirectional"] == ["all", "not-run"]
    options = {each["value"] for each in whole.by_id["find-kind"].all("option")}
    assert options == {"all", "not-well", "stale", "older", "not-run"}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("validate.json", ("calls", "races", "error")),
        ("hardware.json", ("hardware",)),
        ("mutants.json", ("mutants",)),
    ],
)
@pytest.mark.parametrize("is_older", [False, True])
def test_what_an_older_instrument_judged_says_so(report, tmp_path, name, columns, is_older):
    instrument = made_up.OLD_INSTRUMENT if is_older else records.instrument()
    record = made_up.RECORDS[name]() | {"instrument": instrument}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / name).write_text(json.dumps(record))
    page = report(tmp_path / "old")
    for column in columns:
        badges = [each.text for each in page.cell("rpa", column).all("strong")]
        assert badges == (["older"] if is_older else [])
        assert page.cell("rpa", column)["class"] == "well"
    notes = page.figure("Stale")
    assert any("judged by an older instrument" in note for note in notes) == is_older
    assert ("Judged by an older instrument" in page.by_id["rpa"].text) == is_older


def test_a_page_of_a_whole_run_has_a_size_that_a_browser_likes(report, tmp_path):
    page = report(made_up.write_sizeable(tmp_path / "records"))
    calls = [page.said(name, "calls")[1] for name in made_up.NAMES]
    assert all(each.startswith("✓ 70 of 70") for each in calls)
    assert page.figure("Mutants")[0] == "900 of 900"
    assert len(page.text.encode()) < 4e6


# --- what judged ---------------------------------------------------------------------------------


@pytest.fixture
def evidence(tmp_path) -> Path:
    """A copy of rpagen/evidence."""
    assert records.__file__ is not None
    return shutil.copytree(Path(records.__file__).parent, tmp_path / "evidence")


def test_the_instrument_follows_from_the_files_alone(evidence):
    assert records.instrument(evidence) == records.instrument()
    assert re.fullmatch("[0-9a-f]{64}", records.instrument())


@pytest.mark.parametrize(
    "name", ["reference.py", "tolerance.py", "cases.py", "interpreter/memory.py"]
)
def test_a_changed_file_is_another_instrument(evidence, name):
    with (evidence / name).open("a") as file:
        file.write("\n")
    assert records.instrument(evidence) != records.instrument()


def test_a_file_that_is_new_or_of_another_name_is_another_instrument(evidence):
    (evidence / "interpreter/more.py").touch()
    more = records.instrument(evidence)
    (evidence / "interpreter/more.py").rename(evidence / "interpreter/another.py")
    assert len({records.instrument(), more, records.instrument(evidence)}) == 3


@pytest.mark.parametrize("name", ["compile.py", "mutants.py", "calls.py", "report/view.py"])
def test_what_judges_nothing_is_no_part_of_the_instrument(evidence, name):
    (evidence / name).write_text("")
    assert records.instrument(evidence) == records.instrument()


# --- files ---------------------------------------------------------------------------------------


def test_the_default_is_the_current_folder(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path / "none")
    status, out, err = run("report")
    assert (status, err) == (0, "")
    assert out.startswith(f"wrote report.html\n{len(made_up.NAMES)} variants: 0 with")
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_page_that_fails_leaves_the_old_one(run, folder, monkeypatch, tmp_path):
    file = tmp_path / "report.html"
    file.write_text("old")

    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "render", fails)
    assert run("report", "-o", file, "--records", folder)[0] == 2
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]


def test_a_place_that_cannot_be_written_is_an_error(run, tmp_path):
    status, out, err = run("report", "-o", tmp_path, "--records", tmp_path)
    assert (status, out) == (2, "") and err.startswith(f"error: {tmp_path}: ")


def test_a_folder_of_records_that_was_named_has_to_be_there(run, tmp_path):
    status, out, err = run("report", "-o", tmp_path / "x", "--records", tmp_path / "recrods")
    assert (status, out) == (2, "")
    assert err == (
        f"error: --records {tmp_path}/recrods: is not a folder\n"
        "  expected: the folder of validate.json, mutants.json, compile.json and hardware.json\n"
        "  next: correct the path, or leave --records out\n"
    )


def changed(record, path, value):
    """A record with one value changed, or left out if the value is the type None."""
    whole = copy.deepcopy(record)
    *above, last = path
    inner = whole
    for each in above:
        inner = inner[each]
    if value is type(None):
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(whole)


CALL = ("variants", 1, "calls", 2)
LAUNCH = ("outcomes", 0, "launches", 0)


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("validate.json", ("seconds",), type(None), ": has no seconds\n"),
        ("validate.json", ("seconds",), "1", 'seconds: is "1"\n  expected: a number\n'),
        ("validate.json", ("seconds",), True, "seconds: is true\n  expected: a number\n"),
        (
            "validate.json",
            ("seconds",),
            float("nan"),
            "seconds: is nan\n  expected: a number, from",
        ),
        ("validate.json", ("seconds",), 10**400, "seconds: is "),
        ("validate.json", ("variants",), {}, "variants: is an object\n  expected: a list\n"),
        ("validate.json", ("made_with", "jax"), 3, "made_with.jax: is 3\n  expected: a text\n"),
        (
            *("validate.json", (*CALL, "mode"), "lazy"),
            'variants[1].calls[2].mode: is "lazy"\n  expected: one of on_wait, eager, random, ',
        ),
        (
            *("validate.json", (*CALL, "mode"), "tpu"),
            'calls[2].mode: is "tpu"\n  expected: a call in interpret mode: hardware.json has',
        ),
        ("validate.json", (*CALL, "seed"), None, "seed: is null\n  expected: a whole number\n"),
        ("validate.json", (*CALL, "problem"), None, "problem: is null\n  expected: a text\n"),
        ("validate.json", ("instrument",), type(None), ": has no instrument\n"),
        ("hardware.json", ("instrument",), 5, "instrument: is 5\n  expected: a text\n"),
        ("mutants.json", ("instrument",), type(None), ": has no instrument\n"),
        ("mutants.json", ("harmless",), type(None), ": has no harmless\n"),
        (
            *("mutants.json", ("harmless", 0, "variants"), "rpa"),
            'harmless[0].variants: is "rpa"\n  expected: a list\n',
        ),
        (
            *("mutants.json", ("mutants", 0, "outcome"), "lived"),
            'mutants[0].outcome: is "lived"\n  expected: one of killed, survived, broken\n',
        ),
        (
            *("mutants.json", ("mutants", 0, "case"), ""),
            "mutants[0].case: is empty\n  expected: the call that killed it\n",
        ),
        (
            *("compile-large.json", ("outcomes", 0, "device"), "v3"),
            'outcomes[0].device: is "v3"\n  expected: one of v4, v5e, v5p, v6e, v7x\n',
        ),
        ("validate.json", (*CALL, "seed"), 1.5, "seed: is 1.5\n  expected: a whole number\n"),
        ("validate.json", (*CALL, "races"), None, "races: is null\n  expected: true or false\n"),
        ("validate.json", (*CALL, "fraction"), -1, "fraction: is -1\n  expected: a number, from 0"),
        ("validate.json", (*CALL[:2], "variant"), "rpa", "variants: has rpa more than once\n"),
        ("hardware.json", (*CALL, "mode"), "eager", 'mode: is "eager"\n  expected: the mode "tpu"'),
        (
            *("mutants.json", ("mutants", 0, "stands_for"), ["rpa_int8"]),
            'mutants[0].stands_for: lacks the host\n  expected: "rpa" in it\n',
        ),
        ("compile.json", (*LAUNCH, "vmem", "taken"), 5, "vmem.taken: is 5\n  expected: an object"),
        (
            *("compile.json", (*LAUNCH, "smem", "taken", "of_kernel"), 0),
            "outcomes[0].launches[0].smem.taken.of_kernel: is 0\n  expected: some bytes\n",
        ),
        (
            *("compile.json", ("outcomes", 0, "device"), "v3"),
            'outcomes[0].device: is "v3"\n  expected: one of v4, v5e, v5p, v6e, v7x\n',
        ),
        ("compile.json", ("outcomes", 0, "device"), "v6e", "has rpa for v6e more than once\n"),
    ],
)
def test_a_record_of_another_form_is_an_error_at_its_place(run, tmp_path, name, path, value, said):
    (tmp_path / name).write_text(changed(made_up.RECORDS[name](), path, value))
    file = tmp_path / "report.html"
    status, out, err = run("report", "-o", file, "--records", tmp_path)
    assert (status, out) == (2, "") and not file.exists()
    assert err.startswith(f"error: {tmp_path / name}: ") and said in err
    command = next(source.command for source in formats.SOURCES if source.file == name)
    assert f"\n  next: make it again with `{command}`, or remove it\n" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"made_with": ', "is no JSON: Expecting value: line 1 column 15 (char 14)"),
        (b"\xff", "is no JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "is no JSON: nested too deeply"),
        (b"[]", "is a list\n  expected: an object"),
        (b"null", "is null\n  expected: an object"),
    ],
)
def test_what_is_no_record_is_one_error(run, tmp_path, content, said):
    (tmp_path / "mutants.json").write_bytes(content)
    status, out, err = run("report", "-o", tmp_path / "x", "--records", tmp_path)
    assert (status, out) == (2, "") and "Traceback" not in err
    assert err.startswith(f"error: {tmp_path}/mutants.json: ") and said in err
    assert "  expected: " in err and "  next: make it again with `make mutants`" in err


def test_what_no_spec_makes_may_be_wrong_too(run, folder, tmp_path):
    """It has no row of its own: the summary and the page say it all the same."""
    records_of_wrong = tmp_path / "records"
    shutil.copytree(folder, records_of_wrong)
    record = made_up.validation()
    (of_old,) = (each for each in record["variants"] if each["variant"] == made_up.GONE)
    of_old["calls"][0] |= {"problem": "AssertionError: wrong", "fraction": None}
    (records_of_wrong / "validate.json").write_text(json.dumps(record))
    file = tmp_path / "report.html"
    _, out, _ = run("report", "-o", file, "--records", records_of_wrong)
    assert "\n1 variant that no spec makes: 1 with something that is not well\n" in out
    assert f"Something is not well with {made_up.GONE}." in file.read_text()


def test_a_report_in_place_of_a_folder_is_an_error(run, folder, tmp_path):
    status, out, err = run("report", "-o", tmp_path, "--records", folder)
    assert (status, out) == (2, "")
    assert err == (
        f"error: {tmp_path}: is a folder\n  expected: a file, or none yet\n"
        "  next: name a file, which may be one in it, or move the folder away\n"
    )


def test_a_record_that_is_a_folder_is_an_error(run, tmp_path):
    (tmp_path / "compile.json").mkdir()
    status, _, err = run("report", "-o", tmp_path / "x", "--records", tmp_path)
    assert status == 2
    assert err.startswith(f"error: {tmp_path}/compile.json: cannot be read: Is a directory\n")


def test_keys_that_are_not_known_are_passed_over(report, folder, tmp_path):
    record = made_up.mutants() | {"more": {"to": ["come"]}}
    (tmp_path / "more").mkdir()
    (tmp_path / "more/mutants.json").write_text(json.dumps(record))
    assert report(tmp_path / "more").said("rpa", "mutants") == (
        "well",
        "✓ 2 of 2 2 here, 0 elsewhere",
    )


def test_a_field_with_a_default_may_be_left_out():
    found = typed.convert(formats.Outcome, {"variant": "rpa", "device": "v6e", "reason": "no"})
    assert found == formats.Outcome("rpa", "v6e", "no")
