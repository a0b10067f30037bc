"""Write the results of reports as one HTML page that needs no other file.

Room: cli. Takes: Entries, sorted by urgency, and how many to list. Gives: the page.
Next: page_style.py has the style sheet. May touch: nothing outside its arguments.
Source: WCAG 2.2 (1.1.1, 1.3.1, 1.4.1, 2.1.1, 2.4.1); CSP Level 3.

SAFETY: names and messages come from objects and policies. Every text is escaped, and
the Content-Security-Policy allows no script, no request and only this style sheet.
"""

import base64
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.cli.report.entries import (
    DIMENSIONS,
    RESULTS,
    Counts,
    Entry,
    Group,
    groups,
    total,
)
from kyverno_mp.cli.report.page_style import STYLE

_GROUPS_MAX: Final = 50
"""Rows of a chart: more are listed as one number, and the other formats have them."""
_MESSAGE_LENGTH_MAX: Final = 2000
_BAR_UNITS: Final = 1000
_NAMES: Final = {
    "fail": "Fail",
    "error": "Error",
    "warn": "Warn",
    "pass": "Pass",
    "skip": "Skip",
}
_TITLES: Final = {
    "policy": "Policies",
    "namespace": "Namespaces",
    "severity": "Severities",
    "category": "Categories",
}


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
    digest = base64.b64encode(sha256(STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none';"
        " form-action 'none'"
    )
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield '<meta name="referrer" content="no-referrer">'
    yield f"<title>{escape(title)}</title>"
    # The digest is that of exactly this text.
    yield f"<style>{STYLE}</style></head><body>"
    yield '<a class="skip-link" href="#results">Skip to the results</a>'
    yield f"<header><h1>{escape(title)}</h1>"
    links = [(one, _TITLES[one]) for one in order]
    items = "".join(
        f'<li><a href="#{name}">{text}</a></li>'
        for name, text in (*links, ("results", "Results"))
    )
    yield f'<nav aria-label="Sections"><ul>{items}</ul></nav></header><main>'


def _overview(entries: Sequence[Entry], made: datetime) -> Iterator[str]:
    counts = total(entries)
    stamps = [one.timestamp_s for one in entries if one.timestamp_s]
    text = f"{counts.total:,} results. Page written {_time(made)}"
    if stamps:
        first, last = (datetime.fromtimestamp(one(stamps), UTC) for one in (min, max))
        text += f"; results from {_time(first)} to {_time(last)}"
    yield '<section aria-labelledby="overview"><h2 id="overview">Overview</h2>'
    yield f"<p>{text}.</p>"
    yield '<ul class="totals">'
    for name in RESULTS:
        number, share = counts.of[name], _share(counts.of[name], counts.total)
        yield (
            f'<li class="total {name}"><span class="number">{number:,}</span>'
            f' <span>{_NAMES[name]}</span> <span class="share">{share}</span></li>'
        )
    yield "</ul>"
    yield _bar(counts, counts.total, "overall")
    yield "</section>"


def _time(moment: datetime) -> str:
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    machine = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    return f'<time datetime="{machine}">{text}</time>'


def _share(number: int, whole: int) -> str:
    if not whole or not number:
        return "0 %"
    share = 100 * number / whole
    # Rounding must make neither nothing nor everything of a part.
    if share < 1:
        return "< 1 %"
    return f"{min(99, round(share))} %" if number < whole else "100 %"


def _bar(counts: Counts, largest: int, kind: str) -> str:
    """Return a stacked bar; the numbers beside it say the same to a screen reader."""
    parts, at = [], 0.0
    scale = _BAR_UNITS / largest if largest else 0.0
    for name in RESULTS:
        width = counts.of[name] * scale
        if width:
            title = f"<title>{_NAMES[name]}: {counts.of[name]:,}</title>"
            parts.append(
                f'<rect class="{name}" x="{at:.1f}" y="0" width="{width:.1f}"'
                f' height="10">{title}</rect>'
            )
            at += width
    return (
        f'<svg class="bar {kind}" viewBox="0 0 {_BAR_UNITS} 10"'
        f' preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )


def _section(entries: Sequence[Entry], dimension: str) -> Iterator[str]:
    found = groups(entries, dimension)
    title = _TITLES[dimension]
    yield f'<section aria-labelledby="{dimension}"><h2 id="{dimension}">{title}</h2>'
    if not found:
        yield "<p>No results.</p></section>"
        return
    yield f'<div class="wide" role="region" aria-labelledby="{dimension}" tabindex="0">'
    heads = "".join(
        f'<th scope="col" class="count">{_NAMES[one]}</th>' for one in RESULTS
    )
    yield f'<table><thead><tr><th scope="col">{dimension.capitalize()}</th>'
    yield '<th scope="col"><span class="hidden">Share of results</span></th>'
    yield f'{heads}<th scope="col" class="count">Total</th></tr></thead><tbody>'
    largest = max(one.counts.total for one in found)
    yield from (_group(one, largest) for one in found[:_GROUPS_MAX])
    yield "</tbody></table></div>"
    rest = len(found) - _GROUPS_MAX
    if rest > 0:
        number = sum(one.counts.total for one in found[_GROUPS_MAX:])
        yield f"<p>{rest:,} more with {number:,} results are not shown.</p>"
    yield "</section>"


def _group(group: Group, largest: int) -> str:
    counts = group.counts
    cells = "".join(
        f'<td class="count{f" {name}" if counts.of[name] else " none"}">'
        f"{counts.of[name]:,}</td>"
        for name in RESULTS
    )
    return (
        f'<tr><th scope="row">{_text(group.name)}</th>'
        f'<td class="chart">{_bar(counts, largest, "row")}</td>'
        f'{cells}<td class="count">{counts.total:,}</td></tr>'
    )


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
    message = entry.message
    if len(message) > _MESSAGE_LENGTH_MAX:
        message = message[:_MESSAGE_LENGTH_MAX] + " ..."
    subject = f"{entry.kind}/{entry.name}" if entry.kind else entry.name
    texts = (entry.severity, entry.policy, entry.rule, entry.namespace, subject)
    cells = "".join(f"<td>{_text(one)}</td>" for one in texts)
    return (
        f'<tr><td><span class="mark {entry.result}">{_NAMES[entry.result]}</span></td>'
        f'{cells}<td class="message">{_text(message)}</td></tr>'
    )


def _text(text: str) -> str:
    """Escape a text. Characters that HTML forbids or that reorder text are replaced."""
    if not text.isprintable():
        text = "".join(
            one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text
        )
    return escape(text)
