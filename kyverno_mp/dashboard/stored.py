"""Read the results of a stored policy report.

Room: dashboard. Takes: the decoded JSON of a report. Gives: Entries.
Next: results.py, and the report command of cli.
Source: wgpolicyk8s.io/v1alpha2 and openreports.io/v1alpha1 (config/crds); Kyverno
pkg/utils/report. ``apply --policy-report`` writes openreports' fields, and the kind
PolicyReport for namespaced policies.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kyverno_mp.dashboard.entries import RESULTS, Entry
from kyverno_mp.errors import InputError, RequestInvalid, Where
from kyverno_mp.limits import (
    DASHBOARD_MESSAGE_CHARACTERS_MAX,
    DASHBOARD_TEXT_CHARACTERS_MAX,
)
from kyverno_mp.values.jsonvalue import Json

_TIME_S_MAX: Final = 253_402_300_799
"""The last second of the year 9999; later times have no common date format."""


def entries_of(report: dict[str, Json], file: str) -> Iterator[Entry]:
    """Yield an entry for each result and object of a report.

    Raises: RequestInvalid for an invalid result, which must not look like a pass.
    """
    metadata = _mapping(report.get("metadata"))
    results = report.get("results")
    if results is not None and type(results) is not list:
        raise _wrong(file, metadata, "results is not a list")
    for number, raw in enumerate(results or ()):
        if type(raw) is not dict or raw.get("result") not in RESULTS:
            result = raw.get("result") if type(raw) is dict else raw
            message = f"results[{number}] has an unknown result: {str(result)[:100]!r}"
            raise _wrong(file, metadata, message)
        objects = raw.get("resources")
        targets = (
            [reference for reference in objects or () if type(reference) is dict]
            if (type(objects) is list)
            else []
        )
        for target in targets or [_mapping(report.get("scope"))]:
            yield _entry(raw, target, metadata)


def _entry(
    raw: dict[str, Json], target: dict[str, Json], metadata: dict[str, Json]
) -> Entry:
    # Names repeat in most results, so one copy of each string is kept.
    intern = sys.intern
    # SAFETY: who may write reports in a namespace must not add rows to another one.
    namespace = _text(metadata.get("namespace")) or _text(target.get("namespace"))
    stamp = _mapping(raw.get("timestamp")).get("seconds")
    return Entry(
        policy=intern(_text(raw.get("policy"))),
        rule=intern(_text(raw.get("rule"))),
        result=intern(raw["result"]),
        severity=intern(_text(raw.get("severity"))),
        category=intern(_text(raw.get("category"))),
        source=intern(_text(raw.get("source"))),
        message=intern(_text(raw.get("message")) or _text(raw.get("description"))),
        namespace=intern(namespace),
        kind=intern(_text(target.get("kind"))),
        name=intern(_text(target.get("name"))),
        timestamp_s=stamp if type(stamp) is int and 0 <= stamp <= _TIME_S_MAX else 0,
    )


def broken_entry(report: dict[str, Json], message: str) -> Entry:
    """Return an error that stands for the results of an invalid report."""
    raw = {"result": "error", "message": message}
    return _entry(raw, _mapping(report.get("scope")), _mapping(report.get("metadata")))


def shortened(entry: Entry) -> Entry:
    """Return an entry with truncated strings, as other programs write reports, too."""
    return replace(
        entry,
        policy=_cut(entry.policy),
        rule=_cut(entry.rule),
        severity=_cut(entry.severity),
        category=_cut(entry.category),
        source=_cut(entry.source),
        message=_cut(entry.message, DASHBOARD_MESSAGE_CHARACTERS_MAX),
        namespace=_cut(entry.namespace),
        kind=_cut(entry.kind),
        name=_cut(entry.name),
    )


def _cut(string: str, most: int = DASHBOARD_TEXT_CHARACTERS_MAX) -> str:
    return string if len(string) <= most else sys.intern(f"{string[: most - 1]}…")


def _wrong(file: str, metadata: dict[str, Json], problem: str) -> InputError:
    name = _text(metadata.get("name"))[:253] or "without a name"
    return RequestInvalid("cli.report", f"report {name}: {problem}", Where(file=file))


def _text(value: Json) -> str:
    return value if type(value) is str else ""


def _mapping(value: Json) -> dict[str, Json]:
    return value if type(value) is dict else {}
