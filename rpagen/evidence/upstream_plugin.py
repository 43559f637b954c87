"""A pytest plugin by which tpu-inference's tests of its kernel run on ours, on any machine.

pytest is started in the folder of an unpacked wheel, which is also where Python finds its modules:
those of the kernel, and none of the engine that it comes with.  The tests import our kernel under
the name of theirs, and all else, the reference above all, is theirs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax._src import test_util

from rpagen.evidence.interpreter import tpu_interpret_mode

rpa_kernels: Any = importlib.import_module("rpa_kernels")  # emitted, so unknown to mypy

KERNEL = "tpu_inference.kernels.ragged_paged_attention.v3.kernel"
# Modules of the engine, which their kernel imports to log and to look up block sizes when it is
# called.  It is not called.
UNUSED = ("tpu_inference.logger", "tpu_inference.utils")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds our option to those of pytest."""
    parser.addoption("--detect-races", action="store_true", help="look for races in our kernel")


def pytest_configure(config: pytest.Config) -> None:
    """Puts our kernel in the place of theirs, before the tests are imported."""
    kernel = OurKernel(detect_races=config.getoption("--detect-races"))
    config.pluginmanager.register(kernel)
    for name in UNUSED:
        sys.modules[name] = mock.MagicMock()
    importlib.import_module(KERNEL).ragged_paged_attention = kernel  # type: ignore[attr-defined]
    test_util.is_device_tpu_at_least = lambda version: True
    # jax opens its folder of compiled programs with the first one, and its test utilities would
    # fail the case in which it does.
    jnp.zeros(())


class OurKernel:
    """`rpa_kernels.ragged_paged_attention`, interpreted; a case without a call of it is skipped."""

    def __init__(self, *, detect_races: bool) -> None:
        self._detect_races = detect_races
        self._is_called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes what the test asks for."""
        self._is_called = True
        with tpu_interpret_mode(detect_races=self._detect_races):
            return rpa_kernels.ragged_paged_attention(*args, **kwargs)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        """Watches a case for calls."""
        self._is_called = False
        yield
        # Programs of the interpreter are large, and those of another case are not run again.
        jax.clear_caches()  # type: ignore[no-untyped-call]
        if not self._is_called:
            pytest.skip("shows nothing of our kernel, which it does not call")
