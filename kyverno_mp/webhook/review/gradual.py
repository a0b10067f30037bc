"""Relax the denials of policies that are not yet enforced for a request's subject.

Room: webhook. Takes: the standing of each policy, responses that would deny. Gives: the
responses and verdicts in force. Next: admission/denial.py decides.
Source: docs/gradual-enforcement.md.

PERF: only a request that a policy with a rollout would deny comes here.
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
        return [
            relaxed(response)
            if blocks(response) and not self.enforces(response.policy, request)
            else response
            for response in responses
        ]

    def verdicts_in_force(self, verdicts: Verdicts, request: Request) -> Verdicts:
        """Return the verdicts, relaxed where a policy is not enforced yet."""
        # PERF: a generator would add a call for each policy.
        for verdict in verdicts.found:
            if verdict.denies and verdict.response.policy.rollout is not None:
                break
        else:
            return verdicts
        found = [
            _relaxed(verdict)
            if verdict.denies and not self.enforces(verdict.response.policy, request)
            else verdict
            for verdict in verdicts.found
        ]
        responses = [verdict.response for verdict in found]
        return Verdicts(found, responses, verdicts.is_quiet)


def _relaxed(verdict: Verdict) -> Verdict:
    response = relaxed(verdict.response)
    actions = tuple(action for action in verdict.actions if action != DENY)
    return replace(verdict, response=response, actions=actions, denies=False)
