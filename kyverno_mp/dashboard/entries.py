"""Represent the results of policy reports, filter and count them.

Room: dashboard. Takes: entries from stored.py. Gives: Entry, Filters, Counts, groups.
Next: results.py; the report command of cli shows them as text, data or a page.
Source: wgpolicyk8s.io/v1alpha2 and openreports.io/v1alpha1 (config/crds).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kyverno_mp.values.wildcard import matches

RESULTS: Final = ("fail", "error", "warn", "pass", "skip")
"""The possible results, most urgent first."""
PROBLEMS: Final = RESULTS[:3]
SEVERITIES: Final = ("critical", "high", "medium", "low", "info")
DIMENSIONS: Final = ("policy", "namespace", "severity", "category")
_NOTHING: Final = {
    "policy": "(no policy)",
    "namespace": "(cluster)",
    "severity": "(no severity)",
    "category": "(no category)",
}
_RESULT_ORDER: Final = {name: number for number, name in enumerate(RESULTS)}
_SEVERITY_ORDER: Final = {name: number for number, name in enumerate(SEVERITIES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One result for one object; missing strings are "".

    ``policy``: name, or namespace/name of a namespaced policy. ``timestamp_s``: 0 if
    missing.
    """

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
    timestamp_s: int

    @property
    def path(self) -> str:
        """Return namespace/Kind/name, the format of other commands."""
        return f"{self.namespace}/{self.kind}/{self.name}"


def urgency(entry: Entry) -> tuple[int, int, str, str, str]:
    """Return the sort key that puts severe problems first."""
    unknown = len(SEVERITIES)
    return (
        _RESULT_ORDER[entry.result],
        _SEVERITY_ORDER.get(entry.severity, unknown),
        entry.policy,
        entry.rule,
        entry.path,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters from the flags; empty = no filter. Names may have wildcards."""

    results: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def accept(self, entry: Entry) -> bool:
        """Return whether the entry passes every filter."""
        return (
            (not self.results or entry.result in self.results)
            and (not self.severities or entry.severity in self.severities)
            and _named(self.policies, entry.policy)
            and _named(self.namespaces, entry.namespace)
            and _named(self.categories, entry.category)
        )


def _named(patterns: Sequence[str], name: str) -> bool:
    return not patterns or any(matches(pattern, name) for pattern in patterns)


@dataclass(slots=True)
class Counts:
    """The number of entries of each result."""

    of: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))

    @property
    def total(self) -> int:
        """The number of all entries."""
        return sum(self.of.values())

    @property
    def problems(self) -> int:
        """The number of failures, errors and warnings."""
        return sum(self.of[name] for name in PROBLEMS)


@dataclass(frozen=True, slots=True)
class Group:
    """The entries with one value of a dimension; ``name`` is never empty."""

    name: str
    counts: Counts
    value: str = ""


def total(entries: Iterable[Entry]) -> Counts:
    """Count all entries."""
    counts = Counts()
    for entry in entries:
        counts.of[entry.result] += 1
    return counts


def groups(entries: Iterable[Entry], dimension: str) -> list[Group]:
    """Count by one of DIMENSIONS; sort by problems, or severities by their order."""
    by_value: dict[str, Counts] = {}
    for entry in entries:
        value = getattr(entry, dimension)
        if value not in by_value:
            by_value[value] = Counts()
        by_value[value].of[entry.result] += 1
    return sorted_groups(by_value, dimension)


def sorted_groups(by_value: Mapping[str, Counts], dimension: str) -> list[Group]:
    """Return the counted values as groups, in the order of ``groups``."""
    listed = sorted(by_value.items())
    if dimension == "severity":
        unknown = len(SEVERITIES)
        listed.sort(key=lambda item: _SEVERITY_ORDER.get(item[0], unknown))
    else:
        listed.sort(key=lambda item: (-item[1].problems, -item[1].total))
    return [
        Group(value or _NOTHING[dimension], counts, value) for value, counts in listed
    ]
