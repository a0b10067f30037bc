"""Write the frame around the content of all dashboard pages.

Room: dashboard. Takes: a title, lines of content. Gives: pages, sections, tables, links
to other pages of a list. Next: pages.py, pod_pages.py. May touch: nothing outside its
arguments. Source: WCAG 2.2 (1.3.1, 2.1.1, 2.4.1, 2.4.8).
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.dashboard.facts import View
from kyverno_mp.dashboard.markup import head_of, text_of, time_of
from kyverno_mp.dashboard.query import link

SECTIONS: Final = (
    ("/", "Overview"),
    ("/results", "Results"),
    ("/groups", "Groups"),
    ("/policies", "Policies"),
    ("/exceptions", "Exceptions"),
    ("/processes", "Processes"),
)


def page(path: str, title: str, content: Iterable[str], view: View) -> str:
    """Return a complete page. ``path``: its section."""
    items = "".join(
        f'<li><a href="{one}"{_current(one, path)}>{name}</a></li>'
        for one, name in SECTIONS
    )
    parts = [
        head_of(f"{title} - kyverno-mp", "'self'"),
        '<a class="skip-link" href="#content">Skip to the content</a>',
        (
            '<header class="site"><a class="brand" href="/">kyverno-mp</a>'
            f'{_state(view)}<nav aria-label="Pages"><ul>{items}</ul></nav></header>'
        ),
        f'<main id="content" tabindex="-1"><h1>{text_of(title)}</h1>',
        *content,
        (
            f"</main><footer><p>kyverno-mp {escape(__version__)}, page written"
            f" {time_of(view.now)}. Load it again for newer numbers.</p></footer>"
        ),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _current(one: str, path: str) -> str:
    return ' aria-current="page"' if one == path else ""


def _state(view: View) -> str:
    reasons = view.facts.unready()
    if not reasons:
        return '<span class="state ready">Ready</span>'
    return (
        f'<span class="state unready">Not ready: {text_of("; ".join(reasons))}</span>'
    )


def notices(lines: Sequence[str]) -> Iterator[str]:
    """Yield the warnings that a reader must see before the numbers."""
    if lines:
        items = "".join(f"<li>{text_of(one)}</li>" for one in lines)
        yield f'<ul class="notices">{items}</ul>'


def section(name: str, title: str, content: Iterable[str]) -> Iterator[str]:
    """Yield a section; ``name`` is its id. ``title`` must be a trusted string."""
    yield f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>'
    yield from content
    yield "</section>"


def table(name: str, heads: str, rows: Iterable[str]) -> Iterator[str]:
    """Yield a table that scrolls on its own; ``name``: the id of its heading.

    ``heads``: its header cells.
    """
    yield f'<div class="wide" role="region" aria-labelledby="{name}" tabindex="0">'
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    yield from rows
    yield "</tbody></table></div>"


def heads_of(names: Iterable[str], numbers: Iterable[str] = ()) -> str:
    """Return header cells; those in ``numbers`` are aligned to the right."""
    texts = "".join(f'<th scope="col">{one}</th>' for one in names)
    return texts + "".join(
        f'<th scope="col" class="count">{one}</th>' for one in numbers
    )


def anchor(target: str, text: str) -> str:
    """Return a link; target and text are escaped."""
    return f'<a href="{escape(target)}">{text_of(text)}</a>'


def pager(path: str, number: int, pages: int, values: dict[str, str]) -> Iterator[str]:
    """Yield links to the previous and next pages of a list."""
    if pages <= 1:
        return
    links = []
    for name, at in (
        ("First", 1),
        ("Previous", number - 1),
        ("Next", number + 1),
        ("Last", pages),
    ):
        if 1 <= at <= pages and at != number:
            target = link(path, **values, page=at)
            links.append(f"<li>{anchor(target, name)}</li>")
        else:
            links.append(f'<li class="soft" aria-hidden="true">{name}</li>')
    yield (
        f'<nav class="pager" aria-label="Pages of the list"><ul>{"".join(links)}</ul>'
        f"<p>Page {number:,} of {pages:,}</p></nav>"
    )


def slice_of(number: int, count: int, per_page: int) -> tuple[int, int, int]:
    """Return a page's number, the number of pages and the page's first position."""
    pages = max(1, -(-count // per_page))
    number = min(number, pages)
    return number, pages, (number - 1) * per_page
