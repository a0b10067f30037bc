"""Decide whether a rule's exclude block removes all of its match block.

Room: policy. Takes: a Rule. Gives: bool. Next: policy/checks/rules/rule.py. May touch:
nothing outside its arguments.
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
        return any(one in exclude.any for one in match.any) and all(
            any(_covers(one, other) for other in exclude.any) for one in match.any
        )
    if match.any or exclude.any or exclude == MatchResources():
        return False
    return _covers(match, exclude)


def _covers(
    match: MatchResources | ResourceFilter, exclude: MatchResources | ResourceFilter
) -> bool:
    ours, theirs = match.resources, exclude.resources
    lists = (
        (match.roles, exclude.roles),
        (match.cluster_roles, exclude.cluster_roles),
        (match.subjects, exclude.subjects),
        (ours.namespaces, theirs.namespaces),
        (ours.kinds, theirs.kinds),
        (ours.operations, theirs.operations),
    )
    if not all(_covers_list(one, other) for one, other in lists):
        return False
    if theirs.name and not _covers_name(ours.name, theirs.name):
        return False
    return (
        _covers_names(ours.names, theirs.names)
        and _covers_selector(ours.selector, theirs.selector)
        and _covers_selector(ours.namespace_selector, theirs.namespace_selector)
        and ours.annotations == theirs.annotations
    )


def _covers_names(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    if not theirs:
        return True
    return bool(ours) and all(
        any(_covers_name(one, other) for other in theirs) for one in ours
    )


def _covers_name(ours: str, theirs: str) -> bool:
    """Return whether all names of a pattern fit another: ``?`` is only one letter."""
    if "?" in theirs and "*" in ours:
        return ours == theirs
    return matches(theirs, ours)


def _covers_list(ours: tuple[object, ...], theirs: tuple[object, ...]) -> bool:
    """Return whether all of ``ours`` is excluded; an empty exclude has no effect."""
    return not theirs or (bool(ours) and all(one in theirs for one in ours))


def _covers_selector(
    label_selector: LabelSelector | None, theirs: LabelSelector | None
) -> bool:
    if label_selector is None or theirs is None:
        return label_selector is theirs
    if not _covers_list(label_selector.match_expressions, theirs.match_expressions):
        return False
    return _covers_list(
        tuple(label_selector.match_labels.items()), tuple(theirs.match_labels.items())
    )
