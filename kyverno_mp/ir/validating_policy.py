"""Define the records of compiled ValidatingPolicies.

Room: ir. Takes: written by compiler/cel_kinds/validating_policy.py. Gives:
ValidatingPolicyIR, read by program/validating_policy. Plain data; no behaviour here.
Source: docs/behaviour/cel 2, 6, 7.
"""

import msgspec

from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel import CelValidationIR, NamedExpressionIR
from kyverno_mp.ir.rules import PolicyIR


class CelExceptionIR(msgspec.Struct, frozen=True, array_like=True):
    """A PolicyException that names this policy; ``key`` is ``namespace/name``."""

    key: str
    conditions: tuple[NamedExpressionIR, ...] = ()
    images: tuple[str, ...] = ()
    allowed_values: tuple[str, ...] = ()
    is_pass: bool = False
    """The result is a pass instead of a skip."""
    priority: int = 0
    expires_at_ns: int | None = None
    """Nanoseconds since the Unix epoch; None: the exception does not expire."""


class ValidatingBodyIR(msgspec.Struct, frozen=True, array_like=True):
    """The policy as written, or its autogen copy for controllers of Pods.

    ``copy``: "" or the name of the autogen configuration. Without ``constraints`` no
    object matches; evaluation mode JSON ignores them.
    """

    copy: str
    constraints: ConstraintsIR | None
    conditions: tuple[NamedExpressionIR, ...]
    variables: tuple[NamedExpressionIR, ...]
    validations: tuple[CelValidationIR, ...]
    annotations: tuple[NamedExpressionIR, ...] = ()


class ValidatingPolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """A policy with its autogen copies and exceptions."""

    policy: PolicyIR
    bodies: tuple[ValidatingBodyIR, ...]
    exceptions: tuple[CelExceptionIR, ...] = ()
    actions: tuple[str, ...] = ("Deny",)
    is_json: bool = False
    """Evaluation mode JSON: any JSON object is evaluated."""
    effects: int = EFFECT_PURE
