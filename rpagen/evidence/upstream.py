"""`make upstream-suites`: tpu-inference's own tests of its kernel, run on ours.

The kernel that ours take the place of is published in the wheels of tpu-inference, and so are its
tests.  They are fetched, and run as they stand: their cases, their reference, their tolerances.
The one thing that is exchanged is the kernel (`rpagen.evidence.upstream_plugin`).  They ask for a
TPU, and get rpagen's interpreter.

What is fetched goes to `.upstream/`, which git ignores, and is looked for there first.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rpagen.console import table
from rpagen.emit.resources import PACKAGE
from rpagen.errors import RpagenError
from rpagen.evidence import workers

ROOT = PACKAGE.parent
FOLDER = ROOT / ".upstream"
TESTS = "tests/kernels/ragged_paged_attention_kernel_v3_test.py"
KERNEL = "tpu_inference/kernels/ragged_paged_attention/v3/"


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A wheel of the package index, and what of it is unpacked.

    parts: files, or folders with a slash at the end.
    """

    project: str
    version: str
    sha256: str
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the file and its folder begin with."""
        return f"{self.project.replace('-', '_')}-{self.version}"


@dataclasses.dataclass(frozen=True)
class Listed:
    """Cases that do not show anything of our kernel, in the versions named, and why."""

    versions: tuple[str, ...]
    cases: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests in one wheel.

    cases: how many there are, so that one which is no longer found is missed.
    listed: those that are in the table of exceptions.
    """

    wheel: Wheel
    cases: int
    listed: frozenset[str]


# Each of these runs, too, and has to end without a call of the kernel. To list one that does call
# it, or that is not there, is an error, and so is a case without a call that is not listed.
LISTED = (
    Listed(
        versions=("0.13.2", "0.32.0"),
        cases=(
            "RaggedPagedAttentionKernelTest::"
            "test_ragged_paged_attention_sliding_window_should_be_positive",
            "RaggedPagedAttentionKernelTest::test_ragged_paged_attention_soft_cap_cannot_be_zero",
        ),
        reason="their reference refuses the arguments before any kernel is called;"
        " that ours does is in tests/test_dispatch.py",
    ),
    Listed(
        versions=("0.32.0",),
        cases=(
            "GetDefaultBlockSizesTest::test_all_cases_return_four_aligned_blocks",
            "GetDefaultBlockSizesTest::test_decode_heuristic_sizes_fetch_and_compute_to_peak",
            "GetDefaultBlockSizesTest::test_kernel_has_no_env_dependency",
        ),
        reason="about how their module chooses block sizes, and what it imports",
    ),
)


def _suite(version: str, sha256: str, cases: int) -> Suite:
    listed = (case for row in LISTED if version in row.versions for case in row.cases)
    wheel = Wheel("tpu-inference", version, sha256, (TESTS, KERNEL))
    return Suite(wheel, cases, frozenset(listed))


SUITES = (
    _suite("0.13.2", "20a9bae58c7b11148a3bdd96c8a427476d364f1facb18ea93f3b1a7f4ef4c29b", 59),
    _suite("0.32.0", "7c25a3c76cefd383f06ef115a6ed4d7bed82c081f047046bfef55f5913ea06d4", 67),
)

# What jax's own test utilities need, with which the tests are written; nothing else here does.
ABSL = Wheel(
    "absl-py",
    "2.5.1",
    "721200f2f0e9960f2ca9dc3a2a706b201f5f75d812c158f059cbbe29eeafbdb8",
    ("absl/",),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """How a case ended: "passed", "skipped" or "failed"."""

    case: str
    outcome: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches the wheels, runs their tests and says how they ended; 0 if all did as promised."""
    parser = argparse.ArgumentParser(prog="make upstream-suites", description=__doc__)
    versions = [suite.wheel.version for suite in SUITES]
    parser.add_argument("--wheel", choices=versions, help="run the tests of this version alone")
    parser.add_argument("--detect-races", action="store_true", help="takes four times as long")
    options = parser.parse_args(arguments)
    chosen = [suite for suite in SUITES if options.wheel in (None, suite.wheel.version)]
    try:
        absl = fetch(ABSL, FOLDER)
        folders = [fetch(suite.wheel, FOLDER) for suite in chosen]
    except RpagenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    rows, complaints = [], []
    for suite, folder in zip(chosen, folders, strict=True):
        start = time.monotonic()
        results = run(folder, absl, detect_races=options.detect_races)
        seconds = time.monotonic() - start
        rows.append(summary_row(suite, results, seconds))
        complaints += [f"{suite.wheel.name}: {each}" for each in complaints_of(suite, results)]
    for listed in LISTED:
        print(f"listed: {listed.reason}")
        print("".join(f"  {case}\n" for case in listed.cases))
    print(f"Python {platform.python_version()}, jax {importlib.metadata.version('jax')}")
    print(table(("wheel", "passed", "listed", "failed", "seconds"), rows))
    for complaint in complaints:
        print(f"error: {complaint}")
    return 1 if complaints else 0


def fetch(wheel: Wheel, folder: Path) -> Path:
    """Returns the folder with the unpacked parts of a wheel, fetched unless it was before.

    Raises:
        RpagenError: if pip cannot fetch it, or it is not the file it was.
    """
    file = folder / f"{wheel.name}-py3-none-any.whl"
    if not file.exists():
        print(f"fetching {file.name}", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        requirement = f"{wheel.project}=={wheel.version}"
        fetched = subprocess.run(
            [*command, "--only-binary=:all:", "--dest", folder, requirement], check=False
        )
        if fetched.returncode != 0:
            raise RpagenError(f"pip did not fetch {requirement}: see above")
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    if sha256 != wheel.sha256:
        raise RpagenError(f"{file} has the sha256 {sha256}; expected {wheel.sha256}: delete it")
    unpacked = folder / wheel.name
    with zipfile.ZipFile(file) as archive:
        archive.extractall(unpacked, (n for n in archive.namelist() if n.startswith(wheel.parts)))
    return unpacked


def run(folder: Path, absl: Path, *, detect_races: bool) -> list[Result]:
    """Runs the tests in a folder on our kernel, with the progress on standard output."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    # The nearest settings that pytest finds, so that it takes none of ours.
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        *(sys.executable, "-m", "pytest", "--verbose", "-n2", "--dist=worksteal"),
        *("--noconftest", "--import-mode=importlib", "-pno:cacheprovider", "--tb=short"),
        *("-prpagen.evidence.upstream_plugin", f"--junit-xml={report}"),
        *(["--detect-races"] if detect_races else []),
        TESTS,
    ]
    paths = (ROOT, ROOT / "generated", absl, folder)
    environment = _environment(paths, programs=folder.parent / "programs")
    subprocess.run(command, cwd=folder, env=environment, check=False)
    return results_of(report.read_text()) if report.exists() else []


def _environment(paths: Sequence[Path], programs: Path) -> Mapping[str, str]:
    return {
        **os.environ,
        **workers.environment(),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        # The reference is thousands of small programs, and to compile them is half of the time that
        # the tests take. They are kept for the next run.
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def results_of(report: str) -> list[Result]:
    """The results in a JUnit report of pytest."""
    results = []
    for element in ElementTree.fromstring(report).iter("testcase"):
        case = f"{element.get('classname', '').rpartition('.')[2]}::{element.get('name')}"
        tags = {child.tag for child in element}
        outcome = "failed" if tags & {"failure", "error"} else "passed"
        results.append(Result(case, "skipped" if tags & {"skipped"} else outcome))
    return results


def complaints_of(suite: Suite, results: Sequence[Result]) -> list[str]:
    """What is not as promised."""
    skipped = {each.case for each in results if each.outcome == "skipped"}
    complaints = [f"{each.case} failed" for each in results if each.outcome == "failed"]
    complaints += [f"{case} was skipped and is not listed" for case in skipped - suite.listed]
    complaints += [f"{case} is listed and was not skipped" for case in suite.listed - skipped]
    if len(results) != suite.cases:
        complaints.append(f"{len(results)} cases ran; expected {suite.cases}")
    return sorted(complaints)


def summary_row(suite: Suite, results: Sequence[Result], seconds: float) -> tuple[str, ...]:
    """The counts of a suite; what is neither passed nor listed, as it should be, is failed."""
    passed = sum(each.outcome == "passed" and each.case not in suite.listed for each in results)
    listed = sum(each.outcome == "skipped" and each.case in suite.listed for each in results)
    failed = len(results) - passed - listed
    return (suite.wheel.name, *map(str, (passed, listed, failed)), f"{seconds:.0f}")


if __name__ == "__main__":
    sys.exit(main())
