"""The page as text: one file, which asks for nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from rpagen.evidence.report.page import environment
from rpagen.schedule.call import Call, Timed
from rpagen.schedule.floor import Floor
from rpagen.schedule.page import view


def html(
    call: Call, timed: Timed, *, title: str, about: str = "", floor: Floor | None = None
) -> str:
    """The HTML of the page about a call that was timed with its paths.

    title: what was timed, in a few words. about: more of that. floor: what the call has to do, if
    that is known.

    Raises:
        InputError: see `loops.of`.
    """
    page = view.of(call, timed, title, about, floor)
    template = environment(Path(__file__).parent).get_template("page.html.j2")
    return template.render(page=page)
