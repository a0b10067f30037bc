"""Reduce the entries of policies to the rules of one webhook.

Room: controllers. Takes: entries (resource, scope, operation). Gives: rules in the API
server's format. Next: controllers/webhook_config/resources.py.
Source: docs/behaviour/controllers 3.2 (order), 3.3 items 7-8; Kyverno
pkg/controllers/webhook/utils_webhook.go at v1.18.2.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kyverno_mp.values.jsonvalue import Json

ALL_SCOPES: Final = "*"
NAMESPACED: Final = "Namespaced"
CREATE_UPDATE: Final = ("CREATE", "UPDATE")
CREATE_UPDATE_DELETE: Final = ("CREATE", "UPDATE", "DELETE")
ALL_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_EPHEMERAL: Final = "pods/ephemeralcontainers"
_COVERING: Final = frozenset({"*/*", "*/ephemeralcontainers", "pods/*"})


class Entry(NamedTuple):
    """One operation on one resource, e.g. ("apps", "v1", "deployments", "", ..)."""

    group: str
    version: str
    resource: str
    subresource: str
    scope: str
    operation: str


def rules_of(entries: Iterable[Entry], *, ephemeral: bool = True) -> list[Json]:
    """Return sorted rules that cover every entry once.

    ``ephemeral``: rules for Pods also name their ephemeral containers.
    """
    known = frozenset(entries)
    grouped: dict[tuple[str, str, str], dict[str, set[str]]] = defaultdict(dict)
    for entry in known:
        if any(other in known for other in _wider(entry)):
            continue
        name = entry.resource
        if entry.subresource:
            name = f"{name}/{entry.subresource}"
        group = grouped[entry.group, entry.version, entry.scope]
        group.setdefault(name, set()).add(entry.operation)
    found = [
        _rule(
            group,
            version,
            scope,
            operations,
            _with_ephemeral(group, version, names) if ephemeral else names,
        )
        for (group, version, scope), resources in grouped.items()
        for operations, names in _by_operations(resources).items()
    ]
    return sorted(found, key=_order)


def rules_of_parts(parts: Iterable[Iterable[Entry]]) -> list[Json]:
    """Return sorted rules, at least one per part, as upstream registers copies."""
    found = [rule for part in parts for rule in rules_of(part, ephemeral=False)]
    return sorted(found, key=_order)


def _by_operations(resources: dict[str, set[str]]) -> dict[frozenset[str], set[str]]:
    turned: dict[frozenset[str], set[str]] = defaultdict(set)
    for name, operations in resources.items():
        turned[frozenset(operations)].add(name)
    return turned


def _with_ephemeral(group: str, version: str, names: set[str]) -> set[str]:
    """Add the ephemeral containers of Pods.

    KYVERNO: a webhook for Pods also receives them (3.3 item 8).
    """
    of_pods = group in ("", "*") and version in ("v1", "*") and names & {"pods", "*"}
    # K8S: together with a wildcard that covers it, this resource makes the
    # configuration invalid.
    if of_pods and not names & _COVERING:
        return names | {_EPHEMERAL}
    return names


def _rule(
    group: str, version: str, scope: str, operations: Iterable[str], names: set[str]
) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": sorted(operations),
        "resources": sorted(names),
        "scope": scope,
    }


def _order(rule: Json) -> tuple[object, ...]:
    fields = ("apiGroups", "apiVersions", "resources", "operations")
    parts = tuple((len(rule[field]), rule[field]) for field in fields)
    return (*parts, rule["scope"])


def _wider(entry: Entry) -> Iterator[Entry]:
    """Yield every more general entry, without ``entry`` itself."""
    for scope in _or_all(entry.scope):
        for group in _or_all(entry.group):
            for version in _or_all(entry.version):
                for resource, part in _wider_resources(
                    entry.resource, entry.subresource
                ):
                    other = Entry(
                        group, version, resource, part, scope, entry.operation
                    )
                    if other != entry:
                        yield other


def _or_all(value: str) -> tuple[str, ...]:
    return (value,) if value == "*" else (value, "*")


def _wider_resources(resource: str, part: str) -> list[tuple[str, str]]:
    """Return the lattice: pods < * < */*; pods/scale < pods/* and */scale < */*."""
    if not part:
        return [*((one, "") for one in _or_all(resource)), ("*", "*")]
    return [(one, sub) for one in _or_all(resource) for sub in _or_all(part)]
