"""Evaluate the API server's own admission policies on existing objects.

Room: reports. Takes: documents as reports/admission_policies.py makes them. Gives:
AdmissionRules. Next: reports/evaluator.py. May touch: the cluster data through
program/ports.py; the log.
Source: Kyverno pkg/admissionpolicy/{validate,mutate}.go; docs/reports.md.

An object is evaluated as if somebody unknown created it, as for other rules.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from kyverno_mp.errors import Error, ExpressionFailed, KubeNotFound, KubeRefused
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program import result
from kyverno_mp.program.ports import ObjectQuery, Objects
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.program.admission_policy.mutate import LinkedAdmissionMutation
    from kyverno_mp.program.admission_policy.validate import LinkedValidation

_log = logging.getLogger(__name__)
_NOT_APPLIED: Final = "mutation is not applied"
_APPLIED: Final = "mutation is successfully applied"


@dataclass(frozen=True, slots=True)
class _Linked:
    ir: AdmissionPolicyIR
    validation: "LinkedValidation | None" = None
    mutation: "LinkedAdmissionMutation | None" = None


class AdmissionRules:
    """The policies that a batch brings, linked once; one thread uses it."""

    def __init__(self, objects: Objects | None) -> None:
        """``objects``: reads the parameters of bindings."""
        self._objects = objects
        self._linked: dict[bytes, _Linked | None] = {}
        self._params: dict[ObjectQuery, Sequence[Json]] = {}

    def begin(self, documents: Sequence[bytes]) -> None:
        """Take the policies of a batch; those of others are forgotten.

        Parameters are read once for each batch.
        """
        self._params.clear()
        self._linked = {
            one: self._linked[one] if one in self._linked else _link(one)
            for one in documents
        }

    def results(
        self, request: Request, resource: Resource, runtime: Runtime
    ) -> Iterator[tuple[PolicyIR, RuleResult]]:
        """Yield the result of each policy that matches. Raises: DependencyError."""
        linked = [one for one in self._linked.values() if one is not None]
        if not linked:
            return
        asked = _asked(request, resource)
        for one in linked:
            runtime.begin_policy(one, is_tenant=False)
            try:
                found = self._result(one, asked, runtime)
            except (KubeRefused, KubeNotFound, ExpressionFailed) as error:
                # Parameters that may not be read: other policies have results.
                found = _failed(one.ir, error)
            if found is not None:
                yield one.ir.policy, found

    def _result(
        self, one: _Linked, request: Request, runtime: Runtime
    ) -> RuleResult | None:
        params = self._params_of(one.ir, request, runtime.deadline_ns)
        if one.validation is not None:
            return one.validation.evaluate(request, runtime, params)
        assert one.mutation is not None
        found = one.mutation.apply(request, runtime, params)
        if found.problems and found.result is None:
            text = "; ".join(found.problems)
            return RuleResult(one.ir.policy.name, result.MUTATION, result.ERROR, text)
        if found.result is None or found.result.status != result.PASS:
            return found.result
        is_applied = same(found.patched, request.object)
        return replace(
            found.result,
            status=result.PASS if is_applied else result.FAIL,
            message=_APPLIED if is_applied else _NOT_APPLIED,
        )

    def _params_of(
        self, ir: AdmissionPolicyIR, request: Request, deadline_ns: int
    ) -> list[Json]:
        """Return the objects that bindings may refer to. Raises: DependencyError."""
        found: list[Json] = []
        api_version, kind = ir.param_kind
        group, _, version = api_version.rpartition("/")
        for binding in ir.bindings:
            if binding.params is None or self._objects is None or not kind:
                continue
            namespace = binding.params.namespace or request.namespace
            query = ObjectQuery(group, version, kind, "", namespace)
            if query not in self._params:
                read = self._objects.objects(query, deadline_ns)
                if not read and namespace:
                    # Parameters without a namespace.
                    everywhere = ObjectQuery(group, version, kind)
                    read = [
                        one
                        for one in self._objects.objects(everywhere, deadline_ns)
                        if not (one.get("metadata") or {}).get("namespace")
                    ]
                self._params[query] = read
            found += self._params[query]
        return found


def _link(document: bytes) -> _Linked | None:
    """Return the linked policy, None when it is of a version that nobody knows yet."""
    # PERF: loads CEL.
    from kyverno_mp.compiler.admission_policy import compile_admission_policy
    from kyverno_mp.policy.admission_policy import (
        MutatingAdmissionPolicy,
        MutatingAdmissionPolicyBinding,
        ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding,
        decode_admission_policy,
    )
    from kyverno_mp.program.admission_policy.mutate import LinkedAdmissionMutation
    from kyverno_mp.program.admission_policy.validate import LinkedValidation

    try:
        policy, *bindings = map(decode_admission_policy, msgspec.json.decode(document))
    except Error as error:
        _log.warning("an admission policy is not reported: %s", error.message)
        return None
    assert isinstance(policy, ValidatingAdmissionPolicy | MutatingAdmissionPolicy)
    bound = [
        one
        for one in bindings
        if isinstance(
            one, ValidatingAdmissionPolicyBinding | MutatingAdmissionPolicyBinding
        )
    ]
    ir = compile_admission_policy(policy, bound)
    if isinstance(policy, ValidatingAdmissionPolicy):
        return _Linked(ir, validation=LinkedValidation(ir, in_cluster=True))
    return _Linked(ir, mutation=LinkedAdmissionMutation(ir, in_cluster=True))


def _asked(request: Request, resource: Resource) -> Request:
    """Return the request as the API server would make it for a creation."""
    named = {
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
    }
    return replace(
        request,
        operation="CREATE",
        review_request={"resource": named, "userInfo": {}},
    )


def _failed(ir: AdmissionPolicyIR, error: Error) -> RuleResult:
    text = f"not evaluated ({error.code}): {error.message}"
    return RuleResult(ir.policy.name, result.VALIDATION, result.ERROR, text)
