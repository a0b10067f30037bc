"""Records of match and exclude blocks, kinds already split.

Room: ir. Takes: written by compiler/match.py. Gives: read by program/match.py and by the
index builder. No behaviour here. Source: spec/engine.md 1.
"""

import msgspec


class KindIR(msgspec.Struct, frozen=True, array_like=True):
    """One entry of ``kinds``: four wildcard patterns, e.g. ("apps", "v1", "Deploy*", "")."""

    group: str
    version: str
    kind: str
    subresource: str


class SelectorTermIR(msgspec.Struct, frozen=True, array_like=True):
    """One ``matchExpressions`` entry; operator is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class SelectorIR(msgspec.Struct, frozen=True, array_like=True):
    """A label selector. ``error`` is set when it does not parse: it then matches nothing."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[SelectorTermIR, ...] = ()
    error: str = ""


class SubjectIR(msgspec.Struct, frozen=True, array_like=True):
    """A subject of match/exclude; kind is User, Group or ServiceAccount."""

    kind: str
    name: str
    namespace: str = ""


class FilterIR(msgspec.Struct, frozen=True, array_like=True):
    """One filter: resources AND user info. Empty tuples / None: criterion not given."""

    kinds: tuple[KindIR, ...] = ()
    name: str = ""
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    selector: SelectorIR | None = None
    namespace_selector: SelectorIR | None = None
    operations: tuple[str, ...] = ()
    subjects: tuple[SubjectIR, ...] = ()
    roles: tuple[str, ...] = ()
    cluster_roles: tuple[str, ...] = ()


class MatchIR(msgspec.Struct, frozen=True, array_like=True):
    """``mode``: "any" or "all" (the legacy inline form is "all" of one filter)."""

    mode: str = "any"
    filters: tuple[FilterIR, ...] = ()
