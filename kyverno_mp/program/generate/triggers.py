"""Decide which generate and mutate-existing rules an admission request triggers.

Room: program. Takes: the generate and mutate-existing rules that may match a request.
Gives: LinkedTriggers; Triggered, which webhook/triggers records. Next:
program/generate/rule.py.
Source: docs/behaviour/controllers 5.2; docs/behaviour/engine 8.3.

A rule with possible external calls is only matched here. The background pool evaluates
it, because no answer should wait for such a call.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from kyverno_mp.errors import InputError
from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_REGISTRY
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program import result
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.generate.requester import OLD_OBJECT, mentions, needs_review
from kyverno_mp.program.generate.rule import LinkedGeneration
from kyverno_mp.program.recall.namespace_reads import reads_namespace
from kyverno_mp.program.request import Request, copy_of
from kyverno_mp.program.rule_gate import RuleGate

GENERATE: Final = "generate"
MUTATE: Final = "mutate"
CEL_MUTATE: Final = "cel-mutate"
"""A MutatingPolicy as a whole: it has no rules."""
CEL_GENERATE: Final = "cel-generate"
"""A GeneratingPolicy; its single rule has the policy's name."""
_SLOW: Final = EFFECT_CLUSTER | EFFECT_REGISTRY
_DELETE: Final = "DELETE"


class Triggered(msgspec.Struct, frozen=True):
    """Rules of one policy that the request triggers, to be processed together.

    ``deletes``: the trigger is being deleted, or no longer matches, so the objects that
    the rules generated for it have to be deleted. ``reads_old``: a rule reads the old
    object, which is unavailable later.
    """

    type: str
    policy: str
    rules: tuple[str, ...]
    deletes: bool = False
    synchronize: bool = False
    reads_old: bool = False
    unchecked: bool = False
    """The pool has to check whether the trigger meets the conditions."""
    needs_review: bool = False
    """A rule depends on what only a proved review tells: the user, the old object."""


class _Rule:
    """One linked rule."""

    __slots__ = (
        "alone",
        "gate",
        "generation",
        "ir",
        "is_plain",
        "is_slow",
        "lists_delete",
        "needs_review",
        "reads_old",
        "synchronize",
    )

    def __init__(self, policy: PolicyIR, ir: RuleIR) -> None:
        self.ir = ir
        self.gate = RuleGate(policy, ir)
        self.generation = (
            LinkedGeneration(policy, ir) if ir.rule_type == GENERATE else None
        )
        self.is_slow = bool(ir.effects & _SLOW)
        self.is_plain = self.gate.is_open and not (self.is_slow or ir.exceptions)
        """Whether the rule's match alone decides."""
        self.lists_delete = any(
            _DELETE in resource_filter.operations
            for resource_filter in ir.match.filters
        )
        self.reads_old = mentions(ir, (OLD_OBJECT,), with_users=False)
        self.needs_review = needs_review(ir)
        self.synchronize = ir.generate is not None and ir.generate.synchronize
        """Whether the generated objects are synchronised with the trigger."""
        kind = GENERATE if ir.rule_type == GENERATE else MUTATE
        self.alone = {
            deletes: _of(kind, policy, [self], deletes=deletes)
            for deletes in (False, True)
        }
        """The Triggered records if no other rule of the policy applies."""


_Applies = tuple[_Rule, bool]
"""A rule, and whether it has to delete its generated objects."""


class _Policy:
    """The rules of one policy that run in the background."""

    __slots__ = ("generating", "ir", "mutating")

    def __init__(self, ir: PolicyIR, rules: Iterable[RuleIR]) -> None:
        self.ir = ir
        linked = [_Rule(ir, rule) for rule in rules]
        self.generating = [rule for rule in linked if rule.generation is not None]
        self.mutating = [rule for rule in linked if rule.generation is None]

    @property
    def stops_early(self) -> bool:
        """Whether a later rule depends on a rule that is not evaluated here."""
        return self.ir.apply_rules == "One" and any(r.is_slow for r in self.generating)

    def scope(self, rule: _Rule, context: RequestContext) -> RuleContext:
        """Open a scope for a rule, charged to the policy."""
        self.begin(context)
        return context.rule_scope(rule.ir.name, policy_namespace=self.ir.namespace)

    def begin(self, context: RequestContext) -> None:
        """Charge the following steps to the policy."""
        context.runtime.begin_policy(self.ir, is_tenant=bool(self.ir.namespace))


class LinkedTriggers:
    """The rules that one set of candidates may trigger; shared by requests."""

    __slots__ = ("_background_user", "_policies", "reads_namespace")

    def __init__(
        self,
        entries: Iterable[tuple[PolicyIR, Sequence[RuleIR]]],
        background_user: str,
    ) -> None:
        """``background_user``: rules skip this user's requests unless they opt in."""
        self._background_user = background_user
        self._policies = [_Policy(policy, rules) for policy, rules in entries]
        self.reads_namespace = any(
            reads_namespace(policy.ir, rule.ir)
            for policy in self._policies
            for rule in (*policy.generating, *policy.mutating)
        )
        """Whether the result depends on the request's namespace."""

    def evaluate(self, context: RequestContext) -> list[Triggered]:
        """Return the triggered rules. Raises: Preempted, DependencyError."""
        request = context.request
        triggered: list[Triggered] = []
        for policy in self._policies:
            rules = self._asked(policy.generating, request)
            if policy.stops_early:
                applies = [
                    match for rule in rules for match in _by_match(rule, request)
                ]
            else:
                applies = list(_generating(policy, rules, context))
            triggered += _together(policy.ir, applies)
            triggered += [
                rule.alone[False]
                for rule in self._asked(policy.mutating, request)
                if _mutates(policy, rule, context)
            ]
        return triggered

    def by_match(self, context: RequestContext) -> list[Triggered]:
        """Return the rules that match a request; the pool evaluates them.

        Used if a review's evaluation did not finish.
        """
        request = context.request
        triggered: list[Triggered] = []
        for policy in self._policies:
            rules = self._asked(policy.generating, request)
            applies = [match for rule in rules for match in _by_match(rule, request)]
            triggered += _together(policy.ir, applies)
            triggered += [
                rule.alone[False]
                for rule in self._asked(policy.mutating, request)
                if _mutation_matches(rule, request)
            ]
        return triggered

    def _asked(self, rules: Sequence[_Rule], request: Request) -> list[_Rule]:
        if request.username != self._background_user:
            return list(rules)
        return [rule for rule in rules if not rule.ir.skip_background_requests]


def _generating(
    policy: _Policy, rules: Iterable[_Rule], context: RequestContext
) -> Iterator[_Applies]:
    """Yield the generate rules that apply, as upstream's background checks do."""
    request = context.request
    for rule in rules:
        if rule.is_slow:
            yield from _by_match(rule, request)
            continue
        evaluated = _decided(policy, rule, context)
        yield from evaluated
        if evaluated and policy.ir.apply_rules == "One":
            return


def _decided(policy: _Policy, rule: _Rule, context: RequestContext) -> list[_Applies]:
    """Decide on a rule without external calls; return at most one entry."""
    request = context.request
    if request.operation == _DELETE:
        # KYVERNO: for a deletion, match alone decides (controllers 5.2).
        scope = policy.scope(rule, context)
        if rule.gate.matched_exceptions(request, scope):
            return []
        return list(_by_match(rule, request))
    if not rule.is_plain:
        return list(_evaluated(rule, request, policy.scope(rule, context)))
    # PERF: without a scope, a review that triggers the rule takes 59 us instead of 66.
    policy.begin(context)
    if rule.gate.matches(request):
        return [(rule, False)]
    return [(rule, True)] if _matched_before(rule, request) else []


def _evaluated(rule: _Rule, request: Request, scope: RuleContext) -> Iterator[_Applies]:
    assert rule.generation is not None
    rule_result = rule.generation.evaluate(request, scope)
    if rule_result is None:
        return
    if rule_result.status == result.PASS:
        yield rule, False
    elif rule_result.status == result.FAIL and rule.synchronize:
        yield rule, True


def _by_match(rule: _Rule, request: Request) -> Iterator[_Applies]:
    """Yield the possible outcomes of a rule, by its match alone."""
    if request.operation == _DELETE:
        if rule.gate.matches(request):
            if rule.lists_delete:
                yield rule, False
            elif rule.synchronize:
                yield rule, True
        return
    if rule.gate.matches(request):
        yield rule, False
        if not (request.old_object and rule.synchronize):
            return
        # Preconditions may have been true before, but not any longer.
        yield rule, True
    elif _matched_before(rule, request):
        yield rule, True


def _matched_before(rule: _Rule, request: Request) -> bool:
    """Return whether a rule that synchronises matched the old object."""
    if not (rule.synchronize and request.old_object and request.object):
        return False
    before = copy_of(request)
    before.object, before.old_object = request.old_object, {}
    return rule.gate.matches(before)


def _mutates(policy: _Policy, rule: _Rule, context: RequestContext) -> bool:
    request = context.request
    if not _mutation_matches(rule, request):
        return False
    if rule.is_slow:
        return True
    scope = policy.scope(rule, context)
    try:
        if rule.gate.refusal(scope) is not None:
            return False
        return not rule.gate.matched_exceptions(request, scope)
    except InputError:
        return False


def _mutation_matches(rule: _Rule, request: Request) -> bool:
    # KYVERNO: a deletion triggers only rules that list it (controllers 5.2).
    if request.operation == _DELETE and not rule.lists_delete:
        return False
    return rule.gate.matches(request)


def _together(policy: PolicyIR, applies: Iterable[_Applies]) -> Iterator[Triggered]:
    """Group the rules of a policy that have the same task."""
    applies = list(applies)
    if len(applies) == 1:
        ((rule, its),) = applies
        yield rule.alone[its]
        return
    for deletes in (False, True):
        rules = [rule for rule, its in applies if its is deletes]
        if rules:
            yield _of(GENERATE, policy, rules, deletes=deletes)


def _of(
    kind: str, policy: PolicyIR, rules: Sequence[_Rule], *, deletes: bool
) -> Triggered:
    return Triggered(
        kind,
        policy.key,
        tuple(rule.ir.name for rule in rules),
        deletes=deletes,
        synchronize=any(rule.synchronize for rule in rules),
        reads_old=any(rule.reads_old for rule in rules),
        needs_review=any(rule.needs_review for rule in rules),
    )
