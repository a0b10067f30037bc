"""Compile match and exclude blocks: split the kinds, check the selectors.

Room: compiler. Takes: a match or exclude mapping of the policy document.
Gives: ir.match.MatchIR. Next: compiler/build, compiler/index, program/matching/match.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 1.1, 1.3, 1.5, 8.7.
"""

from typing import Final

from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.ir.match import (
    FilterIR,
    KindIR,
    MatchIR,
    SelectorIR,
    SelectorTermIR,
    SubjectIR,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kinds import parse_kind
from kyverno_mp.values.selector import check_selector

_FILTER_STEPS: Final = 5
"""For reading, checking and indexing one filter, or one term of a selector."""


def build_match(document: Json) -> MatchIR:
    """Return the record of a rule's ``match``; an empty one matches nothing.

    A non-empty ``any`` has precedence over ``all``, and ``all`` over the legacy form.
    """
    return _build_any_all(document) or MatchIR("all", (build_filter(document),))


def build_exclude(document: Json) -> MatchIR | None:
    """Return the record of a rule's ``exclude``, None if nothing is excluded."""
    block = _build_any_all(document)
    if block is not None:
        return block
    legacy = build_filter(document)
    return None if legacy == FilterIR() else MatchIR("any", (legacy,))


def build_exception_match(document: Json) -> MatchIR:
    """Return the record of a PolicyException's ``match``, which has no legacy form."""
    return _build_any_all(document) or MatchIR("any", ())


def build_filter(document: Json) -> FilterIR:
    """Return the record of one filter: its resources and its user info.

    Shape: ``{"resources": {"kinds": ["Pod"]}, "roles": ["ns:name"]}``.
    """
    spend(_FILTER_STEPS)
    entry = _mapping(document)
    resources = _mapping(entry.get("resources"))
    return FilterIR(
        kinds=tuple(build_kind(text) for text in _texts(resources.get("kinds"))),
        name=_text(resources.get("name")),
        names=_texts(resources.get("names")),
        namespaces=_texts(resources.get("namespaces")),
        annotations=_pairs(resources.get("annotations")),
        selector=build_selector(resources.get("selector")),
        namespace_selector=build_selector(resources.get("namespaceSelector")),
        operations=_texts(resources.get("operations")),
        subjects=tuple(_build_subject(s) for s in _items(entry.get("subjects"))),
        roles=_texts(entry.get("roles")),
        cluster_roles=_texts(entry.get("clusterRoles")),
    )


def build_kind(text: str) -> KindIR:
    """Return the record of one entry of ``kinds``."""
    return KindIR(*parse_kind(text), text=text)


def build_selector(document: Json) -> SelectorIR | None:
    """Return the record of a label selector; None if there is none.

    A selector that Kubernetes rejects carries the error and matches nothing.
    """
    if document is None:
        return None
    entry = _mapping(document)
    spend(_FILTER_STEPS * len(_items(entry.get("matchExpressions"))))
    labels = _pairs(entry.get("matchLabels"))
    terms = tuple(
        SelectorTermIR(
            key=_text(_mapping(term).get("key")),
            operator=_text(_mapping(term).get("operator")),
            values=_texts(_mapping(term).get("values")),
        )
        for term in _items(entry.get("matchExpressions"))
    )
    error = check_selector(labels, [(t.key, t.operator, t.values) for t in terms])
    return SelectorIR(labels=labels, terms=terms, error=error)


def _build_any_all(document: Json) -> MatchIR | None:
    block = _mapping(document)
    for mode in ("any", "all"):
        filters = _items(block.get(mode))
        if filters:
            return MatchIR(mode, tuple(build_filter(entry) for entry in filters))
    return None


def _build_subject(document: Json) -> SubjectIR:
    subject = _mapping(document)
    return SubjectIR(
        kind=_text(subject.get("kind")),
        name=_text(subject.get("name")),
        namespace=_text(subject.get("namespace")),
    )


def _mapping(value: Json) -> dict[str, Json]:
    return value if type(value) is dict else {}


def _items(value: Json) -> list[Json]:
    return value if type(value) is list else []


def _text(value: Json) -> str:
    return value if type(value) is str else ""


def _texts(value: Json) -> tuple[str, ...]:
    spend(len(_items(value)))
    return tuple(item for item in _items(value) if type(item) is str)


def _pairs(value: Json) -> tuple[tuple[str, str], ...]:
    spend(len(_mapping(value)))
    return tuple(
        (key, text)
        for key, text in sorted(_mapping(value).items())
        if type(text) is str
    )
