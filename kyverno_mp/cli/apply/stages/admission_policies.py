"""Apply ValidatingAdmissionPolicies and MutatingAdmissionPolicies to one object.

Room: cli. Takes: AdmissionPolicyIRs, parameter objects, a user. Gives: Verdicts. Next:
evaluate. May touch: standard error.
Source: docs/behaviour/cli 5 (REST mapper), 8, 21.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.sources.plurals import Plurals, known_plurals, resource_of
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.program.admission_policy.mutate import LinkedAdmissionMutation
    from kyverno_mp.program.admission_policy.validate import LinkedValidation

VALIDATING: Final = "ValidatingAdmissionPolicy"
MUTATING: Final = "MutatingAdmissionPolicy"
KINDS: Final = (VALIDATING, MUTATING)


class AdmissionInput(NamedTuple):
    """The input of a run for policies of the API server itself."""

    policies: Sequence[AdmissionPolicyIR] = ()
    params: Sequence[Json] = ()
    plurals: Plurals | None = None
    """Plural names of kinds besides the built-in ones."""
    in_cluster: bool = False
    """Whether ``params`` are all parameter objects of a real cluster."""


class Verdict(NamedTuple):
    """The verdict of one policy; ``result`` is None if the policy does not match."""

    policy: PolicyIR
    result: RuleResult | None
    patched: dict[str, Json] | None = None
    """The object after a mutating policy."""


class AdmissionPolicies:
    """Policies linked once, applied to many objects."""

    def __init__(self, inputs: AdmissionInput, user: UserInfo | None) -> None:
        self._validating: list[LinkedValidation] = []
        self._mutating: list[LinkedAdmissionMutation] = []
        if inputs.policies:
            self._link(inputs)
        self._params = inputs.params
        self._user = user or UserInfo()
        self._plurals = known_plurals(inputs.plurals)

    def _link(self, admission_input: AdmissionInput) -> None:
        # PERF: imports CEL, which runs without such policies do not need.
        from kyverno_mp.program.admission_policy.mutate import LinkedAdmissionMutation
        from kyverno_mp.program.admission_policy.validate import LinkedValidation

        for ir in admission_input.policies:
            if ir.policy.kind == VALIDATING:
                linked = LinkedValidation(ir, in_cluster=admission_input.in_cluster)
                self._validating.append(linked)
            elif ir.policy.kind == MUTATING:
                mutation = LinkedAdmissionMutation(
                    ir, in_cluster=admission_input.in_cluster
                )
                self._mutating.append(mutation)

    @property
    def validates(self) -> bool:
        """Return whether the run has a ValidatingAdmissionPolicy."""
        return bool(self._validating)

    def validate(self, request: Request, runtime: Runtime) -> Iterator[Verdict]:
        """Yield one verdict per policy."""
        user_request = self._asked(request, self._validating)
        for linked in self._validating:
            runtime.begin_policy(linked, is_tenant=False)
            rule_result = linked.evaluate(user_request, runtime, self._params)
            yield Verdict(linked.ir.policy, rule_result)

    @property
    def mutates(self) -> bool:
        """Return whether the run has a MutatingAdmissionPolicy."""
        return bool(self._mutating)

    def mutate(self, request: Request, runtime: Runtime) -> Iterator[Verdict]:
        """Yield a verdict per matching policy; each gets the previous policy's result.

        Upstream logs errors; here they go to standard error.
        """
        user_request = self._asked(request, self._mutating)
        for linked in self._mutating:
            runtime.begin_policy(linked, is_tenant=False)
            mutation = linked.apply(user_request, runtime, self._params)
            name = linked.ir.policy.name
            for problem in mutation.problems:
                say(f"policy {name}: not applied: {problem}", err=True)
            # KYVERNO: a policy that does not match has no verdict, unlike a
            # ValidatingAdmissionPolicy.
            if mutation.result is not None:
                yield Verdict(linked.ir.policy, mutation.result, mutation.patched)
                user_request = replace(user_request, object=mutation.patched)

    def _asked(
        self,
        request: Request,
        policies: "Sequence[LinkedValidation | LinkedAdmissionMutation]",
    ) -> Request:
        """Return the request as upstream builds it: by the given user."""
        constraints = [linked.ir.constraints for linked in policies]
        plural = resource_of(request, self._plurals, constraints)
        return asked_by(self._user, request, plural)


def asked_by(user: UserInfo, request: Request, plural: str) -> Request:
    """Return the request for policies in CEL: the user's operation on the object.

    The objects of a run are created, unless a result of a test names an operation. As
    in 1.20, an object is a subresource's if the values file says so.
    """
    is_created = request.operation == "CREATE"
    resource = {
        "group": request.group,
        "version": request.version,
        "resource": plural,
    }
    return replace(
        request,
        old_object={} if is_created else request.old_object,
        username=user.username,
        groups=user.groups,
        review_request={"resource": resource, "userInfo": user.raw},
    )
