"""Compile match and exclude blocks: split the kinds, check the selectors.

Room: compiler. Takes: a match or exclude block of a decoded document.
Gives: ir.match.MatchIR. Next: compiler/build, compiler/index, program/matching/match.
Source: docs/behaviour/engine 1.1, 1.3, 1.5, 8.7.
"""

from collections.abc import Mapping
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
from kyverno_mp.policy.fields.match import (
    MatchFilters,
    MatchResources,
    ResourceFilter,
    Subject,
)
from kyverno_mp.policy.fields.meta import LabelSelector, LabelSelectorRequirement
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.kubernetes.selector import check_selector

_FILTER_STEPS: Final = 5
"""Cost of reading, checking and indexing one filter, or one term of a selector."""


def build_match(block: MatchResources) -> MatchIR:
    """Return the record of a rule's ``match``; an empty ``match`` matches nothing.

    A non-empty ``any`` has precedence over ``all``, and ``all`` over the legacy form.
    """
    return _any_or_all(block) or MatchIR("all", (_filter(block),))


def build_exclude(block: MatchResources | None) -> MatchIR | None:
    """Return the record of a rule's ``exclude``, or None if it excludes nothing."""
    if block is None:
        return None
    excluded = _any_or_all(block)
    if excluded is not None:
        return excluded
    legacy = _filter(block)
    return None if legacy == FilterIR() else MatchIR("any", (legacy,))


def build_exception_match(block: MatchFilters) -> MatchIR:
    """Return the record of a PolicyException's ``match``; it has no legacy form."""
    return _any_or_all(block) or MatchIR("any", ())


def build_selector(selector: LabelSelector | None) -> SelectorIR | None:
    """Return the record of a label selector; None if there is no selector.

    For a selector that Kubernetes rejects, the record has the error and matches
    nothing.
    """
    if selector is None:
        return None
    spend(_FILTER_STEPS * len(selector.match_expressions))
    labels = _pairs(selector.match_labels)
    terms = tuple(_term(requirement) for requirement in selector.match_expressions)
    error = check_selector(labels, [(t.key, t.operator, t.values) for t in terms])
    return SelectorIR(labels=labels, terms=terms, error=error)


def _any_or_all(block: MatchResources | MatchFilters) -> MatchIR | None:
    for mode, filters in (("any", block.any), ("all", block.all)):
        if filters:
            return MatchIR(mode, tuple(_filter(entry) for entry in filters))
    return None


def _filter(entry: ResourceFilter | MatchResources) -> FilterIR:
    """Return the record of one filter: its resources and its user info."""
    resources = entry.resources
    counted = (
        resources.kinds,
        resources.names,
        resources.namespaces,
        resources.operations,
        entry.roles,
        entry.cluster_roles,
    )
    spend(_FILTER_STEPS + sum(map(len, counted)))
    return FilterIR(
        kinds=tuple([_kind(kind) for kind in resources.kinds]),
        name=resources.name,
        names=resources.names,
        namespaces=resources.namespaces,
        annotations=_pairs(resources.annotations) if resources.annotations else (),
        selector=build_selector(resources.selector),
        namespace_selector=build_selector(resources.namespace_selector),
        operations=resources.operations,
        subjects=tuple([_subject(subject) for subject in entry.subjects]),
        roles=entry.roles,
        cluster_roles=entry.cluster_roles,
    )


def _kind(selector: str) -> KindIR:
    return KindIR(*parse_kind(selector), text=selector)


def _subject(subject: Subject) -> SubjectIR:
    return SubjectIR(kind=subject.kind, name=subject.name, namespace=subject.namespace)


def _term(requirement: LabelSelectorRequirement) -> SelectorTermIR:
    return SelectorTermIR(
        requirement.key, requirement.operator, _counted(requirement.values)
    )


def _counted(values: tuple[str, ...]) -> tuple[str, ...]:
    spend(len(values))
    return values


def _pairs(mapping: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    spend(len(mapping))
    return tuple(sorted(mapping.items()))
