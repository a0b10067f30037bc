"""Apply linked policies to a request: the one engine behind webhook, CLI and reports.

Room: program. Takes: Request, candidates of a RuleSource. Gives: PolicyResponses.
Next: admission.encode, cli, reports. May touch: the world only through program/ports.py.
Answer first, explain later: the fast program decides; words are made only for what is
neither pass nor skip (design 3).
Source: spec/engine.md 0.4, 0.5, 6.9, 8; spec/controllers.md 2.5, 2.7.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from kyverno_mp.ir.rules import EFFECT_CLUSTER, EFFECT_REGISTRY, CompiledPolicy, PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.action import (
    AUDIT,
    ENFORCE,
    is_static,
    response_action,
    rule_action,
)
from kyverno_mp.program.context import RequestContext, RuleContext
from kyverno_mp.program.outcome import EXPLAIN, NONE, PASSED
from kyverno_mp.program.ports import World
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.program.rule import LinkedRule

BOTH: frozenset[str] = frozenset({"Fail", "Ignore"})


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks that rules may read, passed in by the edge."""

    now: Callable[[], datetime]
    monotonic_ns: Callable[[], int]


@dataclass(slots=True)
class LinkedPolicy:
    """A policy with its rules linked."""

    ir: PolicyIR
    rules: Sequence[LinkedRule]


class Candidates(Protocol):
    """Policies that may match, each with those of its rules that may match."""

    def candidates(
        self, request: Request
    ) -> Iterable[tuple[PolicyIR, Sequence[LinkedRule]]]:
        """Return the candidates in policy order; rules in rule order."""


def link_rule(policy: PolicyIR, rule: object) -> LinkedRule:
    """Link one rule; what candidates sources call for a rule that is asked for."""
    from kyverno_mp.ir.rules import RuleIR

    assert isinstance(rule, RuleIR)
    return LinkedRule(policy, rule)


def link_policy(compiled: CompiledPolicy) -> LinkedPolicy:
    """Link all validate rules of a policy at once (CLI, tests)."""
    rules = [
        LinkedRule(compiled.policy, rule)
        for rule in compiled.rules
        if rule.rule_type == "validate"
    ]
    return LinkedPolicy(compiled.policy, rules)


class Engine:
    """Runs rules; holds no policies and no state of requests."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world = world
        self._clock = clock

    def _context(self, request: Request, deadline_ns: int) -> RequestContext:
        return RequestContext(
            request,
            self._world,
            now=self._clock.now,
            monotonic_ns=self._clock.monotonic_ns,
            deadline_ns=deadline_ns,
        )

    def needs_io(
        self, candidates: Iterable[tuple[PolicyIR, Sequence[LinkedRule]]]
    ) -> bool:
        """Tell whether a candidate rule may call the cluster, a service or a registry."""
        slow = EFFECT_CLUSTER | EFFECT_REGISTRY
        return any(rule.ir.effects & slow for _policy, rules in candidates for rule in rules)

    def validate(
        self,
        request: Request,
        candidates: Iterable[tuple[PolicyIR, Sequence[LinkedRule]]],
        *,
        action: str = ENFORCE,
        deadline_ns: int = 0,
    ) -> list[PolicyResponse]:
        """Judge by the rules whose effective action is ``action``, fast first.

        Passing and skipped rules are counted, not listed. Policies of which nothing
        matched give no response. Raises: DependencyError (deadline), never an allow.
        """
        context = self._context(request, deadline_ns)
        labels = request.namespace_labels
        responses = []
        for policy, rules in candidates:
            if not policy.admission:
                continue
            chosen = [
                rule
                for rule in rules
                if rule_action(policy, rule.ir, request.namespace, labels) == action
            ] if not all(is_static(policy, r.ir) for r in rules) else [
                rule
                for rule in rules
                if (rule.ir.action.action or policy.action.action or AUDIT) == action
            ]
            response = self._run(policy, chosen, request, context)
            if response is not None:
                response.action = response_action(
                    policy,
                    [(r.ir.name, r.ir.rule_type, r.ir.action) for r in chosen],
                    request.namespace,
                    labels,
                )
                responses.append(response)
        return responses

    def _run(
        self,
        policy: PolicyIR,
        rules: Sequence[LinkedRule],
        request: Request,
        context: RequestContext,
    ) -> PolicyResponse | None:
        response: PolicyResponse | None = None
        first = True
        for rule in rules:
            if not rule.matches(request):
                continue
            if response is None:
                response = PolicyResponse(policy)
            code = (
                rule.fast(request, context.rule_scope(first_rule=first))
                if rule.needs_scope
                else rule.fast_bare(request)
            )
            decided = code == PASSED
            if code == PASSED:
                response.passed_count += 1
            elif code == EXPLAIN:
                found = rule.explain(
                    request, context.rule_scope(first_rule=first), self._scope_for
                )
                response.results.extend(found)
                decided = any(r.status in (result.PASS, result.FAIL) for r in found)
            elif code != NONE:
                response.skipped_count += 1
            first = False
            if decided and policy.apply_rules == "One":
                break
        return response

    def explain_policy(
        self, policy: LinkedPolicy, request: Request, *, deadline_ns: int = 0
    ) -> PolicyResponse:
        """Judge by all rules of a policy, every result with its words (CLI, reports)."""
        context = self._context(request, deadline_ns)
        response = PolicyResponse(policy.ir)
        first = True
        for rule in policy.rules:
            if not rule.matches(request):
                continue
            found = rule.explain(
                request, context.rule_scope(first_rule=first), self._scope_for
            )
            first = False
            response.results.extend(found)
            if policy.ir.apply_rules == "One" and any(
                r.status in (result.PASS, result.FAIL) for r in found
            ):
                break
        response.action = response_action(
            policy.ir,
            policy.ir.rule_actions,
            request.namespace,
            request.namespace_labels,
        )
        return response

    def _scope_for(self, request: Request) -> RuleContext:
        return self._context(request, 0).rule_scope(first_rule=True)
