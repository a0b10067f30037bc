"""Write the pages of results: overview, lists, groups, the report of an object.

Room: dashboard. Takes: a View, the query. Gives: pages. Next: site.py; frame.py writes
their frame. May touch: nothing outside its arguments.
Source: docs/dashboard.md.

SAFETY: every untrusted string is passed through ``text_of`` or ``escape``.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from kyverno_mp.dashboard.charts import columns, spark
from kyverno_mp.dashboard.entries import (
    DIMENSIONS,
    RESULTS,
    SEVERITIES,
    Entry,
    Group,
    total,
)
from kyverno_mp.dashboard.facts import View
from kyverno_mp.dashboard.frame import (
    anchor,
    heads_of,
    notices,
    page,
    pager,
    section,
    slice_of,
    table,
)
from kyverno_mp.dashboard.history import REPORTS, REVIEWS, Series, increases
from kyverno_mp.dashboard.markup import (
    NAMES,
    TITLES,
    count_heads,
    count_of,
    group_row,
    mark_of,
    message_of,
    text_of,
    totals,
)
from kyverno_mp.dashboard.query import (
    FILTERS,
    Values,
    dimension_of,
    link,
    page_of,
    results_of,
    subject_of,
    value_of,
)
from kyverno_mp.limits import DASHBOARD_ROWS

_TOP: Final = 10
_OFFERED_MAX: Final = 200
"""Number of values that a filter suggests."""
NO_REPORTS: Final = (
    "There are no stored reports without a cluster. These numbers come from the"
    " metrics: results of reviews since the processes started."
)


def overview(view: View, _values: Values) -> str:
    """Return the overview page."""
    return page("/", "Overview", _overview(view), view)


def _overview(view: View) -> Iterator[str]:
    if view.watch is None:
        yield from notices([NO_REPORTS])
    else:
        yield from notices(view.problems)
        yield from section("reports", "Stored reports", _stored(view))
    yield from section("reviews", "Reviews since the start", _reviews(view))
    source = REVIEWS if view.watch is None else REPORTS
    for dimension in DIMENSIONS:
        yield from section(dimension, TITLES[dimension], _top(view, source, dimension))


def _stored(view: View) -> Iterator[str]:
    counts = view.results.totals()
    reports = count_of(view.results.reports, "report")
    yield f"<p>{count_of(counts.total, 'result')} in {reports}.</p>"
    yield totals(counts)
    yield columns(view.history.course(Series(REPORTS)), "Results in reports")


def _reviews(view: View) -> Iterator[str]:
    activity = view.facts.activity()
    yield (
        f"<p>{count_of(activity.reviews, 'review')} answered, with"
        f" {count_of(activity.totals.total, 'result')} of rules.</p>"
    )
    yield totals(activity.totals)
    added = increases(view.history.course(Series(REVIEWS)))
    yield columns(added, "New results of reviews")


def _top(view: View, source: str, dimension: str) -> Iterator[str]:
    found = _groups(view, source, dimension)
    yield from _group_table(view, source, dimension, found[:_TOP], dimension)
    if len(found) > _TOP:
        target = link("/groups", by=dimension, of=source)
        text = f"All {len(found):,} {TITLES[dimension].lower()}"
        yield f"<p>{anchor(target, text)}</p>"


def _groups(view: View, source: str, dimension: str) -> list[Group]:
    if source == REPORTS:
        return view.results.groups(dimension)
    return view.facts.activity().groups(dimension)


def _group_table(
    view: View, source: str, dimension: str, found: list[Group], name: str
) -> Iterator[str]:
    if not found:
        yield "<p>No results.</p>"
        return
    heads = heads_of([dimension.capitalize()])
    heads += count_heads(heads_of(['<span class="hidden">Problems over time</span>']))
    largest = max(one.counts.total for one in found)
    yield from table(
        name,
        heads,
        (_group(view, source, dimension, one, largest) for one in found),
    )


def _group(view: View, source: str, dimension: str, one: Group, largest: int) -> str:
    course = view.history.course(Series(source, dimension, one.value))
    if source == REVIEWS:
        course = increases(course)
        target = ""
        if dimension == "policy":
            target = link("/policy", name=one.value)
    else:
        target = link("/results", **{dimension: value_of(one.value)})
    return group_row(one, largest, target, f'<td class="trend">{spark(course)}</td>')


def groups(view: View, values: Values) -> str:
    """Return all groups of one dimension, with a chart for each."""
    number, by = page_of(values), dimension_of(values)
    source = values.get("of") or (REVIEWS if view.watch is None else REPORTS)
    found = _groups(view, source, by)
    number, pages, first = slice_of(number, len(found), DASHBOARD_ROWS)

    def content() -> Iterator[str]:
        yield from notices([NO_REPORTS] if view.watch is None else view.problems)
        yield from _choices(view, by, source)
        of = "reviews since the start" if source == REVIEWS else "stored reports"
        yield f'<h2 id="list">{TITLES[by]}, from {of}</h2>'
        chosen = found[first : first + DASHBOARD_ROWS]
        yield from _group_table(view, source, by, chosen, "list")
        yield from pager("/groups", number, pages, {"by": by, "of": source})

    return page("/groups", "Groups", content(), view)


def _choices(view: View, by: str, source: str) -> Iterator[str]:
    items = [
        (link("/groups", by=one, of=source), TITLES[one], one == by)
        for one in DIMENSIONS
    ]
    if view.watch is not None:
        names = ((REPORTS, "Stored reports"), (REVIEWS, "Reviews"))
        items += [(link("/groups", by=by, of=o), n, o == source) for o, n in names]
    links = "".join(
        f'<li><a href="{escape(target)}"{" aria-current=true" if now else ""}>'
        f"{name}</a></li>"
        for target, name, now in items
    )
    yield f'<nav class="choices" aria-label="Group by"><ul>{links}</ul></nav>'


def results(view: View, values: Values) -> str:
    """Return one page of the list of results."""
    query = results_of(values)
    listed = view.results.listed(query, page_of(values), DASHBOARD_ROWS)
    chosen = {name: values[name] for name in FILTERS if values.get(name)}

    def content() -> Iterator[str]:
        if view.watch is None:
            yield from notices([NO_REPORTS])
            yield "<p>The pages of groups and policies show the results of reviews.</p>"
            return
        yield from notices(view.problems)
        yield from _form(view, values)
        if len(chosen) == 1 and "result" not in chosen:
            ((dimension, _),) = chosen.items()
            value = getattr(query, dimension)
            course = view.history.course(Series(REPORTS, dimension, value))
            yield columns(course, "Results in reports")
        yield _listed_heading(listed.count)
        yield from _result_table(listed.entries)
        yield from pager("/results", listed.number, listed.pages, chosen)

    return page("/results", "Results", content(), view)


def _form(view: View, values: Values) -> Iterator[str]:
    yield '<form class="filters" method="get" action="/results" role="search">'
    yield _select("result", RESULTS, values, NAMES)
    yield _select("severity", (*SEVERITIES, "-"), values, {"-": "none"})
    for name in ("policy", "namespace", "category"):
        value = text_of(values.get(name, ""))
        options = "".join(
            f'<option value="{escape(one.value)}"></option>'
            for one in view.results.groups(name)[:_OFFERED_MAX]
            # A text field cannot hold other values unchanged.
            if one.value and one.value.isprintable()
        )
        yield (
            f'<p><label for="{name}">{name.capitalize()}</label>'
            f'<input id="{name}" name="{name}" value="{value}" list="{name}-list"'
            f' autocomplete="off"><datalist id="{name}-list">{options}</datalist></p>'
        )
    yield '<p><button type="submit">Show</button> <a href="/results">Clear</a></p>'
    yield "</form>"


def _select(
    name: str, known: tuple[str, ...], values: Values, shown: dict[str, str]
) -> str:
    now = values.get(name, "")
    options = "".join(
        f'<option value="{one}"{" selected" if one == now else ""}>'
        f"{shown.get(one, one.capitalize())}</option>"
        for one in known
    )
    return (
        f'<p><label for="{name}">{name.capitalize()}</label><select id="{name}"'
        f' name="{name}"><option value="">Any</option>{options}</select></p>'
    )


def _listed_heading(count: int) -> str:
    number = count_of(count, "result")
    return f'<h2 id="list">{number}, the most urgent first</h2>'


def _result_table(entries: Sequence[Entry]) -> Iterator[str]:
    if not entries:
        yield "<p>No results.</p>"
        return
    names = ("Result", "Severity", "Policy", "Rule", "Namespace", "Object", "Message")
    yield from table("list", heads_of(names), map(_result, entries))


def _result(one: Entry) -> str:
    subject = f"{one.kind}/{one.name}" if one.kind else one.name
    target = link("/report", namespace=one.namespace, kind=one.kind, name=one.name)
    cells = (
        text_of(one.severity),
        anchor(link("/policy", name=one.policy), one.policy) if one.policy else "",
        text_of(one.rule),
        text_of(one.namespace),
        anchor(target, subject) if one.name else text_of(subject),
    )
    shown = "".join(f"<td>{cell}</td>" for cell in cells)
    return (
        f"<tr><td>{mark_of(one.result)}</td>{shown}"
        f'<td class="message">{message_of(one)}</td></tr>'
    )


def report(view: View, values: Values) -> str:
    """Return the results of one object."""
    query = subject_of(values)
    listed = view.results.listed(query, page_of(values), DASHBOARD_ROWS)
    where = f" in {query.namespace}" if query.namespace else ""

    def content() -> Iterator[str]:
        yield from notices([NO_REPORTS] if view.watch is None else view.problems)
        if not listed.count:
            yield "<p>No stored report has results of this object.</p>"
            return
        yield totals(total(listed.entries))
        yield _listed_heading(listed.count)
        yield from _result_table(listed.entries)
        asked = {
            one: values[one] for one in ("namespace", "kind", "name") if values.get(one)
        }
        yield from pager("/report", listed.number, listed.pages, asked)

    title = f"{query.kind} {query.name}{where}".strip()
    return page("/results", title, content(), view)
