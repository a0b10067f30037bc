"""Evaluate the validate rules on one admission request, one action at a time.

Room: program. Takes: the policies that program/plans/planner.py selected. Gives:
ValidationPlan, run by the webhook: enforce and warn before the response, audit after
it. Next: program/plans/batch.py. Over 400 lines: the plan and its prepared data share
their entries.
Source: docs/behaviour/controllers 2.5, 2.7; docs/behaviour/engine 6.9, 6.10.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kyverno_mp.errors import BudgetExceeded, Preempted
from kyverno_mp.expr.effects import EFFECT_REGISTRY
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.limits import BATCH_MEMO_RULES_MAX, CANDIDATE_MEMO_ENTRIES_MAX
from kyverno_mp.program.action import (
    AUDIT,
    ENFORCE,
    is_static,
    response_action,
    rule_action,
)
from kyverno_mp.program.engine import Engine, checks_images
from kyverno_mp.program.generate.triggers import LinkedTriggers, Triggered
from kyverno_mp.program.matching.candidates import RuleSource
from kyverno_mp.program.matching.match import reads_namespace_labels
from kyverno_mp.program.matching.rule_ref import PolicyCandidates
from kyverno_mp.program.plans.batch import Batch, Evaluation
from kyverno_mp.program.plans.batch_layout import Chosen
from kyverno_mp.program.plans.planner import SLOW, Picked, PlannerOf
from kyverno_mp.program.recall.namespace_reads import reads_namespace
from kyverno_mp.program.reporting import Reporting
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, not_evaluated
from kyverno_mp.program.rule import LinkedRule

_Where = tuple[str, str, frozenset[tuple[str, str]]]
"""(action, namespace, namespace labels): the selection of rules may depend on these."""
_VALIDATING: Final = ("validate", "")
"""The types of validating rules; "": unknown, so it is an error in both webhooks."""
_NOWHERE: Final[tuple[str, frozenset[tuple[str, str]]]] = ("", frozenset())
_WARN: Final = "Warn"
"""Not a policy action: AUDIT, but only for policies with emitWarning."""
_TRAVEL: Final = "Travel"
"""AUDIT, but only rules whose results are sent to reports, without slow rules."""


class _Prepared:
    """The data shared by all requests with these candidates."""

    __slots__ = (
        "_batches",
        "_rule_count",
        "_static",
        "audits",
        "entries",
        "fails",
        "needs_io",
        "reads_namespace",
        "reads_registry",
        "reporting",
        "travels",
        "travels_late",
        "triggers",
        "warns",
    )

    def __init__(
        self,
        entries: Picked[LinkedRule],
        triggers: LinkedTriggers | None = None,
        reporting: Reporting | None = None,
    ) -> None:
        """``reporting`` is None if no results are sent to reports."""
        self.entries = entries
        self.triggers = triggers
        self.reporting = reporting
        travelling = [
            policy for policy, rules in self.entries if self._travels(policy, rules)
        ]
        self.travels = bool(travelling)
        self.travels_late = any(map(self.is_slow, travelling))
        self._static = all(
            is_static(policy, rule.ir)
            for policy, rules in self.entries
            for rule in rules
        )
        self._rule_count = sum(len(rules) for _, rules in self.entries)
        self._batches: dict[_Where, Batch] = {}
        self.audits = not self._static or bool(self._choose((AUDIT, *_NOWHERE)))
        self.warns = any(policy.emit_warning for policy, _ in self.entries)
        self.fails = any(p.failure_policy == "Fail" for p, _ in self.entries)
        effects = 0
        for _, rules in self.entries:
            for rule in rules:
                effects |= rule.effects
        self.needs_io = bool(effects & SLOW)
        self.reads_registry = bool(effects & EFFECT_REGISTRY)
        self.reads_namespace = any(
            reads_namespace(policy, rule.ir)
            for policy, rules in self.entries
            for rule in rules
        ) or (triggers is not None and triggers.reads_namespace)

    def batch(self, action: str, request: Request) -> Batch:
        """Return the policies with their rules that have one effective action."""
        batch_key: _Where = (action, *_NOWHERE)
        if not self._static:
            labels = frozenset(request.namespace_labels.items())
            batch_key = (action, request.namespace, labels)
        batch = self._batches.get(batch_key)
        if batch is None:
            most = max(1, BATCH_MEMO_RULES_MAX // max(1, self._rule_count))
            if len(self._batches) >= min(most, CANDIDATE_MEMO_ENTRIES_MAX):
                self._batches.clear()
            batch = self._batches[batch_key] = Batch(self._choose(batch_key))
        return batch

    def asks_for_labels(self, request: Request) -> bool:
        """Return whether the response depends on labels of the namespace.

        KYVERNO: this includes all rules that run before the response, whether or not
        they match; their action is computed without labels
        (pkg/utils/engine/labels.go).
        """
        if not request.labels_known and self._may_enforce_by_labels():
            return True
        return any(
            (
                reads_namespace_labels(rule.ir.match, rule.ir.exclude)
                or any(each.selector is not None for each in rule.ir.action.overrides)
            )
            and (
                policy.emit_warning
                or rule_action(policy, rule.ir, request.namespace, {}) == ENFORCE
            )
            for policy, rules in self.entries
            for rule in rules
        )

    def _may_enforce_by_labels(self) -> bool:
        """Return whether labels of the namespace may turn an audit into a denial."""
        return any(
            each.selector is not None and each.action == ENFORCE
            for policy, rules in self.entries
            for rule in rules
            for each in (*policy.action.overrides, *rule.ir.action.overrides)
        )

    def is_slow(self, policy: PolicyIR) -> bool:
        """Return whether any rule of the policy may make an external call."""
        return any(
            rule.effects & SLOW
            for candidate, rules in self.entries
            if candidate is policy
            for rule in rules
        )

    def _travels(self, policy: PolicyIR, rules: Sequence[LinkedRule]) -> bool:
        reporting = self.reporting
        return reporting is not None and any(
            reporting.travels(policy, rule.ir.name) for rule in rules
        )

    def _choose(self, batch_key: _Where) -> Chosen:
        action, namespace, pairs = batch_key
        labels = dict(pairs)
        effective = AUDIT if action in (_WARN, _TRAVEL) else action
        chosen: list[tuple[PolicyIR, Sequence[LinkedRule], str]] = []
        for policy, rules in self.entries:
            if action == _WARN and not policy.emit_warning:
                continue
            if action == _TRAVEL and (
                self.is_slow(policy) or not self._travels(policy, rules)
            ):
                continue
            chosen_rules = [
                r
                for r in rules
                if rule_action(policy, r.ir, namespace, labels) == effective
            ]
            if chosen_rules:
                actions = [
                    (r.ir.name, r.ir.rule_type, r.ir.action) for r in chosen_rules
                ]
                overall = response_action(policy, actions, namespace, labels)
                chosen.append((policy, chosen_rules, overall))
        return chosen


class ValidationPlan:
    """The policies that may apply to one request, selected but not yet run."""

    __slots__ = (
        "_begun",
        "_engine",
        "_prepared",
        "_request",
        "audits",
        "fails",
        "left_out",
        "needs_io",
        "reads_namespace",
        "reads_registry",
        "travels",
        "travels_late",
        "triggers",
        "warns",
    )

    def __init__(self, engine: Engine, request: Request, prepared: _Prepared) -> None:
        self._engine = engine
        self._request = request
        self._prepared = prepared
        self._begun: Evaluation | None = None
        self.needs_io = prepared.needs_io
        self.reads_namespace = prepared.reads_namespace
        self.reads_registry = prepared.reads_registry
        self.warns = prepared.warns
        self.fails = prepared.fails
        self.audits = prepared.audits
        self.triggers = prepared.triggers is not None
        self.travels = prepared.travels
        self.travels_late = prepared.travels_late
        self.left_out: list[tuple[PolicyIR, Exception]] = []
        """Policies with rules that could not be evaluated, with the reasons. Their
        responses contain an error for each such rule."""

    def triggered(self, deadline_ns: int, pace: Pace | None = None) -> list[Triggered]:
        """Return the background rules that the request triggers. Raises: Preempted."""
        triggers = self._prepared.triggers
        if triggers is None:
            return []
        return triggers.evaluate(self._engine.open(self._request, deadline_ns, pace))

    def triggered_by_match(self, deadline_ns: int) -> list[Triggered]:
        """Return the background rules that match; the pool evaluates them."""
        triggers = self._prepared.triggers
        if triggers is None:
            return []
        return triggers.by_match(self._engine.open(self._request, deadline_ns))

    def asks_for_labels(self) -> bool:
        """Return whether the response depends on labels of the request's namespace."""
        return self._prepared.asks_for_labels(self._request)

    def enforce(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate the enforcing rules. Raises: Preempted."""
        return self._run(ENFORCE, deadline_ns, pace, begins=True)

    def reached(
        self, error: Exception, deadline_ns: int, pace: Pace
    ) -> Sequence[PolicyResponse]:
        """Return the responses if ``enforce`` is late or will never start.

        Results so far are kept, and ``error`` is the result of all other rules. If
        ``enforce`` never started, this method runs it as far as ``pace`` allows.
        """
        begun = self._begun
        if begun is None:
            begun = self._evaluation(ENFORCE, deadline_ns, pace)
            if begun is None:
                return ()
            with contextlib.suppress(Preempted):
                begun.run(pure_only=True)
        responses = begun.so_far(error)
        self.left_out = begun.left_out
        return responses

    def warn(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate the auditing rules of policies with emitWarning."""
        return self._run(_WARN, deadline_ns, pace)

    def audit(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate all auditing rules."""
        return self._run(AUDIT, deadline_ns, pace)

    def audit_ahead(
        self, deadline_ns: int, pace: Pace | None = None
    ) -> Sequence[PolicyResponse]:
        """Evaluate the auditing policies with results for reports, except slow ones."""
        return self._run(_TRAVEL, deadline_ns, pace)

    def travelling(
        self,
        responses: Sequence[PolicyResponse],
        deadline_ns: int,
        pace: Pace | None = None,
        *,
        slow: bool,
    ) -> list[PolicyResponse]:
        """Return the results that a scan cannot reproduce, with messages.

        ``slow`` selects the policies with possible external calls, or all others.
        Raises: Preempted, DependencyError.
        """
        prepared = self._prepared
        if prepared.reporting is None:
            return []
        return [
            self.with_messages(response, deadline_ns, pace)
            if response.passed or response.skipped
            else response
            for response in prepared.reporting.travelling(responses)
            if prepared.is_slow(response.policy) is slow
        ]

    def with_messages(
        self, response: PolicyResponse, deadline_ns: int, pace: Pace | None = None
    ) -> PolicyResponse:
        """Return a response of this plan with all results and their messages.

        Rules decided by the fast program run again, with messages. Raises:
        DependencyError.
        """
        quiet = {*response.passed, *response.skipped}
        results = list(response.results)
        context = self._engine.open(self._request, deadline_ns, pace)
        for policy, rules in self._prepared.entries:
            if policy is not response.policy:
                continue
            first = True
            for rule in rules:
                is_asked = rule.ir.name in quiet
                try:
                    if not self._engine.matches(rule, context):
                        continue
                    if is_asked:
                        scope = self._engine.scope(rule, context, first=first)
                        results += rule.explain(self._request, scope)
                except BudgetExceeded as error:
                    results += [not_evaluated(rule.ir, error)] if is_asked else []
                first = False
        return replace(response, results=results, passed=(), skipped=())

    def _run(
        self, action: str, deadline_ns: int, pace: Pace | None, *, begins: bool = False
    ) -> Sequence[PolicyResponse]:
        evaluation = self._evaluation(action, deadline_ns, pace)
        if evaluation is None:
            return ()
        if begins:
            self._begun = evaluation
        evaluation.run()
        if evaluation.left_out:
            self.left_out += evaluation.left_out
        return evaluation.responses()

    def _evaluation(
        self, action: str, deadline_ns: int, pace: Pace | None
    ) -> Evaluation | None:
        batch = self._prepared.batch(action, self._request)
        if not batch:
            return None
        return batch.open(self._engine, self._request, deadline_ns, pace)


class ValidationPlanner(PlannerOf[LinkedRule, _Prepared, ValidationPlan]):
    """Creates plans for validate rules."""

    __slots__ = ()

    def __init__(
        self,
        engine: Engine,
        source: RuleSource[LinkedRule],
        background_user: str | None = None,
        reporting: Reporting | None = None,
    ) -> None:
        """``background_user``: the background pool's user; None: nothing is triggered.

        ``reporting`` is None if no results are sent to reports.
        """
        prepare = partial(
            _prepare, background_user=background_user, reporting=reporting
        )
        super().__init__(engine, source, prepare, ValidationPlan)


def _prepare(
    picked: Picked[LinkedRule],
    _elsewhere: Sequence[PolicyCandidates[LinkedRule]],
    background_user: str | None,
    reporting: Reporting | None,
) -> _Prepared | None:
    entries: Picked[LinkedRule] = []
    for policy, linked in picked:
        rules = [
            rule
            for rule in linked
            if rule.ir.rule_type in _VALIDATING or checks_images(rule.ir)
        ]
        if rules:
            entries.append((policy, rules))
    triggers = None if background_user is None else _triggers(picked, background_user)
    return _Prepared(entries, triggers, reporting) if entries or triggers else None


def _triggers(
    picked: Picked[LinkedRule], background_user: str
) -> LinkedTriggers | None:
    triggering = [
        (policy, [rule.ir for rule in linked if _is_background(rule.ir)])
        for policy, linked in picked
    ]
    triggering = [(policy, rules) for policy, rules in triggering if rules]
    return LinkedTriggers(triggering, background_user) if triggering else None


def _is_background(rule: RuleIR) -> bool:
    if rule.unsupported:
        return False
    mutates_existing = rule.mutate is not None and rule.mutate.targets is not None
    return rule.rule_type == "generate" or mutates_existing
