"""Apply policies in the evaluation modes HTTP and Envoy to requests.

Room: cli. Takes: AuthorizationPolicyIRs, requests. Gives: Verdicts. Next: evaluate.
May touch: the cluster and services, through the ports of CEL.
Source: docs/behaviour/cel 15.7.
"""

from collections.abc import Iterator, Sequence
from functools import cache

from kyverno_mp.cli.apply.stages.admission_policies import Verdict
from kyverno_mp.egress.key_sets import KeySets
from kyverno_mp.expr.cel.authz.messages import Message
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.authorization import Authorizer, Check, Decision
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.result import RuleResult

_NO_ANSWER = "request does not match"


class AuthorizationStage:
    """Policies linked once, applied to many requests; each policy is alone."""

    def __init__(
        self, policies: Sequence[AuthorizationPolicyIR], ports: CelPorts
    ) -> None:
        self._ports = ports
        self._key_sets = None if ports.services is None else KeySets(ports.services)
        self._of_mode = cache(lambda mode: Authorizer(policies, mode))

    def decide(
        self, mode: str, request: Message, runtime: Runtime
    ) -> Iterator[Verdict]:
        """Yield the verdict of each policy of the mode."""
        check = Check(request, runtime, self._ports, self._key_sets)
        for decision in self._of_mode(mode).decisions(check):
            yield Verdict(decision.policy, _result(decision))


def _result(decision: Decision) -> RuleResult:
    status, message = result.SKIP, _NO_ANSWER
    if decision.error is not None:
        status, message = result.ERROR, decision.error.message
    elif decision.verdict is not None:
        status = result.PASS if decision.is_allowed else result.FAIL
        message = decision.verdict.message
    rule_result = RuleResult(decision.policy.name, result.VALIDATION, status, message)
    if decision.error is not None:
        rule_result.code = decision.error.code
    return rule_result
