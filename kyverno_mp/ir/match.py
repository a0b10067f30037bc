"""Define the records of match and exclude blocks, with kinds already split.

Room: ir. Takes: written by compiler/rules/match. Gives: read by program/matching/match
and by compiler/index. No behaviour here. Source: docs/behaviour/engine 1.
"""

import msgspec


class KindIR(msgspec.Struct, frozen=True, array_like=True):
    """One entry of ``kinds``: four wildcard patterns.

    Shape: ("apps", "v1", "Deploy*", ""); ``text`` is the original entry, for messages
    that explain a mismatch.
    """

    group: str
    version: str
    kind: str
    subresource: str
    text: str = ""


class SelectorTermIR(msgspec.Struct, frozen=True, array_like=True):
    """One ``matchExpressions`` entry; operator is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class SelectorIR(msgspec.Struct, frozen=True, array_like=True):
    """A label selector. One with an ``error`` (it did not parse) matches nothing."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[SelectorTermIR, ...] = ()
    error: str = ""


class SubjectIR(msgspec.Struct, frozen=True, array_like=True):
    """A subject of match/exclude; kind is User, Group or ServiceAccount."""

    kind: str
    name: str
    namespace: str = ""


class FilterIR(msgspec.Struct, frozen=True, array_like=True):
    """One filter: resources AND user info. Empty tuples and None: no criterion."""

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
    """A match or exclude block; ``mode`` is "any" or "all".

    The legacy inline form is "all" with one filter in match and "any" with one filter
    in exclude; outcomes and messages are the same.
    """

    mode: str = "any"
    filters: tuple[FilterIR, ...] = ()
    only_kinds: tuple[str, ...] = ()
    """Kinds for which the rule exists; empty: every kind."""
    never_kinds: tuple[str, ...] = ()
    """Kinds for which the rule does not exist."""
