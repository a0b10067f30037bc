"""Write the results of reports as one self-contained HTML page.

Room: cli. Takes: Entries, sorted by urgency, and how many to list. Gives: the page.
Next: dashboard/render.py, which escapes every name and message, and allows no script,
no request and no other style sheet.
Source: WCAG 2.2 (1.1.1, 1.3.1, 1.4.1, 2.1.1, 2.4.1); CSP Level 3.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from kyverno_mp.cli.output.screen import in_markup
from kyverno_mp.dashboard.entries import DIMENSIONS, Entry, groups, total
from kyverno_mp.dashboard.render import render

_GROUPS_MAX: Final = 50
"""Rows of a chart; further rows are shown as one number. Other formats list all."""


def page(
    entries: Sequence[Entry],
    dimension: str,
    rows_max: int,
    *,
    title: str,
    created: datetime,
) -> str:
    """Return the page; the groups of ``dimension`` come first.

    ``rows_max``: results in the list, 0 = all.
    """
    order = (dimension, *(name for name in DIMENSIONS if name != dimension))
    times = [entry.timestamp_s for entry in entries if entry.timestamp_s]
    html = render(
        "saved",
        charts=[(each, groups(entries, each)) for each in order],
        counts=total(entries),
        entries=entries[:rows_max] if rows_max else entries,
        groups_max=_GROUPS_MAX,
        period=(min(times), max(times)) if times else None,
        title=title,
        written=created,
    )
    return in_markup(html)
