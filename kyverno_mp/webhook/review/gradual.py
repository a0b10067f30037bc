"""Relax the denials of policies that are not yet enforced for a request's subject.

Room: webhook. Takes: the standing of each policy, responses that would deny. Gives: the
responses and verdicts in force. Next: admission/denial.py decides.
May touch: nothing outside its arguments. Source: docs/gradual-enforcement.md.

PERF: only a request that would be denied comes here; policies that are enforced for
all subjects cost it one comparison each.
"""

from collections.abc import Sequence
from dataclasses import replace

from kyverno_mp.admission.denial import blocks
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.gradual import Standings, first_step, position, relaxed
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.program.validating_policy.group import DENY, Verdict, Verdicts


class Gradual:
    """The policies' standings, which a worker follows."""

    __slots__ = ("_standing",)

    def __init__(self, standing: Standings = first_step) -> None:
        """``standing``: by default the first step of each policy."""
        self._standing = standing

    def enforces(self, policy: PolicyIR, request: Request) -> bool:
        """Return whether the policy is enforced for the request's subject."""
        if policy.rollout is None:
            return True
        return position(policy, request) < self._standing(policy).percent

    def in_force(
        self, responses: Sequence[PolicyResponse], request: Request
    ) -> Sequence[PolicyResponse]:
        """Return the responses, relaxed where a policy is not enforced yet."""
        if all(response.policy.rollout is None for response in responses):
            return responses
        return [
            relaxed(response)
            if blocks(response) and not self.enforces(response.policy, request)
            else response
            for response in responses
        ]

    def verdicts_in_force(self, verdicts: Verdicts, request: Request) -> Verdicts:
        """Return the verdicts, relaxed where a policy is not enforced yet."""
        if all(verdict.response.policy.rollout is None for verdict in verdicts.found):
            return verdicts
        found = [
            _relaxed(verdict)
            if verdict.denies and not self.enforces(verdict.response.policy, request)
            else verdict
            for verdict in verdicts.found
        ]
        responses = [verdict.response for verdict in found]
        return Verdicts(found, responses, verdicts.is_quiet)


def enforced_only(responses: Sequence[PolicyResponse]) -> Sequence[PolicyResponse]:
    """Return the responses that belong to a denial."""
    if any(response.is_relaxed for response in responses):
        return [response for response in responses if not response.is_relaxed]
    return responses


def _relaxed(verdict: Verdict) -> Verdict:
    response = relaxed(verdict.response)
    actions = tuple(action for action in verdict.actions if action != DENY)
    return replace(verdict, response=response, actions=actions, denies=False)
