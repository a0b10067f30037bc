"""Judge JSON payloads by policies in evaluation mode JSON.

Room: program. Takes: their records, a payload, a Runtime, the ports of CEL. Gives:
Judged, one for each result. Next: cli/apply/stages/cel_policies.py,
cli/apply/stages/image_policies.py; webhook/payloads.py.
May touch: external systems only through ports.
Source: docs/behaviour/cli 8; docs/behaviour/cel 6, 10.4.

A payload is any JSON object, not an object of a cluster: there is no request, no user
and no namespace.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.scope import Begin, Images
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.relinking import RecordT, decoded
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.scope import Facts, PayloadShared
from kyverno_mp.values.jsonvalue import Json

LinkedT = TypeVar("LinkedT")


class Judged(NamedTuple):
    """The result of one policy."""

    policy: PolicyIR
    result: RuleResult


class Context(NamedTuple):
    """What policies read besides the payload."""

    runtime: Runtime
    ports: CelPorts = CelPorts()
    begin: Begin | None = None
    """Starts the verification of images; None: no registry is read."""


class PayloadPolicies:
    """All policies in evaluation mode JSON, linked once; safe to share."""

    def __init__(
        self,
        validating: Iterable[ValidatingPolicyIR],
        images: Iterable[ImageValidatingPolicyIR] = (),
    ) -> None:
        """Link the policies; those in other modes are left out."""
        self._failed: list[Judged] = []
        self._validating = self._linked(LinkedValidatingPolicy, validating)
        self._images = self._linked(LinkedImagePolicy, images)

    def _linked(
        self, link: Callable[[RecordT], LinkedT], records: Iterable[RecordT]
    ) -> list[LinkedT]:
        linked = []
        for ir in records:
            if not getattr(ir, "is_json", False):
                continue
            try:
                linked.append(link(decoded(ir)))
            except Exception as error:  # noqa: BLE001 - an error of this policy alone
                message = f"the policy cannot be evaluated: {type(error).__name__}"
                failed = RuleResult("", result.VALIDATION, result.ERROR, message)
                self._failed.append(Judged(ir.policy, failed))
        return linked

    def judge(self, payload: dict[str, Json], context: Context) -> list[Judged]:
        """Return the results of all policies. Raises: DeadlinePassed."""
        runtime, ports, begin = context
        images = Images(begin)
        judged = [
            *self._failed,
            *validate_payload(self._validating, payload, runtime, ports),
            *verify_payload(self._images, payload, runtime, ports, images),
        ]
        images.settle()
        return judged


def _of(payload: dict[str, Json]) -> Request:
    return Request(object=payload, version="")


def validate_payload(
    policies: Sequence[LinkedValidatingPolicy],
    payload: dict[str, Json],
    runtime: Runtime,
    ports: CelPorts,
) -> Iterator[Judged]:
    """Yield the results of ValidatingPolicies. Raises: DeadlinePassed."""
    request = _of(payload)
    facts = Facts(request, runtime, ports, is_payload=True)
    shared = PayloadShared(request)
    for linked in policies:
        policy = linked.ir.policy
        runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
        for answer in linked.evaluate(facts, shared):
            if answer.result is not None:
                yield Judged(policy, answer.result)


def verify_payload(
    policies: Sequence[LinkedImagePolicy],
    payload: dict[str, Json],
    runtime: Runtime,
    ports: CelPorts,
    images: Images,
) -> Iterator[Judged]:
    """Yield the results of ImageValidatingPolicies. Raises: DeadlinePassed.

    KYVERNO: exceptions have no effect (docs/behaviour/cel 10.4).
    """
    request = _of(payload)
    facts = Facts(request, runtime, ports, is_payload=True)
    shared = Shared(request)
    for linked in policies:
        policy = linked.ir.policy
        runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
        for answer in linked.evaluate(
            facts, shared, images, of_files=True, has_exceptions=False
        ):
            if answer.result is not None and not answer.copy:
                yield Judged(policy, answer.result)
