"""Where the templates and the specs are: in the source checkout, or inside the installed wheel.

The wheel carries both under `rpagen/_data` (pyproject.toml, force-include). A checkout wins, so
that an editable install always reads the files its owner edits.
"""

from __future__ import annotations

import functools
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent  # rpagen/


@functools.cache
def checkout() -> Path | None:
    """The root of the source checkout rpagen runs from, or None when it was installed."""
    root = PACKAGE.parent
    is_checkout = all((root / name).exists() for name in ("pyproject.toml", "templates", "specs"))
    return root if is_checkout else None


def root() -> Path:
    """The folder that holds `templates/` and `specs/`; origins and digests name files from here."""
    return checkout() or PACKAGE / "_data"


def templates_dir() -> Path:
    """The folder of the templates."""
    return root() / "templates"


def specs_dir() -> Path:
    """The folder of the specs that rpagen comes with."""
    return root() / "specs"
