"""Evaluate the API server's own admission policies on existing objects.

Room: reports. Takes: documents from reports/policies/admission_policies.py. Gives:
AdmissionRules. Next: reports/scan/evaluator.py. May touch: the cluster data through
program/ports.py; the log.
Source: Kyverno pkg/admissionpolicy/{validate,mutate}.go; docs/reports.md.

An object is evaluated as if an unknown user created it, as for other rules.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    DependencyError,
    Error,
    InputError,
    KubeNotFound,
    KubeRefused,
    SnapshotUnusable,
)
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR, ParamRefIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.ports import KindScopes, ObjectQuery, Objects
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values
from kyverno_mp.reports.feed import Keys
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.results.entries import merge_key_of
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same

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
    failure: Exception | None = None
    """Why the policy cannot be evaluated: an internal error."""

    @property
    def key(self) -> bytes:
        policy = self.ir.policy
        return key_of_names(merge_key_of(policy, policy.name))


class AdmissionRules:
    """The policies that batches contain, each linked once; one thread uses it."""

    def __init__(self, objects: Objects | None, scopes: KindScopes | None) -> None:
        """Both clients are for the parameters of bindings."""
        self._objects = objects
        self._scopes = scopes
        self._linked: dict[bytes, _Linked | None] = {}
        self._params: dict[ObjectQuery, Sequence[Json]] = {}
        self._only: Keys | None = None

    def begin(self, documents: Sequence[bytes], only: Keys | None = None) -> None:
        """Take the policies of a batch; drop other policies.

        ``only``: the keys of the policies to evaluate, None = all. Parameters are read
        once for each batch.
        """
        self._params.clear()
        self._only = only
        self._linked = {
            document: self._linked[document]
            if document in self._linked
            else _link(document)
            for document in documents
        }

    def results(
        self, request: Request, resource: Resource, runtime: Runtime
    ) -> Iterator[tuple[PolicyIR, RuleResult | Error]]:
        """Yield the result of each policy that matches.

        An error means that a policy cannot be evaluated now.
        """
        only = self._only
        linked = [
            policy
            for policy in self._linked.values()
            if policy is not None and (only is None or policy.key in only)
        ]
        if not linked:
            return
        creation = creation_of(request, resource)
        for policy in linked:
            runtime.begin_policy(policy, is_tenant=False)
            rule_result = self._guarded(policy, creation, runtime)
            if rule_result is not None:
                yield policy.ir.policy, rule_result

    def _guarded(
        self, linked: _Linked, request: Request, runtime: Runtime
    ) -> RuleResult | Error | None:
        """Evaluate a policy; a failure is an error result, never no result.

        Return a DependencyError, except for parameters and timeouts.
        """
        try:
            if not _applies(linked.ir, request):
                return None
            if linked.failure is not None:
                return _failed(linked.ir, linked.failure)
            # The budget that the previous policy used up does not affect this policy.
            with contextlib.suppress(BudgetExceeded):
                runtime.check_clock()
            return self._result(linked, request, runtime)
        except (DeadlinePassed, KubeRefused, KubeNotFound, InputError) as error:
            # The parameters may not be read; other policies still have results.
            return _failed(linked.ir, error)
        except (DependencyError, SnapshotUnusable) as error:
            return error
        except Exception as error:  # noqa: BLE001 - the other policies have results
            hides = hides_values(request.kind)
            # A traceback ends with the error's text, which may quote a value.
            _log.error(
                "admission policy %s cannot be evaluated (%s)",
                *(linked.ir.policy.name, type(error).__name__),
                exc_info=None if hides else error,
            )
            return _failed(linked.ir, error)

    def _result(
        self, linked: _Linked, request: Request, runtime: Runtime
    ) -> RuleResult | None:
        params = self._params_of(linked.ir, request, runtime.deadline_ns)
        if linked.validation is not None:
            return linked.validation.evaluate(request, runtime, params)
        assert linked.mutation is not None
        mutation = linked.mutation.apply(request, runtime, params)
        if mutation.problems and mutation.result is None:
            reason = "; ".join(mutation.problems)
            return RuleResult(
                linked.ir.policy.name, result.MUTATION, result.ERROR, reason
            )
        if mutation.result is None or mutation.result.status != result.PASS:
            return mutation.result
        is_applied = same(mutation.patched, request.object)
        return replace(
            mutation.result,
            status=result.PASS if is_applied else result.FAIL,
            message=_APPLIED if is_applied else _NOT_APPLIED,
        )

    def _params_of(
        self, ir: AdmissionPolicyIR, request: Request, deadline_ns: int
    ) -> list[Json]:
        """Return the parameter objects of the bindings. Raises: DependencyError."""
        params: list[Json] = []
        for binding in ir.bindings:
            if binding.params is None or self._objects is None or not ir.param_kind[1]:
                continue
            if not matches(binding.constraints, request):
                continue
            query = self._query(ir, binding.params, request)
            if query is None:
                continue
            if query not in self._params:
                self._params[query] = self._objects.objects(query, deadline_ns)
            params += self._params[query]
        return params

    def _query(
        self, ir: AdmissionPolicyIR, ref: ParamRefIR, request: Request
    ) -> ObjectQuery | None:
        """Return which parameters to read, or None if there cannot be any."""
        api_version, kind = ir.param_kind
        group, _, version = api_version.rpartition("/")
        name = "" if ref.selector is not None else ref.name
        if self._scopes is None or not self._scopes.is_namespaced(group, version, kind):
            return ObjectQuery(group, version, kind, name=name)
        namespace = ref.namespace or request.namespace
        if not namespace:
            return None
        return ObjectQuery(group, version, kind, namespace=namespace, name=name)


def _link(document: bytes) -> _Linked | None:
    """Return the linked policy, or None while its version is unknown."""
    # PERF: the import loads CEL.
    from kyverno_mp.compiler.admission_policy import compile_admission_policy
    from kyverno_mp.policy.cel_kinds.admission_policy import (
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
        binding
        for binding in bindings
        if isinstance(
            binding, ValidatingAdmissionPolicyBinding | MutatingAdmissionPolicyBinding
        )
    ]
    name = policy.metadata.name
    try:
        ir = compile_admission_policy(policy, bound)
        if isinstance(policy, ValidatingAdmissionPolicy):
            return _Linked(ir, validation=LinkedValidation(ir, in_cluster=True))
        return _Linked(ir, mutation=LinkedAdmissionMutation(ir, in_cluster=True))
    except Exception as error:  # noqa: BLE001 - the other policies have results
        _log.exception("admission policy %s cannot be linked", name)
        # It is unknown what the policy matches, so an error is reported for every
        # object.
        ir = AdmissionPolicyIR(PolicyIR(kind=policy.kind, name=name))
        return _Linked(ir, failure=error)


def _applies(ir: AdmissionPolicyIR, request: Request) -> bool:
    """Return whether the policy matches, and one of its bindings if there are any."""
    return matches(ir.constraints, request) and (
        not ir.bindings
        or any(matches(binding.constraints, request) for binding in ir.bindings)
    )


def creation_of(request: Request, resource: Resource) -> Request:
    """Return the request that the API server would send for a creation."""
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


def _failed(ir: AdmissionPolicyIR, error: Exception) -> RuleResult:
    message = "not evaluated (webhook.defect): internal error, see the log"
    if isinstance(error, Error):
        message = f"not evaluated ({error.code}): {error.message}"
    return RuleResult(ir.policy.name, result.VALIDATION, result.ERROR, message)
