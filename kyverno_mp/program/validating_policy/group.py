"""Keep the policies and copies that may match requests of one kind.

Room: program. Takes: linked policies, a Request. Gives: Group, RequestKind, and
Verdicts, shared by reviews with the same outcome. Next: plan.py.
Source: docs/architecture.md 3 (the compiler does the work that needs no request).

PERF: policies of a set have few outcomes ("all passed"). Reviews with the same outcome
share its Verdicts, so metrics can recognise an outcome without building labels.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kyverno_mp.expr.effects import EFFECT_REGISTRY
from kyverno_mp.expr.reads import Reads, identifies
from kyverno_mp.ir.cel import EXTRACTED
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.limits import (
    OUTCOMES_OF_A_GROUP_MAX,
    OUTCOMES_WITH_MESSAGES_MAX,
    READS_PLACES_MAX,
    RECALL_MESSAGES_CHARACTERS_MAX,
)
from kyverno_mp.program.plans.planner import SLOW
from kyverno_mp.program.recall.verdicts import CachedVerdict, Recall
from kyverno_mp.program.request import Request, RequestKind
from kyverno_mp.program.result import (
    FAIL,
    VALIDATION,
    PolicyResponse,
    RuleResult,
    SharedResponses,
)
from kyverno_mp.program.validating_policy.evaluate import (
    PASSED,
    SKIPPED,
    Body,
    LinkedValidatingPolicy,
)

DENY: Final = "Deny"
_SKIPPED, _PASSED, _FAILED = range(3)
Done = list[list[RuleResult] | None]
"""The results of each member, by position; None before it was evaluated."""
Outcome = CachedVerdict
"""A code for each member of a group, and the messages of failed members.

A failed member has the code of ``_FAILED`` plus the index of its validation.
"""
_INDEX_MAX: Final = 255 - _FAILED
"""The largest index that a code, which is a byte, can express."""
_PLACES_ADDED_MAX: Final = 4 * READS_PLACES_MAX
"""As in plans/batch_layout.py."""
_WORTH_LEAST: Final = 2
"""PERF: a cache look-up takes as long as evaluating one policy."""


def request_of(kind: RequestKind, namespace: str) -> Request:
    """Return a request of a kind, with nothing else in it."""
    resource = {
        "group": kind.group,
        "version": kind.version,
        "resource": kind.resource,
    }
    return Request(
        operation=kind.operation,
        subresource=kind.subresource,
        namespace=namespace or ("default" if kind.is_namespaced else ""),
        review_request={"resource": resource},
    )


@dataclass(slots=True)
class Verdict:
    """The response of one policy, and the policy's actions.

    ``denies``: a failure or an error denies the request. An error of the service, as
    opposed to an expression, denies only with failurePolicy Fail.
    """

    response: PolicyResponse
    actions: tuple[str, ...]
    denies: bool
    is_derived: bool = False
    """A scan returns the same results."""


@dataclass(slots=True)
class Verdicts:
    """The verdicts of one review, in policy order.

    Reviews with equal outcomes share their verdicts, so they are read-only, and
    ``responses`` are SharedResponses. ``is_quiet``: every policy passed or was skipped
    by its conditions.
    """

    found: Sequence[Verdict]
    responses: Sequence[PolicyResponse]
    is_quiet: bool = False


class Member(NamedTuple):
    """A policy of a group; ``at``: its position in policy order."""

    at: int
    linked: LinkedValidatingPolicy
    bodies: tuple[Body, ...]
    passed: Verdict
    skipped: Verdict


class Group:
    """The policies that may match requests of one kind."""

    __slots__ = (
        "_name",
        "_outcomes",
        "_with_messages",
        "fails",
        "in_turn",
        "is_used",
        "members",
        "needs_io",
        "others",
        "reads_namespace",
        "reads_registry",
        "recall",
    )

    def __init__(
        self,
        policies: Sequence[LinkedValidatingPolicy],
        request: Request,
        outcomes: "Outcomes",
    ) -> None:
        """``request``: a request of this kind; ``outcomes``: those with messages."""
        applicable = [(policy, policy.bodies_for(request)) for policy in policies]
        applicable = [(each, bodies) for each, bodies in applicable if bodies]
        self.members = tuple(
            Member(at, each, bodies, _shared(each, PASSED), _shared(each, SKIPPED))
            for at, (each, bodies) in enumerate(applicable)
        )
        self.in_turn = sorted(
            self.members, key=lambda each: bool(each.linked.ir.effects & SLOW)
        )
        """The members in order of evaluation: slow members are last."""
        self.needs_io = any(member.linked.ir.effects & SLOW for member in self.members)
        self.reads_registry = any(
            each.linked.ir.effects & EFFECT_REGISTRY for each in self.members
        )
        self.fails = any(fails(each.linked) for each in self.members)
        self.reads_namespace = any(each.linked.reads_namespace for each in self.members)
        self.recall, recalled = _recall(self.members)
        """Cache keys of the outcomes of policies that read only fields of the object,
        None without such policies."""
        self.others = [each for each in self.in_turn if each.at not in recalled]
        """The members that every review evaluates, in order of evaluation."""
        self.is_used = False
        """Whether a review used it."""
        self._outcomes: Outcomes = {}
        self._with_messages = outcomes
        self._name = object()
        """The group in keys of ``_with_messages``; with the group itself, that would be
        a reference cycle."""

    def outcome(self, done: Done, recalled: Outcome | None) -> Outcome | None:
        """Return the outcome of a review; None if it cannot be shared.

        ``done``: the results of each member, by position; ``known``: the outcome of the
        members that were not evaluated. Failures of ``others`` are not shared, because
        their messages can contain names.
        """
        if recalled is None:
            recalled = self.recalled(done)
        if recalled is None or not self.others:
            return recalled
        codes = bytearray(recalled.codes)
        for member in self.others:
            code = _code_of(done[member.at])
            if code not in (_PASSED, _SKIPPED):
                return None
            codes[member.at] = code
        return Outcome(bytes(codes), recalled.messages)

    def recalled(self, done: Done) -> Outcome | None:
        """Return the outcome without ``others``; None if it cannot be cached."""
        codes, messages = bytearray(len(self.members)), []
        skipped = {member.at for member in self.others}
        for at, results in enumerate(done):
            if at in skipped:
                continue
            code = _code_of(results)
            if code is None:
                return None
            if code >= _FAILED:
                assert results is not None
                messages.append(results[0].message)
            codes[at] = code
        if sum(map(len, messages)) > RECALL_MESSAGES_CHARACTERS_MAX:
            return None
        return Outcome(bytes(codes), tuple(messages))

    def fill(self, done: Done, recalled: Outcome) -> None:
        """Add the results of the members that were not evaluated."""
        skipped = {member.at for member in self.others}
        messages = iter(recalled.messages)
        for member, code in zip(self.members, recalled.codes, strict=True):
            if member.at not in skipped:
                verdict_of_code = _verdict_of(member, code, messages)
                done[member.at] = verdict_of_code.response.results

    def verdicts(self, outcome: Outcome) -> Verdicts:
        """Return the verdicts of an outcome; all its reviews share them."""
        is_quiet = not outcome.messages
        key: _Key = outcome.codes if is_quiet else (self._name, outcome)
        outcomes = self._outcomes if is_quiet else self._with_messages
        shared = outcomes.get(key)
        if shared is None:
            most = OUTCOMES_OF_A_GROUP_MAX if is_quiet else OUTCOMES_WITH_MESSAGES_MAX
            if len(outcomes) >= most:
                outcomes.clear()
            messages = iter(outcome.messages)
            verdicts = tuple(
                _verdict_of(each, code, messages)
                for each, code in zip(self.members, outcome.codes, strict=True)
            )
            responses = SharedResponses(each.response for each in verdicts)
            shared = outcomes[key] = Verdicts(verdicts, responses, is_quiet)
        return shared


_Key = bytes | tuple[object, Outcome]
Outcomes = dict[_Key, Verdicts]
"""Verdicts by the codes of a group's outcome, or by group and outcome."""


def _verdict_of(member: Member, code: int, messages: Iterator[str]) -> Verdict:
    if code >= _FAILED:
        failed = RuleResult("", VALIDATION, FAIL, next(messages))
        failed.validation = code - _FAILED
        return verdict(member.linked, [failed], is_evaluated=True)
    return member.passed if code == _PASSED else member.skipped


def _recall(members: Sequence[Member]) -> tuple[Recall | None, Collection[int]]:
    """Return the cache keys of the members that are cacheable, and their positions.

    PERF: a policy that reads an object's name would make every key new.
    """
    reads, places, recalled = Reads(), 0, set()
    for member in members:
        linked_reads = member.linked.reads
        is_extracted = any(body.ir.copy == EXTRACTED for body in member.bodies)
        if linked_reads is None or is_extracted or identifies(linked_reads):
            continue
        places += linked_reads.size
        if places > _PLACES_ADDED_MAX:
            break
        reads.add(linked_reads)
        recalled.add(member.at)
    if len(recalled) < _WORTH_LEAST or reads.is_too_large():
        return None, ()
    return Recall(reads, ()), recalled


def _code_of(results: Sequence[RuleResult] | None) -> int | None:
    """Return the code of a member's results; None if no code expresses them."""
    if results is None or len(results) != 1:
        return None
    (rule_result,) = results
    if rule_result is PASSED:
        return _PASSED
    if rule_result is SKIPPED:
        return _SKIPPED
    is_plain = rule_result.status == FAIL and not rule_result.properties
    if not is_plain or not 0 <= rule_result.validation <= _INDEX_MAX:
        return None
    return _FAILED + rule_result.validation


class _Denying(Protocol):
    """A linked policy whose actions can deny a request."""

    @property
    def ir(self) -> ValidatingPolicyIR | ImageValidatingPolicyIR: ...

    @property
    def is_derived(self) -> bool: ...


def fails(linked: _Denying) -> bool:
    """Return whether a request is denied when the policy cannot be evaluated."""
    return linked.ir.policy.failure_policy == "Fail" and DENY in linked.ir.actions


def verdict(
    linked: _Denying, results: list[RuleResult], *, is_evaluated: bool
) -> Verdict:
    """Return a policy's verdict; ``is_evaluated``: the policy could be evaluated.

    KYVERNO: any error of an expression or of a registry denies, regardless of the
    failurePolicy. Otherwise, the owner of a registry could bypass a policy by not
    responding.
    """
    enforces = DENY in linked.ir.actions
    response = PolicyResponse(
        linked.ir.policy, results, "Enforce" if enforces else "Audit"
    )
    denies = enforces if is_evaluated else fails(linked)
    return Verdict(response, linked.ir.actions, denies, linked.is_derived)


def _shared(linked: LinkedValidatingPolicy, rule_result: RuleResult) -> Verdict:
    return verdict(linked, [rule_result], is_evaluated=True)
