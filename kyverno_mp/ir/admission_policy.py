"""Define the records of compiled Validating- and MutatingAdmissionPolicies.

Room: ir. Takes: written by compiler/admission_policy.py. Gives: AdmissionPolicyIR, read
by program/admission_policy. Plain data; no behaviour here.
Source: k8s.io/api admissionregistration/v1; docs/behaviour/cli 21.
"""

import msgspec

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.ir.cel import CelValidationIR, NamedExpressionIR
from kyverno_mp.ir.match import SelectorIR
from kyverno_mp.ir.rules import PolicyIR


class ResourceRuleIR(msgspec.Struct, frozen=True, array_like=True):
    """One entry of resourceRules; ``*`` matches everything."""

    groups: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    scope: str = "*"


class ConstraintsIR(msgspec.Struct, frozen=True, array_like=True):
    """matchConstraints or matchResources; without ``rules`` all resources match."""

    rules: tuple[ResourceRuleIR, ...] = ()
    excluded: tuple[ResourceRuleIR, ...] = ()
    namespace_selector: SelectorIR | None = None
    object_selector: SelectorIR | None = None


class ParamRefIR(msgspec.Struct, frozen=True, array_like=True):
    """A binding's reference to its parameters (``paramRef``)."""

    name: str = ""
    namespace: str = ""
    selector: SelectorIR | None = None
    may_lack: bool = False
    """Ignore the binding if no parameter is found (``parameterNotFoundAction``)."""


class BindingIR(msgspec.Struct, frozen=True, array_like=True):
    """A binding of the policy; without ``constraints`` it applies to all resources."""

    name: str
    constraints: ConstraintsIR | None = None
    params: ParamRefIR | None = None


class MutationIR(msgspec.Struct, frozen=True, array_like=True):
    """A mutation: an apply configuration or a JSON patch."""

    expression: Expression
    is_json_patch: bool = False


class AdmissionPolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """A policy with its bindings; ``policy.kind`` is the policy's kind."""

    policy: PolicyIR
    constraints: ConstraintsIR | None = None
    conditions: tuple[NamedExpressionIR, ...] = ()
    variables: tuple[NamedExpressionIR, ...] = ()
    validations: tuple[CelValidationIR, ...] = ()
    mutations: tuple[MutationIR, ...] = ()
    bindings: tuple[BindingIR, ...] = ()
    param_kind: tuple[str, str] = ("", "")
    """apiVersion and kind of the parameters (``paramKind``)."""
