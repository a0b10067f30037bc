"""Apply linked policies to a request: the one engine for webhook, CLI and reports.

Room: program. Takes: Request, candidates of a RuleSource. Gives: PolicyResponses.
Next: admission.encode, cli, reports. May touch: the cluster data only through
program/ports.py. Answer first, explain later: the fast program decides; messages are
built only for results that are neither pass nor skip.
Source: docs/behaviour/engine 0.4, 0.5, 6.9, 8; docs/behaviour/controllers 2.5, 2.7.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.scope import Pace, Runtime
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR
from kyverno_mp.program import result
from kyverno_mp.program.action import response_action
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.ports import ClusterData, Lock
from kyverno_mp.program.recall.verdicts import VerdictCache
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, not_evaluated
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.program.rule_gate import matches_at_own_cost
from kyverno_mp.program.unlinked_rule import unlinked


class Clock(msgspec.Struct, frozen=True):
    """The two clocks that rules can read; the caller provides them."""

    now: Callable[[], datetime]
    monotonic_ns: Callable[[], int]


class LinkedPolicy(msgspec.Struct):
    """A policy with its validate rules linked, in rule order."""

    ir: PolicyIR
    rules: Sequence[LinkedRule]


def link_rule(policy: PolicyIR, rule: RuleIR) -> LinkedRule:
    """Link one rule; rule sources call it when a rule is first needed.

    SAFETY: a rule that cannot be linked becomes a separate error. If the whole plan
    failed, the rule's author could disable the denials of all policies on a path that
    ignores errors.
    """
    try:
        linked = LinkedRule(policy, rule)
        # Computed here, because a large rule is linked in a thread.
        _ = linked.reads
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        return unlinked(policy, rule, error)
    return linked


def link_policy(compiled: CompiledPolicy) -> LinkedPolicy:
    """Link all validate rules of a policy at once (CLI, tests).

    A rule that this version cannot evaluate is linked, whatever its type: it returns an
    error for each object that it matches, so it cannot be overlooked.
    """
    rules = [
        LinkedRule(compiled.policy, rule)
        for rule in compiled.rules
        if rule.rule_type == "validate" or rule.unsupported or checks_images(rule)
    ]
    return LinkedPolicy(compiled.policy, rules)


def checks_images(rule: RuleIR) -> bool:
    """Return whether a verifyImages rule also has results in the validate stage."""
    verify_images = rule.verify_images
    return verify_images is not None and any(
        b.verify_digest or b.required for b in verify_images.blocks
    )


class Engine:
    """Runs rules. It stores no policies, and caches only recurring results."""

    __slots__ = ("_clock", "_cluster_data", "_images", "linking", "verdicts")

    def __init__(
        self, cluster_data: ClusterData, clock: Clock, linking: Lock | None = None
    ) -> None:
        """``linking``: lock for linking a rule, if threads share the engine."""
        self.linking = linking
        self._cluster_data = cluster_data
        self._clock = clock
        self._images = lambda: cluster_data.settings().images
        self.verdicts = VerdictCache()
        """Cached results for objects that are equal in all fields that rules read."""

    def now_ns(self) -> int:
        """Return the current monotonic time for paces and deadlines."""
        return self._clock.monotonic_ns()

    @property
    def clock(self) -> Clock:
        """The clock of rules."""
        return self._clock

    @property
    def cluster_data(self) -> ClusterData:
        """The cluster data that rules can read."""
        return self._cluster_data

    def open(
        self, request: Request, deadline_ns: int = 0, pace: Pace | None = None
    ) -> RequestContext:
        """Create the JSON context that the rules of one request share.

        ``pace``: called to extend the time slice if the thread must not be blocked for
        long.
        """
        runtime = Runtime(
            now=self._clock.now,
            monotonic_ns=self._clock.monotonic_ns,
            ints_are_numbers=request.ints_are_numbers,
            deadline_ns=deadline_ns,
            pace=pace,
            random_bytes=self._cluster_data.random_bytes,
            resolve_host=self._cluster_data.resolve_host,
            images=self._images,
        )
        request.charge = runtime.charge
        runtime.observer = request.observer
        return RequestContext(request, self._cluster_data, runtime)

    def explain(self, policy: LinkedPolicy, context: RequestContext) -> PolicyResponse:
        """Evaluate all rules of a policy; every result has its message."""
        request = context.request
        response = PolicyResponse(policy.ir)
        first = True
        for rule in policy.rules:
            try:
                if not self.matches(rule, context):
                    continue
                scope = self.scope(rule, context, first=first)
                results = rule.explain(request, scope)
                decides = any(r.status in (result.PASS, result.FAIL) for r in results)
            except BudgetExceeded as error:
                results = [not_evaluated(rule.ir, error)]
                # The rule might have decided.
                decides = True
            first = False
            response.results.extend(results)
            if decides and policy.ir.apply_rules == "One":
                break
        response.action = response_action(
            policy.ir,
            policy.ir.rule_actions,
            request.namespace,
            request.namespace_labels,
        )
        return response

    def matches(self, rule: LinkedRule, context: RequestContext) -> bool:
        """Return whether a rule matches. Raises: BudgetExceeded."""
        request, runtime = context.request, context.runtime
        return matches_at_own_cost(rule.matches, rule.policy, request, runtime)

    def scope(
        self, rule: LinkedRule, context: RequestContext, *, first: bool
    ) -> RuleContext:
        """Create one rule's scope; its steps are charged to the policy.

        KYVERNO: after the first matched rule of a policy, the object in the context is
        the unstructured object with int64 integers (docs/behaviour/engine 0.2).
        """
        runtime = context.runtime
        if runtime.policy is not rule.policy:
            runtime.begin_policy(rule.policy, is_tenant=bool(rule.policy.namespace))
        else:
            runtime.begin_rule()
        runtime.ints_are_numbers = first and context.request.ints_are_numbers
        return context.rule_scope(rule.ir.name, policy_namespace=rule.policy.namespace)
