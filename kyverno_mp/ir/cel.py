"""Define the records of the CEL parts of a policy.

Room: ir. Takes: written by compiler/rules/cel.py. Gives: CelIR, NamedExpressionIR,
parts of ir/rules.py; read by program/bodies/cel.py and
program/bodies/cel_conditions.py. Plain data; no behaviour here. Source:
docs/behaviour/engine 1.9, 6.4.
"""

from typing import Final

import msgspec

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.ir.match import SelectorIR

EXTRACTED: Final = "extract"
"""The autogen copy for custom workloads, evaluated on the Pods of their templates."""


class NamedExpressionIR(msgspec.Struct, frozen=True, array_like=True):
    """A match condition, a CEL precondition or a variable."""

    name: str
    expression: Expression


class CelValidationIR(msgspec.Struct, frozen=True, array_like=True):
    """One of ``cel.expressions``; ``message`` defaults to the rule's message."""

    expression: Expression
    message: str = ""
    message_expression: Expression | None = None


class CelParamsIR(msgspec.Struct, frozen=True, array_like=True):
    """``paramKind`` and ``paramRef``; ``deny_without``: deny if no params exist."""

    api_version: str
    kind: str
    name: str = ""
    namespace: str = ""
    selector: SelectorIR | None = None
    deny_without: bool = False


class CelIR(msgspec.Struct, frozen=True, array_like=True):
    """``validate.cel``; auditAnnotations have no effect upstream and are dropped."""

    validations: tuple[CelValidationIR, ...]
    variables: tuple[NamedExpressionIR, ...] = ()
    params: CelParamsIR | None = None
