"""Where kernels run in tests: on a TPU where there is one, else in interpret mode on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# What a test run finds is to follow from the commit alone: `rpagen validate --minutes` draws anew.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tpu", action="store_true", help="insist on running kernels on a TPU")


def pytest_configure(config: pytest.Config) -> None:
    # Before anything imports jax. With libtpu installed and no TPU, jax would look for one.
    has_tpu = any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*"))
    if not (has_tpu or config.getoption("--tpu")):
        from rpagen.evidence import workers

        workers.set_environment()


@pytest.fixture(scope="session")
def on_tpu(request: pytest.FixtureRequest) -> bool:
    """Whether kernels run on a TPU."""
    import jax

    found = jax.default_backend() == "tpu"
    if request.config.getoption("--tpu") and not found:
        pytest.fail(f"--tpu was given, and the backend is {jax.default_backend()}")
    return found


@pytest.fixture
def kernel_mode(on_tpu: bool) -> Callable[..., contextlib.AbstractContextManager[Any]]:
    """Makes the context in which kernels run; arguments are those of the interpreter."""

    def mode(**options: Any) -> contextlib.AbstractContextManager[Any]:
        if on_tpu:
            return contextlib.nullcontext()
        from rpagen.evidence.interpreter import tpu_interpret_mode

        return tpu_interpret_mode(**options)

    return mode


@pytest.fixture(autouse=True)
def _few_programs_in_memory(request: pytest.FixtureRequest) -> None:
    # Programs of the interpreter are large, and those of another group are not run again.
    mark = request.node.get_closest_marker("xdist_group")
    if mark is not None and [mark.args[0]] != _LAST_GROUP:
        import jax

        jax.clear_caches()
        _LAST_GROUP[:] = [mark.args[0]]


_LAST_GROUP: list[str] = []
