"""Evaluate recorded reviews with the webhook's engine and one set of policies.

Room: cli. Takes: compiled policies, Lines of a recording. Gives: a Verdict for each.
Next: changes. May touch: the clock, for deadlines.
Source: docs/replay.md; docs/architecture.md 3.

The code is the server's, from the bytes of a review to the bytes of the answer. Only
the cluster is missing: a policy that needed it, or may have read a redacted value, is
undecided, and then the request is neither allowed nor mutated.
"""

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from kyverno_mp.cli.replay.cel import CelPolicies, CelReplay
from kyverno_mp.cli.replay.current import CurrentReview, NotedEngine
from kyverno_mp.cli.replay.facts import ClusterFacts, known_ports
from kyverno_mp.cli.replay.redacted import RedactedReads
from kyverno_mp.cli.replay.unrecorded import unrecorded
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.program.engine import Clock, link_rule
from kyverno_mp.program.list_source import ListSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.result import ERROR, FAIL, PASS, PolicyResponse
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.recording.denying import denies
from kyverno_mp.webhook.recording.format import Line
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import CEL_WEBHOOKS, MPOL, MUTATE, NMPOL, Route

ALLOWED: Final = "allowed"
DENIED: Final = "denied"
UNDECIDABLE: Final = "undecidable"
_MUTATING: Final = frozenset({MUTATE, MPOL, NMPOL})
_NO_POLICY: Final = ""
"""Key that marks a request which could not be evaluated at all."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of one set of policies about one request."""

    outcome: str
    policies: tuple[str, ...] = ()
    """Keys of the policies that deny or mutate."""
    reasons: tuple[str, ...] = ()
    """``policy/rule: message`` of each denying rule."""
    patch: tuple[dict[str, Json], ...] = ()
    undecided: tuple[tuple[str, str], ...] = ()
    """(policy, data that its decision needs), sorted."""
    took_part: frozenset[str] = frozenset()
    """Keys of the policies with rules that matched."""
    is_validated: bool = True
    """Whether policies decide independently; False if one changes the next one's
    input."""
    audited: tuple[tuple[str, str], ...] = ()
    """(policy, ``policy/rule: message``) of each rule that fails without a denial."""
    audits_undecided: tuple[tuple[str, str], ...] = ()
    """(policy, data that its audit needs), sorted."""


class _Response(msgspec.Struct):
    allowed: bool
    patch: str = ""


class _Answer(msgspec.Struct):
    response: _Response


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_PATCH: Final = msgspec.json.Decoder(list[dict[str, Json]])


class Replayer:
    """One set of policies, linked once and applied to many reviews."""

    def __init__(
        self,
        policies: Sequence[CompiledPolicy],
        cel: CelPolicies | None = None,
        facts: ClusterFacts | None = None,
        *,
        audits: bool = False,
    ) -> None:
        """Link the policies. ``audits``: verdicts have the results of Audit, too."""
        in_cel = cel or CelPolicies()
        self.cel = CelReplay(in_cel)
        self._current = current = CurrentReview()
        self._reads = RedactedReads(policies)
        self._asking = frozenset(
            [
                policy.policy.key
                for policy in policies
                if any(rule.effects for rule in policy.rules)
            ]
            + [policy.policy.key for policy in in_cel.all if policy.effects]
        )
        clock = Clock(now=self._now, monotonic_ns=time.monotonic_ns)
        self._engine = NotedEngine(
            unrecorded(
                self._note,
                current,
                self._note_readers,
                None if facts is None else known_ports(self._note, facts),
            ),
            clock,
        )
        planner = ValidationPlanner(self._engine, ListSource(policies, link_rule))
        mutations = MutationPlanner(self._engine, ListSource(policies, link_mutation))
        self._service = Service(
            Dependencies(
                records=current,
                monotonic_ns=time.monotonic_ns,
                roles=current,
                namespaces=current,
                top_kind=current.top_kind,
                audit_queue=cast("Any", current) if audits else None,
                sink=current if audits else None,
            ),
            handlers_of(
                SnapshotEvaluate(lambda: planner),
                SnapshotMutate(lambda: mutations),
                cel=self.cel.planners(self._engine),
            ),
        )

    def _now(self) -> datetime:
        """Return the time of the review."""
        assert self._current.line is not None
        return datetime.fromtimestamp(self._current.line.time_ms / 1000, UTC)

    def _note(self, need: str) -> None:
        context = self._engine.context
        policy = context.runtime.policy if context is not None else None
        policy = getattr(getattr(policy, "ir", None), "policy", policy)
        self._current.lacking.add((getattr(policy, "key", _NO_POLICY), need))

    def _note_readers(self, need: str) -> None:
        keys = self.cel.reading_namespace()
        self._current.lacking |= {(key, need) for key in keys}

    def verdict(self, line: Line, body: bytes, route: Route) -> Verdict:
        """Evaluate one review; ``body``: the AdmissionReview's bytes."""
        current = self._current
        current.line, current.responses = line, ()
        current.codes, current.lacking = [], set()
        current.audits, current.audited = [], []
        self.cel.candidates = ()
        is_cel = route.webhook in CEL_WEBHOOKS
        try:
            answer = self._service.answer(route, b"", body)
        except HttpError as error:
            return _undecidable({(_NO_POLICY, f"the review: {error}")})
        assert isinstance(answer, bytes), "without lanes, nothing is answered later"
        undecided = self._undecided(line, is_cel=is_cel)
        response = _ANSWER.decode(answer).response
        if route.webhook in _MUTATING:
            return self._mutated(response, undecided)
        denying = list(filter(denies, current.responses))
        return self._with_audits(self._validated(response, undecided, denying))

    def _with_audits(self, verdict: Verdict) -> Verdict:
        """Run the audits that follow the answer, and add their failures."""
        current = self._current
        current.lacking = set()
        for audit in current.audits:
            audit()
        undecided = {policy for policy, _ in (*current.lacking, *verdict.undecided)}
        return replace(
            verdict,
            audited=tuple(
                (response.policy.key, failure)
                for response in current.audited
                if response.policy.key not in undecided
                for failure in _failures(response)
            ),
            audits_undecided=tuple(sorted(current.lacking)),
        )

    def _undecided(self, line: Line, *, is_cel: bool) -> set[tuple[str, str]]:
        """Return the policies whose results are unknown, each with the reason."""
        current = self._current
        undecided = set(current.lacking)
        if undecided:
            # Policies share data that one of them has requested.
            noted = {policy for policy, _ in undecided}
            whats = sorted({need for _, need in undecided})
            undecided |= {
                (response.policy.key, ", ".join(whats))
                for response in current.responses
                if response.policy.key in self._asking
                and response.policy.key not in noted
            }
        for code in current.codes:
            undecided.add((_NO_POLICY, f"not evaluated: {code}"))
        if line.redacted and is_cel:
            reason = f"redacted: {', '.join(line.redacted)}"
            undecided |= {(key, reason) for key in self.cel.candidates}
        elif line.redacted:
            for key in self._reads.matching(line.redacted):
                undecided.add((key, "redacted annotations"))
            for response in current.responses:
                policy = response.policy
                for rule in _rules_of(response):
                    identity = (policy.key, policy.kind)
                    if self._reads.concerns(identity, rule, line.redacted):
                        undecided.add(
                            (policy.key, f"redacted: {', '.join(line.redacted)}")
                        )
        return undecided

    def _validated(
        self,
        response: _Response,
        undecided: set[tuple[str, str]],
        denying: Sequence[PolicyResponse],
    ) -> Verdict:
        unknown = {policy for policy, _ in undecided}
        denying = [
            policy_response
            for policy_response in denying
            if policy_response.policy.key not in unknown
        ]
        if denying:
            # One denial is enough, even if other policies are undecided.
            return self._finished(DENIED, undecided, denying)
        if undecided:
            return self._finished(UNDECIDABLE, undecided)
        return self._finished(ALLOWED if response.allowed else DENIED, undecided)

    def _mutated(self, response: _Response, undecided: set[tuple[str, str]]) -> Verdict:
        responses = self._current.responses
        if undecided:
            return self._finished(UNDECIDABLE, undecided, is_validated=False)
        if not response.allowed:
            denying = list(filter(denies, responses))
            return self._finished(DENIED, undecided, denying)
        mutating = [
            policy_response
            for policy_response in responses
            if any(r.status == PASS for r in policy_response.results)
        ]
        patch = (
            _PATCH.decode(base64.b64decode(response.patch)) if response.patch else []
        )
        return self._finished(ALLOWED, undecided, mutating if patch else (), patch)

    def _finished(
        self,
        outcome: str,
        undecided: set[tuple[str, str]],
        policies: Sequence[PolicyResponse] = (),
        patch: Sequence[dict[str, Json]] = (),
        *,
        is_validated: bool = True,
    ) -> Verdict:
        taking = {
            response.policy.key
            for response in self._current.responses
            if _rules_of(response)
        }
        reasons = [each for response in policies for each in _failures(response)]
        return Verdict(
            outcome=outcome,
            policies=tuple(
                sorted({policy_response.policy.key for policy_response in policies})
            ),
            reasons=tuple(reasons),
            patch=tuple(patch),
            undecided=tuple(sorted(undecided)),
            took_part=frozenset(taking | {policy for policy, _ in undecided}),
            is_validated=is_validated,
        )


def _failures(response: PolicyResponse) -> list[str]:
    """Return ``policy/rule: message`` of each rule that failed; a rule may be ""."""
    key = response.policy.key
    return [
        f"{'/'.join(filter(None, (key, rule_result.rule)))}: {rule_result.message}"
        for rule_result in response.results
        if rule_result.status in (FAIL, ERROR)
    ]


def _rules_of(response: PolicyResponse) -> list[str]:
    """Return the rules that matched."""
    rules = [result.rule for result in response.results]
    return [*response.passed, *response.skipped, *rules]


def _undecidable(undecided: set[tuple[str, str]]) -> Verdict:
    return Verdict(UNDECIDABLE, undecided=tuple(sorted(undecided)))
