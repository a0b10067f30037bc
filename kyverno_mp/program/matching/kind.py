"""Link kind selectors, which test the kind of a request.

Room: program. Takes: KindIR records. Gives: a closure that tests a request, and the
plain test of one selector for the index. Next: program/matching/filter, candidates.
Source: docs/behaviour/engine 1.3; Kyverno pkg/utils/match/kind.go.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from kyverno_mp.ir.match import KindIR
from kyverno_mp.limits import KIND_MEMO_ENTRIES_MAX
from kyverno_mp.program.request import Request
from kyverno_mp.values.wildcard import contains_wildcard, matches

KindKey: TypeAlias = tuple[str, str, str, str]
"""(group, version, kind, subresource) of a request."""


def selector_matches(selector: KindIR, kind_key: KindKey) -> bool:
    """Return whether one selector selects this kind.

    KYVERNO: a selector for v1/Pod also selects its ``ephemeralcontainers`` (1.3).
    """
    group, version, kind, subresource = kind_key
    return (
        matches(selector.group, group)
        and matches(selector.version, version)
        and matches(selector.kind, kind)
        and (
            matches(selector.subresource, subresource)
            or kind_key == ("", "v1", "Pod", "ephemeralcontainers")
        )
    )


def link_kinds(selectors: Iterable[KindIR]) -> Callable[[Request], bool]:
    """Link a list of selectors to a test that is true if any of them matches.

    PERF: bare kinds (``Pod``) are one set look-up; any other selector is evaluated once
    per kind and cached.
    """
    records = tuple(selectors)
    memo: dict[KindKey, bool] = {}

    def selects(request: Request) -> bool:
        request_kind = (
            request.group,
            request.version,
            request.kind,
            request.subresource,
        )
        is_selected = memo.get(request_kind)
        if is_selected is None:
            if len(memo) >= KIND_MEMO_ENTRIES_MAX:
                memo.clear()
            is_selected = any(
                selector_matches(record, request_kind) for record in records
            )
            memo[request_kind] = is_selected
        return is_selected

    if not all(_is_bare(record) for record in records):
        return selects
    kinds = frozenset(record.kind for record in records)
    return lambda request: (
        selects(request) if request.subresource else request.kind in kinds
    )


def _is_bare(selector: KindIR) -> bool:
    return (
        selector.group == "*"
        and selector.version == "*"
        and not selector.subresource
        and not contains_wildcard(selector.kind)
    )
