"""Decide whether a rule's exclude block removes all of its match block.

Room: policy. Takes: a Rule. Gives: bool. Next: policy/checks/rules/rule.py.
Source: docs/behaviour/engine 10.5 (exclude covers match); Kyverno
ValidateMatchExcludeConflict.
"""

from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.match import MatchResources, ResourceFilter
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.values.wildcard import matches


def covers_match(rule: Rule) -> bool:
    """Return whether exclude certainly covers match, so that nothing is left.

    As upstream, False with ``all``, and for two ``any`` lists without a common filter
    (docs/behaviour/engine 10.5). Upstream also refuses rules that still match
    something: an inline match beside ``exclude.any``, or where only some filters or
    some names are excluded.
    """
    match, exclude = rule.match, rule.exclude
    if exclude is None or exclude.all or match.all:
        return False
    if match.any and exclude.any:
        return any(match_filter in exclude.any for match_filter in match.any) and all(
            any(_covers(match_filter, exclude_filter) for exclude_filter in exclude.any)
            for match_filter in match.any
        )
    if match.any or exclude.any or exclude == MatchResources():
        return False
    return _covers(match, exclude)


def _covers(
    match: MatchResources | ResourceFilter, exclude: MatchResources | ResourceFilter
) -> bool:
    matched, excluded = match.resources, exclude.resources
    lists = (
        (match.roles, exclude.roles),
        (match.cluster_roles, exclude.cluster_roles),
        (match.subjects, exclude.subjects),
        (matched.namespaces, excluded.namespaces),
        (matched.kinds, excluded.kinds),
        (matched.operations, excluded.operations),
    )
    if not all(
        _covers_list(match_values, exclude_values)
        for match_values, exclude_values in lists
    ):
        return False
    if excluded.name and not _covers_name(matched.name, excluded.name):
        return False
    return (
        _covers_names(matched.names, excluded.names)
        and _covers_selector(matched.selector, excluded.selector)
        and _covers_selector(matched.namespace_selector, excluded.namespace_selector)
        and matched.annotations == excluded.annotations
    )


def _covers_names(matched: tuple[str, ...], excluded: tuple[str, ...]) -> bool:
    if not excluded:
        return True
    return bool(matched) and all(
        any(_covers_name(match_name, exclude_name) for exclude_name in excluded)
        for match_name in matched
    )


def _covers_name(matched: str, excluded: str) -> bool:
    """Return whether all names of a pattern fit another: ``?`` is only one letter."""
    if "?" in excluded and "*" in matched:
        return matched == excluded
    return matches(excluded, matched)


def _covers_list(matched: tuple[object, ...], excluded: tuple[object, ...]) -> bool:
    """Return whether all of ``matched`` is excluded; an empty exclude has no effect."""
    return not excluded or (
        bool(matched) and all(value in excluded for value in matched)
    )


def _covers_selector(
    label_selector: LabelSelector | None, excluded: LabelSelector | None
) -> bool:
    if label_selector is None or excluded is None:
        return label_selector is excluded
    if not _covers_list(label_selector.match_expressions, excluded.match_expressions):
        return False
    return _covers_list(
        tuple(label_selector.match_labels.items()), tuple(excluded.match_labels.items())
    )
