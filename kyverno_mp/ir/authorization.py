"""Define the record of a compiled policy that authorizes HTTP or Envoy requests.

Room: ir. Takes: written by compiler/cel_kinds/authorization.py. Gives:
AuthorizationPolicyIR and ExchangeIR, read by program/authorization.py. Plain data; no
behaviour here.
Source: docs/behaviour/cel 15.
"""

import msgspec

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import CelExceptionIR


class AuthorizationPolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """A ValidatingPolicy in evaluation mode HTTP or Envoy, with its exceptions.

    ``mode``: HTTP or Envoy. ``validations``: their values are answers, or null.
    """

    policy: PolicyIR
    mode: str
    conditions: tuple[NamedExpressionIR, ...]
    variables: tuple[NamedExpressionIR, ...]
    validations: tuple[Expression, ...]
    exceptions: tuple[CelExceptionIR, ...] = ()
    effects: int = EFFECT_PURE
    error: str = ""
    """Why the policy cannot judge a request at all, "" if it can."""


class ExchangeIR(msgspec.Struct, frozen=True, array_like=True):
    """An expression that turns one message of the HTTP authorizer into another."""

    expression: Expression
    effects: int = EFFECT_PURE
