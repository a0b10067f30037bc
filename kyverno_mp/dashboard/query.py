"""Read the query of a request; unknown fields are errors.

Room: dashboard. Takes: the text after the question mark. Gives: values, links. Next:
pages.py, site.py.
"""

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

from kyverno_mp.dashboard.entries import DIMENSIONS, RESULTS
from kyverno_mp.dashboard.history import REPORTS, REVIEWS
from kyverno_mp.dashboard.results import Query
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import DASHBOARD_TEXT_CHARACTERS_MAX

NONE: Final = "-"
"""The filter value that selects results without a value."""
FILTERS: Final = ("result", "policy", "namespace", "severity", "category")
_FIELDS_MAX: Final = 12
_PAGE_MAX: Final = 1_000_000
Values = Mapping[str, str]


def read_query(query: str, names: Collection[str]) -> Values:
    """Return the values by field name. Raises: RequestInvalid."""
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_FIELDS_MAX,
        )
    except (ValueError, UnicodeError) as error:
        raise _invalid("the query cannot be decoded") from error
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in names or name in values:
            raise _invalid("the query has an unknown or repeated field")
        if len(value) > DASHBOARD_TEXT_CHARACTERS_MAX:
            raise _invalid(f"{name} is too long")
        values[name] = value
    return values


def page_of(values: Values) -> int:
    """Return the page number; 1 by default. Raises: RequestInvalid."""
    page = values.get("page", "1")
    if not (page.isascii() and page.isdigit() and len(page) < len(str(_PAGE_MAX))):
        raise _invalid("page is not a number of at least 1")
    return max(1, int(page))


def dimension_of(values: Values) -> str:
    """Return the dimension to group by. Raises: RequestInvalid."""
    by = values.get("by", DIMENSIONS[0])
    if by not in DIMENSIONS:
        raise _invalid(f"by is not one of {', '.join(DIMENSIONS)}")
    return by


def source_of(values: Values, default: str) -> str:
    """Return what to group, stored reports or reviews. Raises: RequestInvalid."""
    source = values.get("of") or default
    if source not in (REPORTS, REVIEWS):
        raise _invalid(f"of is not {REPORTS} or {REVIEWS}")
    return source


def results_of(values: Values) -> Query:
    """Return the filters. Raises: RequestInvalid."""
    result = values.get("result", "")
    if result and result not in RESULTS:
        raise _invalid(f"result is not one of {', '.join(RESULTS)}")
    return Query(
        result=result,
        policy=_some(values, "policy"),
        namespace=_some(values, "namespace"),
        severity=_some(values, "severity"),
        category=_some(values, "category"),
    )


def subject_of(values: Values) -> Query:
    """Return the query of one object's results. Raises: RequestInvalid."""
    if not values.get("name"):
        raise _invalid("name is missing")
    return Query(
        namespace=values.get("namespace", ""),
        kind=values.get("kind", ""),
        name=values["name"],
    )


def link(path: str, **values: str | int) -> str:
    """Return a path with a query, without empty values. It is not HTML-escaped."""
    nonempty = {name: value for name, value in values.items() if value != ""}
    return f"{path}?{urlencode(nonempty, errors='replace')}" if nonempty else path


def value_of(value: str) -> str:
    """Return the filter value that selects exactly this text."""
    return value or NONE


def _some(values: Values, name: str) -> str | None:
    value = values.get(name, "")
    if not value:
        return None
    return "" if value == NONE else value


def _invalid(message: str) -> RequestInvalid:
    return RequestInvalid("dashboard.query", message)
