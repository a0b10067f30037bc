"""Review a document like Kyverno's policy webhook: return one error, or warnings.

Room: policy. Takes: the document, its old version, its computed rules, a view of the
cluster. Gives: ReviewVerdict. Next: webhook/policy_review.py. May touch: the cluster
only through policy/ports.py.
Source: docs/behaviour/engine 10 (order of the checks; the first error ends the review),
docs/behaviour/controllers 2.9, 7.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kyverno_mp.policy.check import (
    RULE_CHECKS,
    STAGES,
    aggregate,
    check_fields,
    first_error_like_upstream,
)
from kyverno_mp.policy.checks.cleanup import deletion_refusals, run_warnings
from kyverno_mp.policy.checks.cluster import (
    check_generate_conditions,
    check_permissions,
    check_subresources,
    report_warnings,
    unknown_kind,
)
from kyverno_mp.policy.checks.policy_warnings import action_warnings, rule_warnings
from kyverno_mp.policy.checks.rules.generation import clone_warnings
from kyverno_mp.policy.checks.rules.images import check_images
from kyverno_mp.policy.checks.rules.kinds import check_kinds
from kyverno_mp.policy.checks.rules.subject import Problems, Subject
from kyverno_mp.policy.checks.shared_entries import closed_reference
from kyverno_mp.policy.checks.spec import check_namespace
from kyverno_mp.policy.checks.update import check_on_update, generate_changes
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy, CleanupPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.policy.ports import ClusterView, Opens, closed
from kyverno_mp.policy.reading.decode import Document

_BEFORE_UPDATE = STAGES[: STAGES.index(check_kinds)]
"""Upstream's stages up to the comparison with the old version."""


@dataclass(slots=True)
class ReviewVerdict:
    """The webhook's result; an empty ``error`` means that the document is accepted.

    ``is_cut_short``: a warning ended the review before its last checks.
    """

    error: str = ""
    warnings: list[str] = field(default_factory=list)
    is_cut_short: bool = field(default=False, compare=False)


def review(
    document: Document,
    *,
    rules: Iterable[Rule] = (),
    old: Document | None = None,
    view: ClusterView | None = None,
    uncompiled: Sequence[str] = (),
) -> ReviewVerdict:
    """Review the document; ``rules``: its computed rules, if it has any.

    ``uncompiled``: errors of match conditions that do not compile.
    """
    kinds = view.kinds.cluster_kinds() if view is not None else None
    if isinstance(document, AnyPolicy):
        knows_all = view is None or view.kinds.is_complete
        subject = Subject(document, tuple(rules), kinds, knows_all)
        before = old if isinstance(old, AnyPolicy) else None
        return _Review(subject, before, view, uncompiled).verdict()
    error = first_error_like_upstream(document, cluster_kinds=kinds)
    if isinstance(document, AnyCleanupPolicy):
        error = error or _closed_cleanup(document, view.opens if view else closed)
    if error or view is None:
        return ReviewVerdict(error)
    if isinstance(document, AnyCleanupPolicy):
        error = next(deletion_refusals(document, view), "")
        return ReviewVerdict(error, [] if error else list(run_warnings(document)))
    return ReviewVerdict(error)


class _Review:
    """The review of one policy by upstream's checks, until the first error."""

    def __init__(
        self,
        subject: Subject,
        old: AnyPolicy | None,
        view: ClusterView | None,
        uncompiled: Sequence[str],
    ) -> None:
        self._subject = subject
        self._uncompiled = uncompiled
        self._old = old
        self._view = view
        self._warnings: list[str] = []
        self._is_cut_short = False

    def verdict(self) -> ReviewVerdict:
        """Run the checks and return the verdict."""
        error = self._error()
        warnings = list(dict.fromkeys(self._warnings))
        return ReviewVerdict(error, warnings, self._is_cut_short)

    def _error(self) -> str:
        subject = self._subject
        error = _first(check_namespace(subject))
        if error:
            self._warnings.append(error)
            return error
        self._warnings.extend(action_warnings(subject))
        if self._uncompiled:
            return (
                f"match conditions compilation errors: [{' '.join(self._uncompiled)}]"
            )
        for stage in _BEFORE_UPDATE:
            if stage is check_fields:
                self._warn_of_clones()
                error = aggregate(stage(subject))
            else:
                error = _first(stage(subject))
            if error:
                return error
        if self._old is not None:
            warning, error = generate_changes(subject.policy, self._old)
            if warning:
                self._warnings.append(warning)
                self._is_cut_short = True
                return error
        error, self._is_cut_short = self._check_kinds()
        return error if error or self._is_cut_short else self._check_rules()

    def _warn_of_clones(self) -> None:
        for index, rule in enumerate(self._subject.policy.spec.rules):
            if rule.generate is not None and "generate" in rule.types():
                path = f"spec.rules[{index}]"
                self._warnings.extend(clone_warnings(rule.generate, path))

    def _check_kinds(self) -> tuple[str, bool]:
        """Check the kinds rule by rule; return the error and whether the review ends.

        KYVERNO: a kind that does not exist ends the review with success
        (docs/behaviour/engine 10.6).
        """
        wild = {problem.rule: problem for problem in check_kinds(self._subject)}
        for index, rule in enumerate(self._subject.rules):
            if rule.name in wild:
                return wild[rule.name].upstream, True
            if self._view is None:
                continue
            warning = unknown_kind(self._subject, rule, self._view)
            if warning:
                self._warnings.append(warning)
                return "", True
            error = _first(check_subresources(self._subject, rule, index, self._view))
            if error:
                return error, True
        return "", False

    def _check_rules(self) -> str:
        for index, rule in enumerate(self._subject.rules):
            error = self._check_rule(rule, index)
            if error:
                return error
        return ""

    def _closed_reference(self, rule: Rule, index: int) -> str:
        subject, view = self._subject, self._view
        if not subject.is_namespaced:
            return ""
        opens = view.opens if view is not None else closed
        namespace = subject.policy.metadata.namespace
        reason = closed_reference(rule, namespace, opens)
        return f"path: spec.rules[{index}]: {reason}" if reason else ""

    def _check_rule(self, rule: Rule, index: int) -> str:
        subject, view = self._subject, self._view
        for check in RULE_CHECKS:
            error = _first(check(rule, index))
            if error:
                return error
        error = _first(check_generate_conditions(rule, index))
        if error:
            return error
        if view is not None:
            error = _first(check_permissions(rule, index, view))
            if error:
                return error
        error = self._closed_reference(rule, index)
        if error:
            return error
        error = _first(check_images(rule, index, subject.policy.spec))
        if error:
            return error
        if view is not None:
            self._warnings.extend(report_warnings(rule, view))
        self._warnings.extend(rule_warnings(rule, subject))
        return _first(check_on_update(subject, rule))


def _closed_cleanup(document: AnyCleanupPolicy, opens: Opens) -> str:
    if not isinstance(document, CleanupPolicy):
        return ""
    namespace = document.metadata.namespace
    reason = closed_reference(document.spec, namespace, opens)
    return f"spec.context: Forbidden: {reason}" if reason else ""


def _first(problems: Problems) -> str:
    return next((problem.upstream for problem in problems if problem.upstream), "")
