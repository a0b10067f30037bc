"""Write the results of reports as one self-contained HTML page.

Room: cli. Takes: Entries, sorted by urgency, and how many to list. Gives: the page.
Next: dashboard/markup.py.
May touch: nothing outside its arguments.
Source: WCAG 2.2 (1.1.1, 1.3.1, 1.4.1, 2.1.1, 2.4.1); CSP Level 3.

SAFETY: names and messages come from objects and policies. Every string is escaped, and
the Content-Security-Policy allows no script, no request and only this style sheet.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.dashboard.entries import DIMENSIONS, Entry, groups, total
from kyverno_mp.dashboard.markup import (
    TITLES,
    count_heads,
    group_row,
    head_of,
    mark_of,
    message_of,
    text_of,
    time_of,
    totals,
)

_GROUPS_MAX: Final = 50
"""Rows of a chart; further rows are shown as one number. Other formats list all."""


def page(
    entries: Sequence[Entry],
    dimension: str,
    rows_max: int,
    *,
    title: str,
    made: datetime,
) -> str:
    """Return the page; the groups of ``dimension`` come first.

    ``rows_max``: results in the list, 0 = all.
    """
    order = (dimension, *(one for one in DIMENSIONS if one != dimension))
    listed = entries[:rows_max] if rows_max else entries
    parts = [
        *_head(title, order),
        *_overview(entries, made),
        *(line for one in order for line in _section(entries, one)),
        *_results(listed, len(entries)),
        f"</main><footer><p>kyverno-mp {escape(__version__)}</p></footer>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(title: str, order: Sequence[str]) -> Iterator[str]:
    yield head_of(title)
    yield '<a class="skip-link" href="#results">Skip to the results</a>'
    yield f"<header><h1>{escape(title)}</h1>"
    links = [(one, TITLES[one]) for one in order]
    items = "".join(
        f'<li><a href="#{name}">{text}</a></li>'
        for name, text in (*links, ("results", "Results"))
    )
    yield f'<nav aria-label="Sections"><ul>{items}</ul></nav></header><main>'


def _overview(entries: Sequence[Entry], made: datetime) -> Iterator[str]:
    counts = total(entries)
    stamps = [one.timestamp_s for one in entries if one.timestamp_s]
    text = f"{counts.total:,} results. Page written {time_of(made)}"
    if stamps:
        first, last = (datetime.fromtimestamp(one(stamps), UTC) for one in (min, max))
        text += f"; results from {time_of(first)} to {time_of(last)}"
    yield '<section aria-labelledby="overview"><h2 id="overview">Overview</h2>'
    yield f"<p>{text}.</p>"
    yield totals(counts)
    yield "</section>"


def _section(entries: Sequence[Entry], dimension: str) -> Iterator[str]:
    found = groups(entries, dimension)
    title = TITLES[dimension]
    yield f'<section aria-labelledby="{dimension}"><h2 id="{dimension}">{title}</h2>'
    if not found:
        yield "<p>No results.</p></section>"
        return
    yield f'<div class="wide" role="region" aria-labelledby="{dimension}" tabindex="0">'
    yield f'<table><thead><tr><th scope="col">{dimension.capitalize()}</th>'
    yield f"{count_heads()}</tr></thead><tbody>"
    largest = max(one.counts.total for one in found)
    yield from (group_row(one, largest) for one in found[:_GROUPS_MAX])
    yield "</tbody></table></div>"
    rest = len(found) - _GROUPS_MAX
    if rest > 0:
        number = sum(one.counts.total for one in found[_GROUPS_MAX:])
        yield f"<p>{rest:,} more with {number:,} results are not shown.</p>"
    yield "</section>"


def _results(listed: Sequence[Entry], count: int) -> Iterator[str]:
    yield '<section aria-labelledby="results"><h2 id="results">Results</h2>'
    if len(listed) < count:
        yield (
            f"<p>The {len(listed):,} most urgent of {count:,} results. Filters select"
            " others, and <code>--limit</code> sets how many are listed.</p>"
        )
    if not listed:
        yield "<p>No results.</p></section>"
        return
    yield '<div class="wide" role="region" aria-labelledby="results" tabindex="0">'
    names = ("Result", "Severity", "Policy", "Rule", "Namespace", "Object", "Message")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    yield from map(_row, listed)
    yield "</tbody></table></div></section>"


def _row(entry: Entry) -> str:
    subject = f"{entry.kind}/{entry.name}" if entry.kind else entry.name
    texts = (entry.severity, entry.policy, entry.rule, entry.namespace, subject)
    cells = "".join(f"<td>{text_of(one)}</td>" for one in texts)
    return (
        f"<tr><td>{mark_of(entry.result)}</td>{cells}"
        f'<td class="message">{message_of(entry)}</td></tr>'
    )
