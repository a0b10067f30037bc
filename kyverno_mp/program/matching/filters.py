"""Exempt requests by configuration: resource filters and excluded users.

Room: program. Takes: the strings of the Kyverno ConfigMap. Gives: ResourceFilters and
UserExclusions. Next: program/engine (per policy), webhook (per request).
Source: docs/behaviour/engine 1.8, 1.9; docs/behaviour/controllers 2.3, 10.3; Kyverno
pkg/config.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.ir.match import KindIR
from kyverno_mp.limits import KIND_MEMO_ENTRIES_MAX
from kyverno_mp.policy.resource_filters import filters_in
from kyverno_mp.program.matching.kind import KindKey
from kyverno_mp.program.matching.subject import metadata_of, resource_namespace
from kyverno_mp.program.request import Request
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.wildcard import compile_wildcard, matches

_NAMESPACE_KIND: Final = ("", "v1", "Namespace")
_TextTest: TypeAlias = Callable[[str], bool]
_PairTest: TypeAlias = tuple[_TextTest, _TextTest]


class ResourceFilter(NamedTuple):
    """One ``[Kind,namespace,name]`` entry, as six wildcard patterns."""

    kind: KindIR
    namespace: str
    name: str


_EMPTY_FILTER: Final = ResourceFilter(KindIR("", "", "", ""), "", "")


def parse_resource_filters(setting: str) -> tuple[ResourceFilter, ...]:
    """Parse the ``resourceFilters`` text; text outside brackets is ignored.

    KYVERNO: items are not trimmed, an absent item is "" (which matches only the empty
    string), and an entry of more than three items repeats the previous entry (1.8,
    pkg/config/types.go).
    """
    filters: list[ResourceFilter] = []
    last = _EMPTY_FILTER
    for items in filters_in(setting):
        if len(items) <= len(ResourceFilter._fields):
            last = _parse_entry(*items)
        filters.append(last)
    return tuple(filters)


def _parse_entry(kind: str, namespace: str = "", name: str = "") -> ResourceFilter:
    if not kind:
        return _EMPTY_FILTER
    return ResourceFilter(KindIR(*parse_kind(kind), text=kind), namespace, name)


class ResourceFilters:
    """The resource filters of one configuration.

    PERF: the entries for a kind are selected once per kind.
    """

    def __init__(self, filters: Iterable[ResourceFilter]) -> None:
        self._filters = tuple(filters)
        self._memo: dict[KindKey, list[_PairTest]] = {}

    def skips_request(self, request: Request) -> bool:
        """Return whether the whole request is exempt (by its namespace and name)."""
        return self._hits(request, request.namespace, request.name)

    def skips_policies(self, request: Request) -> bool:
        """Return whether the new or the old object is exempt from all policies.

        KYVERNO: generateName does not count as a name here (1.9).
        """
        if not self._filters:
            return False
        for resource in (request.object, request.old_object):
            if resource:
                name = metadata_of(resource).get("name")
                object_name = name if type(name) is str else ""
                if self._hits(
                    request, resource_namespace(request, resource), object_name
                ):
                    return True
        return False

    def _hits(self, request: Request, namespace: str, name: str) -> bool:
        if not self._filters:
            return False
        kind_key = (request.group, request.version, request.kind, request.subresource)
        tests = self._memo.get(kind_key)
        if tests is None:
            tests = self._choose(kind_key)
        # KYVERNO: the namespace pattern is also matched against a Namespace's own name
        # (1.8).
        is_namespace = kind_key[:3] == _NAMESPACE_KIND
        for in_namespace, has_name in tests:
            if in_namespace(namespace) and has_name(name):
                return True
            if is_namespace and in_namespace(name):
                return True
        return False

    def _choose(self, kind_key: KindKey) -> list[_PairTest]:
        if len(self._memo) >= KIND_MEMO_ENTRIES_MAX:
            self._memo.clear()
        tests = [
            (compile_wildcard(entry.namespace), compile_wildcard(entry.name))
            for entry in self._filters
            if _names_kind(entry.kind, kind_key)
        ]
        self._memo[kind_key] = tests
        return tests


def _names_kind(selector: KindIR, kind_key: KindKey) -> bool:
    """Match the kind; unlike in match blocks, ephemeralcontainers are not special."""
    group, version, kind, subresource = kind_key
    return (
        matches(selector.group, group)
        and matches(selector.version, version)
        and matches(selector.kind, kind)
        and matches(selector.subresource, subresource)
    )


class UserExclusions:
    """The groups, users, roles and cluster roles that a configuration excludes."""

    def __init__(
        self,
        *,
        groups: str = "",
        usernames: str = "",
        roles: str = "",
        cluster_roles: str = "",
    ) -> None:
        settings = (groups, usernames, roles, cluster_roles)
        self._excluded = [_link_list(setting, included=False) for setting in settings]
        self._included = [_link_list(setting, included=True) for setting in settings]
        self._is_empty = not any(self._excluded)

    def excludes(self, request: Request) -> bool:
        """Return whether the user is exempt; an inclusion takes precedence."""
        if self._is_empty:
            return False
        facts = (
            request.groups,
            (request.username,),
            request.roles,
            request.cluster_roles,
        )
        return _some_holds(self._excluded, facts) and not _some_holds(
            self._included, facts
        )


def _link_list(setting: str, *, included: bool) -> list[_TextTest]:
    """Link a comma-separated list; items that start with ``!`` are inclusions."""
    tests: list[_TextTest] = []
    for item in setting.split(","):
        pattern = item.strip()
        if pattern.startswith("!") == included:
            pattern = pattern.removeprefix("!").strip()
            if pattern:
                tests.append(compile_wildcard(pattern))
    return tests


def _some_holds(
    lists: list[list[_TextTest]], facts: tuple[tuple[str, ...], ...]
) -> bool:
    return any(
        test(value)
        for tests, values in zip(lists, facts, strict=True)
        for test in tests
        for value in values
    )
