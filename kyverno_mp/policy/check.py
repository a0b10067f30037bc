"""Check a decoded document: all problems and warnings, or upstream's first error.

Room: policy. Takes: a document of policy/reading/decode.py; optionally the computed
rules and facts about the cluster. Gives: Findings, or the single text that Kyverno's
policy webhook returns. Next: the leader, the CLI, the policy webhook.
Source: docs/behaviour/engine 10 (order of checks), 8.7.
"""

from collections.abc import Callable, Iterable, Sequence

from kyverno_mp.policy.checks.cleanup import check_cleanup
from kyverno_mp.policy.checks.exception import check_exception
from kyverno_mp.policy.checks.global_context import check_global_context
from kyverno_mp.policy.checks.policy_warnings import action_warnings, rule_warnings
from kyverno_mp.policy.checks.rules.bodies import check_bodies
from kyverno_mp.policy.checks.rules.conditions import check_conditions
from kyverno_mp.policy.checks.rules.context import check_context
from kyverno_mp.policy.checks.rules.images import check_extractors, check_images
from kyverno_mp.policy.checks.rules.kinds import (
    check_kinds,
    check_matches_a_kind,
)
from kyverno_mp.policy.checks.rules.patches import check_patch
from kyverno_mp.policy.checks.rules.rule import check_blocks, check_rules
from kyverno_mp.policy.checks.rules.subject import Problems, Subject
from kyverno_mp.policy.checks.rules.variables import check_elements, check_variables
from kyverno_mp.policy.checks.spec import (
    check_has_rules,
    check_namespace,
    check_override_namespaces,
    check_processing,
    check_spec,
    check_spec_overrides,
)
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.documents.global_context_entry import GlobalContextEntry
from kyverno_mp.policy.problems import DocumentInvalid, Findings, Problem
from kyverno_mp.policy.reading.decode import Document, examine, where_of
from kyverno_mp.values.jsonvalue import Json

Check = Callable[[Subject], Problems]
RuleCheck = Callable[[Rule, int], Problems]

RULE_CHECKS: Sequence[RuleCheck] = (
    check_patch,
    check_blocks,
    check_conditions,
    check_elements,
    check_context,
    check_extractors,
    check_matches_a_kind,
    check_bodies,
)
"""Upstream's checks of each rule, in its order; the checks of images follow."""


def check_fields(subject: Subject) -> Problems:
    """Check the fields of spec and of its rules."""
    yield from check_spec(subject)
    yield from check_rules(subject)
    yield from check_spec_overrides(subject)


def _check_each_rule(subject: Subject) -> Problems:
    for index, rule in enumerate(subject.rules):
        for check in RULE_CHECKS:
            yield from check(rule, index)
        yield from check_images(rule, index, subject.policy.spec)


STAGES: Sequence[Check] = (
    check_namespace,
    check_variables,
    check_fields,
    check_override_namespaces,
    check_processing,
    check_kinds,
    _check_each_rule,
)
"""Upstream's stages: its validation ends after the first stage with a problem. All
errors of ``check_fields`` are reported together, but only the first error of any other
stage."""


def read(
    raw: Json, *, file: str = "", cluster_kinds: frozenset[str] | None = None
) -> tuple[Document, tuple[str, ...]]:
    """Decode and check a document; return it with its warnings.

    A name that nothing reads is a warning: a stored policy stays in force, as upstream
    reads it.

    Raises: DocumentInvalid with every problem of structure and content.
    """
    decoded = examine(raw)
    if decoded.document is None:
        raise DocumentInvalid(decoded.problems, where_of(raw, file))
    findings = check(decoded.document, cluster_kinds=cluster_kinds)
    problems = decoded.problems + findings.problems
    if problems:
        raise DocumentInvalid(problems, where_of(raw, file))
    ignored = tuple(map(str, decoded.ignored))
    return decoded.document, (*findings.warnings, *ignored)


def check(
    document: Document,
    *,
    rules: Iterable[Rule] | None = None,
    cluster_kinds: frozenset[str] | None = None,
) -> Findings:
    """Collect all problems and warnings.

    ``rules``: the computed rules (with autogen), which upstream checks; by default the
    rules as written. ``cluster_kinds``: see Subject.
    """
    if not isinstance(document, AnyPolicy):
        return Findings(_unique(_check_other(document, cluster_kinds)))
    computed = document.spec.rules if rules is None else tuple(rules)
    subject = Subject(document, computed, cluster_kinds)
    stages = (*STAGES, check_has_rules)
    try:
        problems = [problem for stage in stages for problem in stage(subject)]
        warnings = [*action_warnings(subject)]
        for rule in computed:
            warnings += rule_warnings(rule, subject)
    except RecursionError:
        reason = "records are nested too deeply"
        return Findings((Problem("policy.too_deep", "", "", reason),))
    return Findings(_unique(problems), tuple(warnings))


def first_error_like_upstream(
    document: Document,
    *,
    rules: Iterable[Rule] | None = None,
    cluster_kinds: frozenset[str] | None = None,
) -> str:
    """Return upstream's error for the document, "" if upstream would accept it."""
    if not isinstance(document, AnyPolicy):
        return aggregate(_check_other(document, cluster_kinds))
    computed = document.spec.rules if rules is None else tuple(rules)
    subject = Subject(document, computed, cluster_kinds)
    for stage in STAGES:
        if stage is check_fields:
            message = aggregate(stage(subject))
        else:
            message = next(
                (problem.upstream for problem in stage(subject) if problem.upstream), ""
            )
        if message:
            return message
    return ""


def _check_other(
    document: PolicyException | AnyCleanupPolicy | GlobalContextEntry,
    cluster_kinds: frozenset[str] | None,
) -> Problems:
    if isinstance(document, PolicyException):
        return check_exception(document)
    if isinstance(document, GlobalContextEntry):
        return check_global_context(document)
    return check_cleanup(document, cluster_kinds)


def aggregate(problems: Iterable[Problem]) -> str:
    """Join upstream's messages like field errors; return "" if there are none."""
    messages = list(
        dict.fromkeys(problem.upstream for problem in problems if problem.upstream)
    )
    return (
        messages[0]
        if len(messages) == 1
        else f"[{', '.join(messages)}]"
        if messages
        else ""
    )


def _unique(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(problems))
