"""Mutate an object with a MutatingAdmissionPolicy.

Room: program. Takes: AdmissionPolicyIR linked once; a Request, parameters. Gives:
Mutated: a RuleResult with the object, or the error. Next: cli/apply/evaluate.
Source: docs/behaviour/cli 21; docs/behaviour/cel 10.1; Kyverno
pkg/admissionpolicy/mutate.go; k8s apiserver, admission/plugin/policy/mutating/patch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.patches import configuration, operations
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.bindings import (
    binding_properties,
    bindings_of,
)
from kyverno_mp.program.admission_policy.scope import PolicyScopes
from kyverno_mp.program.admission_policy.validate import NOT_MET
from kyverno_mp.program.bodies.cel import COST_MAX
from kyverno_mp.program.bodies.cel_conditions import (
    MATCH_CONDITIONS_COST_MAX,
    evaluate,
    link_conditions,
)
from kyverno_mp.program.context.cel_scope import (
    PATCHES,
    LinkedExpression,
    link,
    namespace_value,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.dotted import merged
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_patch import (
    apply_patch,
    check_operations,
    is_failed_test,
)

_DONE = "mutation is successfully applied"
_OPERATIONS = ("add", "copy", "move", "remove", "replace", "test")
_JSON_NAMES = {
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}
"""Go's names of the values that are neither text nor null."""
_DECODED = (
    'Go value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\"";'
    ' Kind string "json:\\"kind,omitempty\\"" }'
)


@dataclass(slots=True)
class Mutated:
    """The last verdict and the resulting object; upstream only logs ``problems``.

    KYVERNO: a failed mutation has no result at all.
    """

    result: RuleResult | None
    patched: dict[str, Json]
    problems: list[str]


class _Mutation(NamedTuple):
    expression: LinkedExpression
    is_json_patch: bool


class LinkedAdmissionMutation:
    """One linked MutatingAdmissionPolicy."""

    __slots__ = ("_conditions", "_in_cluster", "_mutations", "_scopes", "ir")

    def __init__(self, ir: AdmissionPolicyIR, *, in_cluster: bool = False) -> None:
        self.ir = ir
        self._in_cluster = in_cluster
        self._scopes = PolicyScopes(ir.variables, PATCHES)
        self._conditions = link_conditions(ir.conditions, PATCHES)
        self._mutations = [
            _Mutation(link(mutation.expression, PATCHES), mutation.is_json_patch)
            for mutation in ir.mutations
        ]

    def apply(
        self, request: Request, runtime: Runtime, params: Sequence[Json]
    ) -> Mutated:
        """Return the mutated object; the request's own object is not changed.

        KYVERNO: each binding starts from the original object, and the last result is
        used.
        """
        mutated = Mutated(None, request.object, [])
        bound = bindings_of(self.ir, request, params, in_cluster=self._in_cluster)
        for binding, param in bound:
            bare = self._scopes.open(request, runtime, None, MATCH_CONDITIONS_COST_MAX)
            met, problem = evaluate(self._conditions, bare)
            if problem and self.ir.policy.failure_policy == "Fail":
                mutated.problems.append(problem)
                continue
            properties = binding_properties(binding, "mapBinding")
            name = self.ir.policy.name
            if not met:
                status, message = result.SKIP, NOT_MET
            else:
                status, message = result.PASS, _DONE
                try:
                    mutated.patched = self._mutated(request, runtime, param)
                except (BudgetExceeded, ExpressionFailed) as error:
                    mutated.problems.append(error.message)
                    mutated.result = None
                    continue
            mutated.result = RuleResult(
                name, result.MUTATION, status, message, properties
            )
        return mutated

    def _mutated(
        self, request: Request, runtime: Runtime, param: Json
    ) -> dict[str, Json]:
        """Return the object after all mutations, which are applied in order."""
        namespace = namespace_value(request, labels_known=True)
        for mutation in self._mutations:
            scope = self._scopes.open(request, runtime, param, COST_MAX, namespace)
            value, problem = scope.evaluate(mutation.expression)
            if problem:
                raise ExpressionFailed("cel.failed", problem)
            change = patched if mutation.is_json_patch else _configured
            request = replace(request, object=change(request.object, value, runtime))
        return request.object


def _configured(
    resource: dict[str, Json], value: Json, spend: Runtime
) -> dict[str, Json]:
    """Merge an apply configuration.

    KYVERNO: without schemas, maps are merged and lists are replaced; a server with the
    kind's schema would reject this or merge by key.
    """
    patch = configuration(value, spend)
    kind = {key: resource[key] for key in ("apiVersion", "kind") if key in resource}
    out: dict[str, Json] = merged(resource, {**patch, **kind})
    return out


def patched(resource: dict[str, Json], value: Json, spend: Runtime) -> dict[str, Json]:
    """Apply a JSON patch; a failed ``test`` operation leaves the object unchanged."""
    listed = operations(value, spend)
    # K8S: an unknown operation fails only when it is reached.
    leading = list(takewhile(lambda operation: operation["op"] in _OPERATIONS, listed))
    checked = check_operations(leading, spend)
    try:
        out: dict[str, Json] = apply_patch(resource, checked, spend, strict=True)
    except ExpressionFailed as error:
        if is_failed_test(error):
            return resource
        raise ExpressionFailed(error.code, f"JSON Patch: {error.message}") from error
    if len(leading) < len(listed):
        message = f"JSON Patch: Unexpected kind: {listed[len(leading)]['op']}"
        raise ExpressionFailed("cel.patch", message)
    _check_kind(out, spend)
    return out


def _check_kind(changed: Json, spend: Runtime) -> None:
    """Reject an object that the API server could not decode after the patch."""
    places: dict[str, Json] = {_DECODED: changed}
    if type(changed) is dict:
        places = {
            f"Go struct field .{key} of type string": changed.get(key)
            for key in ("kind", "apiVersion")
        }
    problem = ""
    for field, value in places.items():
        name = _JSON_NAMES.get(type(value))
        if name and not problem:
            problem = f"json: cannot unmarshal {name} into {field}"
            problem = f"couldn't get version/kind; json parse error: {problem}"
    if not problem and not (type(changed) is dict and changed.get("kind")):
        printed = json_text(changed, charge=spend.charge_bytes)
        problem = f"Object 'Kind' is missing in '{printed}'"
    if problem:
        raise ExpressionFailed("cel.patch", f"Internal error occurred: {problem}")
