"""The page as text: one file, which asks for nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

import jinja2

from rpagen.evidence.report.view import Page


def render(page: Page) -> str:
    """The HTML of the page."""
    return environment().get_template("page.html.j2").render(page=page)


def environment(*folders: Path) -> jinja2.Environment:
    """The templates of a page: those in some folders, and `base.css`, the look of all pages.

    The templates of this page come last.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, Path(__file__).parent]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
