"""Answer programs: what the pages show, as JSON, and the description of it.

Room: dashboard. Takes: a View, the query. Gives: ENDPOINTS, answer, openapi. Next:
site.py calls them.
Source: docs/dashboard.md (the API); OpenAPI 3.1.

An answer is a record, and the description is derived from its type, so the two agree.
Version 1 may get further fields; a field that is removed or means something else makes
version 2.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from kyverno_mp import __version__
from kyverno_mp.dashboard.activity import NOTHING
from kyverno_mp.dashboard.entries import DIMENSIONS, RESULTS, SEVERITIES
from kyverno_mp.dashboard.facts import View
from kyverno_mp.dashboard.history import REPORTS, REVIEWS
from kyverno_mp.dashboard.pages import groups_of, rows_of
from kyverno_mp.dashboard.pod_pages import (
    NAMED_MAX,
    PROBLEMS_MAX,
    key_of,
    listed_policies,
)
from kyverno_mp.dashboard.query import (
    FILTERS,
    Values,
    dimension_of,
    page_of,
    results_of,
    source_of,
)
from kyverno_mp.limits import DASHBOARD_ROWS

ROOT: Final = "/api/v1"
DESCRIPTION: Final = "/api/openapi.json"
"""The path of the description."""


class Record(msgspec.Struct, rename="camel"):
    """A part of an answer; its names are camelCase in JSON."""


RecordT = TypeVar("RecordT", bound=Record)


class Summary(Record):
    """The pod and its policies; stored is null without a cluster."""

    version: str
    ready: bool
    unready: Sequence[str]
    generation: int
    policies: int
    policies_ready: int
    reviews: int
    reviews_per_second: float | None
    review_mean_microseconds: float | None
    results_of_reviews: Mapping[str, int]
    stored: Mapping[str, int] | None
    stored_reports: int
    problems: Sequence[str]


class Denials(Record):
    """The last denials, the newest first."""

    denials: Sequence["DenialItem"]


class DenialItem(Record):
    """A denied request; others is the number of other rules that denied it."""

    time_s: float = msgspec.field(name="time")
    operation: str
    kind: str
    namespace: str
    name: str
    user: str
    policy: str
    rule: str
    message: str
    others: int


class ResultItem(Record):
    """One result for one object; time is 0 if the report has none."""

    policy: str
    rule: str
    result: str
    severity: str
    category: str
    source: str
    message: str
    namespace: str
    kind: str
    name: str
    timestamp_s: int = msgspec.field(name="time")


class Results(Record):
    """One page of results in stored reports, most urgent first."""

    results: Sequence[ResultItem]
    count: int
    page: int
    pages: int
    problems: Sequence[str]


class GroupItem(Record):
    """The results with one value, "" for those without one."""

    value: str
    results: Mapping[str, int]


class Groups(Record):
    """One page of groups, those with the most problems first."""

    by: str
    of: str
    groups: Sequence[GroupItem]
    count: int
    page: int
    pages: int
    problems: Sequence[str]


class PolicyItem(Record):
    """A policy; evaluationSeconds is the time that reviews spent in its rules."""

    kind: str
    namespace: str
    name: str
    ready: bool
    code: str
    message: str
    mode: str
    severity: str
    category: str
    rules: int
    evaluations: int
    evaluation_seconds: float


class Policies(Record):
    """One page of policies, those that are not ready first."""

    policies: Sequence[PolicyItem]
    count: int
    page: int
    pages: int
    problems: Sequence[str]


class ExceptionItem(Record):
    """A PolicyException in force; rules has the first rules that it names.

    expires is the time of its end, "" if it stays.
    """

    name: str
    rules: Sequence[str]
    rules_count: int
    expires: str


class Exceptions(Record):
    """One page of exceptions; count includes exceptions that are not listed."""

    exceptions: Sequence[ExceptionItem]
    count: int
    page: int
    pages: int


class ProcessItem(Record):
    """A process of the pod; pid is 0 if it does not run."""

    name: str
    pid: int
    restarts: int
    crash_loop: bool
    pss_bytes: float = msgspec.field(name="memoryBytes")
    cpu_s: float = msgspec.field(name="cpuSeconds")


class Processes(Record):
    """The processes of the pod, the supervisor first."""

    processes: Sequence[ProcessItem]


class Problem(Record):
    """Why a request has no answer."""

    error: str


def _summary(view: View, _values: Values) -> Summary:
    facts = view.facts
    status, activity, pace = facts.status(), facts.activity(), facts.pace()
    unready = facts.unready()
    has_reports = view.watch is not None
    return Summary(
        version=__version__,
        ready=not unready,
        unready=unready,
        generation=facts.generation(),
        policies=len(status.policies),
        policies_ready=sum(policy.ready for policy in status.policies),
        reviews=activity.reviews,
        reviews_per_second=pace.per_s if pace else None,
        review_mean_microseconds=pace.mean_us if pace else None,
        results_of_reviews=activity.totals.of,
        stored=view.results.totals().of if has_reports else None,
        stored_reports=view.results.reports,
        problems=[*view.problems, *status.problems[:PROBLEMS_MAX]],
    )


def _items(records: Iterable[object], item: type[RecordT]) -> list[RecordT]:
    """Return records with the equally named attributes of what pages show."""
    make: Callable[..., RecordT] = item
    names = item.__struct_fields__
    return [make(*(getattr(each, name) for name in names)) for each in records]


def _denials(view: View, _values: Values) -> Denials:
    return Denials(_items(view.facts.denials(), DenialItem))


def _results(view: View, values: Values) -> Results:
    listed = view.results.listed(results_of(values), page_of(values), DASHBOARD_ROWS)
    return Results(
        results=_items(listed.entries, ResultItem),
        count=listed.count,
        page=listed.number,
        pages=listed.pages,
        problems=view.problems,
    )


def _groups(view: View, values: Values) -> Groups:
    dimension = dimension_of(values)
    source = source_of(values, REVIEWS if view.watch is None else REPORTS)
    groups = groups_of(view, source, dimension)
    chosen, number, pages = rows_of(groups, page_of(values))
    return Groups(
        by=dimension,
        of=source,
        groups=[GroupItem(group.value, group.counts.of) for group in chosen],
        count=len(groups),
        page=number,
        pages=pages,
        problems=view.problems,
    )


def _policies(view: View, values: Values) -> Policies:
    listed = listed_policies(view)
    chosen, number, pages = rows_of(listed, page_of(values))
    activity, about = view.facts.activity(), view.facts.published().about
    items = []
    for policy in chosen:
        key = key_of(policy)
        cost, description = activity.cost_of(key), about.get(key, NOTHING)
        items.append(
            PolicyItem(
                policy.kind,
                policy.namespace,
                policy.name,
                policy.ready,
                policy.code,
                policy.message,
                policy.mode,
                description.severity,
                description.category,
                policy.rule_count,
                cost.count,
                cost.seconds,
            )
        )
    problems = view.facts.status().problems[:PROBLEMS_MAX]
    return Policies(items, len(listed), number, pages, problems)


def _exceptions(view: View, values: Values) -> Exceptions:
    published = view.facts.published()
    chosen, number, pages = rows_of(published.exceptions, page_of(values))
    items = [
        ExceptionItem(each.key, each.rules[:NAMED_MAX], len(each.rules), each.expires)
        for each in chosen
    ]
    return Exceptions(items, published.exceptions_count, number, pages)


def _processes(view: View, _values: Values) -> Processes:
    return Processes(_items(view.facts.processes(), ProcessItem))


class Endpoint(NamedTuple):
    """An answer. ``fields``: the parameters of its query."""

    answer: Callable[[View, Values], Record]
    type: type[Record]
    fields: Sequence[str] = ()


ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    f"{ROOT}/summary": Endpoint(_summary, Summary),
    f"{ROOT}/denials": Endpoint(_denials, Denials),
    f"{ROOT}/results": Endpoint(_results, Results, (*FILTERS, "page")),
    f"{ROOT}/groups": Endpoint(_groups, Groups, ("by", "of", "page")),
    f"{ROOT}/policies": Endpoint(_policies, Policies, ("page",)),
    f"{ROOT}/exceptions": Endpoint(_exceptions, Exceptions, ("page",)),
    f"{ROOT}/processes": Endpoint(_processes, Processes),
}
_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "by": {"enum": DIMENSIONS, "default": DIMENSIONS[0]},
    "of": {"enum": (REPORTS, REVIEWS)},
    "page": {"type": "integer", "minimum": 1, "default": 1},
    "result": {"enum": RESULTS},
    "severity": {"enum": (*SEVERITIES, "-")},
}
"""Schemas; every other parameter is a text, and ``-`` selects what has no value."""


def answer(path: str, view: View, values: Values) -> bytes:
    """Return the JSON of an endpoint. Raises: RequestInvalid."""
    return encoded(ENDPOINTS[path].answer(view, values))


def encoded(record: Record) -> bytes:
    """Return a record as JSON."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        # A name may contain a lone surrogate, which JSON allows as an escape.
        return json.dumps(msgspec.to_builtins(record)).encode()


def openapi() -> dict[str, Any]:
    """Return the description of the API."""
    types = [*(endpoint.type for endpoint in ENDPOINTS.values()), Problem]
    _, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dashboard of kyverno-mp",
            "version": "1",
            "description": "What the dashboard shows, read-only (docs/dashboard.md).",
        },
        "security": [{}, {"bearer": []}, {"basic": []}],
        "paths": {path: {"get": _operation(path)} for path in ENDPOINTS},
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(path: str) -> dict[str, Any]:
    endpoint = ENDPOINTS[path]
    return {
        "operationId": path.rpartition("/")[2],
        "summary": (endpoint.type.__doc__ or "").partition("\n")[0],
        "parameters": [
            {
                "name": name,
                "in": "query",
                "schema": _PARAMETERS.get(name, {"type": "string"}),
            }
            for name in endpoint.fields
        ],
        "responses": {
            "200": _content("The answer.", endpoint.type),
            "default": _content("Why there is no answer.", Problem),
        },
    }


def _content(description: str, record: type[Record]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{record.__name__}"}
    return {
        "description": description,
        "content": {"application/json": {"schema": schema}},
    }
