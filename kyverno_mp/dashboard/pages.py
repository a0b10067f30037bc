"""Collect what the pages of results show: overview, lists, groups, one object's report.

Room: dashboard. Takes: a View, the query. Gives: pages. Next: site.py; render.py fills
their templates.
Source: docs/dashboard.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kyverno_mp.dashboard.entries import DIMENSIONS, SEVERITIES, Group, total
from kyverno_mp.dashboard.facts import View
from kyverno_mp.dashboard.history import REPORTS, REVIEWS, Point, Series, increases
from kyverno_mp.dashboard.query import (
    FILTERS,
    Values,
    dimension_of,
    link,
    page_of,
    results_of,
    source_of,
    subject_of,
    value_of,
)
from kyverno_mp.dashboard.render import TITLES, paging_of, render
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import DASHBOARD_DENIALS_SHOWN, DASHBOARD_ROWS

_TOP: Final = 10
_REFRESH_S: Final = ("5", "30")
"""Seconds after which the overview can be loaded again."""
_OFFERED_MAX: Final = 200
"""Number of values that a filter suggests."""
_SECTIONS: Final = (
    ("/", "Overview"),
    ("/results", "Results"),
    ("/groups", "Groups"),
    ("/policies", "Policies"),
    ("/exceptions", "Exceptions"),
    ("/processes", "Processes"),
)
NO_REPORTS: Final = (
    "There are no stored reports without a cluster. These numbers come from the"
    " metrics: results of reviews since the processes started."
)


class Row(NamedTuple):
    """A group, the target of its name or "", and its counts over time."""

    group: Group
    target: str
    course: Sequence[Point]


def page(
    template: str,
    view: View,
    title: str,
    current: str = "",
    **values: Any,
) -> str:
    """Return a page in the frame. ``current``: the path of its section."""
    return render(
        template,
        current=current or f"/{template}",
        now=view.now,
        sections=_SECTIONS,
        title=title,
        unready=view.facts.unready(),
        **values,
    )


def rows_of(rows: Sequence[Any], number: int) -> tuple[Sequence[Any], int, int]:
    """Return the rows of one page of a list, its number and the number of pages."""
    pages = max(1, -(-len(rows) // DASHBOARD_ROWS))
    number = min(number, pages)
    first = (number - 1) * DASHBOARD_ROWS
    return rows[first : first + DASHBOARD_ROWS], number, pages


def reviews_over_time(view: View, dimension: str = "", value: str = "") -> list[Point]:
    """Return the new results of reviews between the recorded moments."""
    return increases(view.history.course(Series(REVIEWS, dimension, value)))


def overview(view: View, values: Values) -> str:
    """Return the overview page; with ``refresh`` it is loaded again every seconds."""
    refresh = values.get("refresh", "")
    if refresh not in ("", *_REFRESH_S):
        raise RequestInvalid(
            "dashboard.query", f"refresh is not one of {', '.join(_REFRESH_S)}"
        )
    source = REVIEWS if view.watch is None else REPORTS
    tops = []
    for dimension in DIMENSIONS:
        groups = groups_of(view, source, dimension)
        tops.append(
            (dimension, _rows(view, source, dimension, groups[:_TOP]), len(groups))
        )
    return page(
        "overview",
        view,
        "Overview",
        "/",
        activity=view.facts.activity(),
        denials=view.facts.denials()[:DASHBOARD_DENIALS_SHOWN],
        pace=view.facts.pace(),
        policies=sum(policy.ready for policy in view.facts.status().policies),
        refresh=refresh,
        refreshes=_REFRESH_S,
        added=reviews_over_time(view),
        problems=_problems(view),
        source=source,
        stored=_stored(view),
        tops=tops,
    )


def _stored(view: View) -> Mapping[str, Any] | None:
    if view.watch is None:
        return None
    return {
        "counts": view.results.totals(),
        "course": view.history.course(Series(REPORTS)),
        "reports": view.results.reports,
    }


def _problems(view: View) -> Sequence[str]:
    return [NO_REPORTS] if view.watch is None else view.problems


def groups_of(view: View, source: str, dimension: str) -> list[Group]:
    """Return all groups of a dimension, from stored reports or from reviews."""
    if source == REPORTS:
        return view.results.groups(dimension)
    return view.facts.activity().groups(dimension)


def _rows(
    view: View, source: str, dimension: str, groups: Sequence[Group]
) -> list[Row]:
    if source == REVIEWS:
        return [
            Row(
                group,
                link("/policy", name=group.value) if dimension == "policy" else "",
                reviews_over_time(view, dimension, group.value),
            )
            for group in groups
        ]
    return [
        Row(
            group,
            link("/results", **{dimension: value_of(group.value)}),
            view.history.course(Series(source, dimension, group.value)),
        )
        for group in groups
    ]


def groups(view: View, values: Values) -> str:
    """Return all groups of one dimension, with a chart for each."""
    dimension = dimension_of(values)
    source = source_of(values, REVIEWS if view.watch is None else REPORTS)
    chosen, number, pages = rows_of(groups_of(view, source, dimension), page_of(values))
    return page(
        "groups",
        view,
        "Groups",
        choices=_choices(view, dimension, source),
        dimension=dimension,
        paging=paging_of("/groups", number, pages, by=dimension, of=source),
        problems=_problems(view),
        rows=_rows(view, source, dimension, chosen),
        source=source,
    )


def _choices(view: View, dimension: str, source: str) -> list[tuple[str, str, bool]]:
    """Return the target of each choice, its name, and whether it is the current one."""
    choices = [
        (link("/groups", by=by, of=source), TITLES[by], by == dimension)
        for by in DIMENSIONS
    ]
    if view.watch is not None:
        choices += [
            (link("/groups", by=dimension, of=origin), name, origin == source)
            for origin, name in ((REPORTS, "Stored reports"), (REVIEWS, "Reviews"))
        ]
    return choices


def results(view: View, values: Values) -> str:
    """Return one page of the list of results."""
    query = results_of(values)
    listed = view.results.listed(query, page_of(values), DASHBOARD_ROWS)
    chosen = {name: values[name] for name in FILTERS if values.get(name)}
    course = None
    if len(chosen) == 1 and "result" not in chosen:
        (dimension,) = chosen
        series = Series(REPORTS, dimension, getattr(query, dimension))
        course = view.history.course(series)
    return page(
        "results",
        view,
        "Results",
        course=course,
        listed=None if view.watch is None else listed,
        offers=[
            (name, _offered(view.results.groups(name)))
            for name in ("policy", "namespace", "category")
        ],
        paging=paging_of("/results", listed.number, listed.pages, **chosen),
        problems=_problems(view),
        severities=[
            *((severity, severity.capitalize()) for severity in SEVERITIES),
            ("-", "none"),
        ],
        values={name: values.get(name, "") for name in FILTERS},
    )


def _offered(groups: Sequence[Group]) -> list[str]:
    return [
        group.value
        for group in groups[:_OFFERED_MAX]
        # A text field cannot hold other values unchanged.
        if group.value and group.value.isprintable()
    ]


def report(view: View, values: Values) -> str:
    """Return the results of one object."""
    query = subject_of(values)
    listed = view.results.listed(query, page_of(values), DASHBOARD_ROWS)
    suffix = f" in {query.namespace}" if query.namespace else ""
    subject = {
        name: values[name] for name in ("namespace", "kind", "name") if values.get(name)
    }
    return page(
        "report",
        view,
        f"{query.kind} {query.name}{suffix}".strip(),
        "/results",
        counts=total(listed.entries),
        listed=listed,
        paging=paging_of("/report", listed.number, listed.pages, **subject),
        problems=_problems(view),
    )
