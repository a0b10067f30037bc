"""Write the common parts of result pages: strings, times, bars, rows of counts.

Room: dashboard. Takes: strings and Counts. Gives: HTML fragments, and the
Content-Security-Policy of a page. Next: pages.py, and the report command of cli. May
touch: style.css, read once.
Source: WCAG 2.2 (1.1.1, 1.3.1, 1.4.1); CSP Level 3.

SAFETY: names and messages of objects and policies are untrusted, so every string is
escaped.
"""

import base64
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Final

from kyverno_mp.dashboard.entries import RESULTS, Counts, Entry, Group

STYLE: Final = Path(__file__).with_name("style.css").read_text("utf-8")
"""The style sheet of all pages: light and dark, from phones to wide screens."""
_MESSAGE_LENGTH_MAX: Final = 2000
_BAR_UNITS: Final = 1000
NAMES: Final = {
    "fail": "Fail",
    "error": "Error",
    "warn": "Warn",
    "pass": "Pass",
    "skip": "Skip",
}
TITLES: Final = {
    "policy": "Policies",
    "namespace": "Namespaces",
    "severity": "Severities",
    "category": "Categories",
}


def security_policy(form_action: str = "'none'") -> str:
    """Return the Content-Security-Policy: no scripts, no requests, only this style.

    ``form_action``: the allowed targets of forms.
    """
    digest = base64.b64encode(sha256(STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none';"
        f" form-action {form_action}"
    )


def time_of(moment: datetime) -> str:
    """Return a time to the minute, readable for people and programs."""
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    machine = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    return f'<time datetime="{machine}">{text}</time>'


def share_of(number: int, whole: int) -> str:
    """Return a share in percent."""
    if not whole or not number:
        return "0 %"
    share = 100 * number / whole
    # Rounding must not turn a share into none or all.
    if share < 1:
        return "< 1 %"
    return f"{min(99, round(share))} %" if number < whole else "100 %"


def head_of(title: str, form_action: str = "'none'") -> str:
    """Return the head of a page; ``form_action``: see ``security_policy``."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy"'
        f' content="{security_policy(form_action)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text_of(title)}</title>\n"
        # The digest applies to exactly this text.
        f"<style>{STYLE}</style></head><body>"
    )


def totals(counts: Counts) -> str:
    """Return the number of each result in large type, and a bar of all results."""
    lines = ['<ul class="totals">']
    for name in RESULTS:
        number, share = counts.of[name], share_of(counts.of[name], counts.total)
        lines.append(
            f'<li class="total {name}"><span class="number">{number:,}</span>'
            f' <span>{NAMES[name]}</span> <span class="share">{share}</span></li>'
        )
    lines += ["</ul>", bar(counts, counts.total, "overall")]
    return "\n".join(lines)


def count_heads(more: str = "") -> str:
    """Return the column headings of ``group_row``, after the one for the name."""
    heads = "".join(
        f'<th scope="col" class="count">{NAMES[one]}</th>' for one in RESULTS
    )
    return (
        f'<th scope="col"><span class="hidden">Share of results</span></th>{more}'
        f'{heads}<th scope="col" class="count">Total</th>'
    )


def count_of(number: int, word: str) -> str:
    """Return ``1 report`` or ``2,000 reports``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def mark_of(result: str) -> str:
    """Return a result with its colour."""
    return f'<span class="mark {result}">{NAMES[result]}</span>'


def message_of(entry: Entry) -> str:
    """Return the message of a result, truncated if it is very long."""
    message = entry.message
    if len(message) > _MESSAGE_LENGTH_MAX:
        message = message[:_MESSAGE_LENGTH_MAX] + " ..."
    return text_of(message)


def bar(counts: Counts, largest: int, kind: str) -> str:
    """Return a stacked bar; screen readers read the numbers next to it instead."""
    parts, at = [], 0.0
    scale = _BAR_UNITS / largest if largest else 0.0
    for name in RESULTS:
        width = counts.of[name] * scale
        if width:
            title = f"<title>{NAMES[name]}: {counts.of[name]:,}</title>"
            parts.append(
                f'<rect class="{name}" x="{at:.1f}" y="0" width="{width:.1f}"'
                f' height="10">{title}</rect>'
            )
            at += width
    return (
        f'<svg class="bar {kind}" viewBox="0 0 {_BAR_UNITS} 10"'
        f' preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )


def group_row(group: Group, largest: int, link: str = "", more: str = "") -> str:
    """Return the row of one group; ``more``: additional cells after the bar."""
    counts, name = group.counts, text_of(group.name)
    if link:
        name = f'<a href="{escape(link)}">{name}</a>'
    cells = "".join(
        f'<td class="count{f" {name}" if counts.of[name] else " none"}">'
        f"{counts.of[name]:,}</td>"
        for name in RESULTS
    )
    return (
        f'<tr><th scope="row">{name}</th>'
        f'<td class="chart">{bar(counts, largest, "row")}</td>{more}'
        f'{cells}<td class="count">{counts.total:,}</td></tr>'
    )


def text_of(text: str) -> str:
    """Escape a string; replace characters that are invalid in HTML or reorder text."""
    if not text.isprintable():
        text = "".join(
            one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text
        )
    return escape(text)
