"""Render the template of a GeneratingPolicy, and generate its objects.

Room: program. Takes: TemplateDocumentIRs, the variables of one policy. Gives:
LinkedTemplate, which generates through a port. Next: generate.py.
May touch: what the ports of CEL reach.
Source: docs/behaviour/v1.19 5; Kyverno
pkg/cel/policies/gpol/{template/template.go,compiler/policy.go} at v1.19.0.
"""

from collections.abc import Sequence
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.functions.kyverno.documents import protobuf_data
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.outside import asked
from kyverno_mp.expr.cel.values import CelFailed, Meter, Uint, Value
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.cel_policies import HoleIR, TemplateDocumentIR
from kyverno_mp.program.cel_policies.scope import PolicyScope
from kyverno_mp.program.context.cel_scope import Dialect, LinkedExpression, link
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.go.gotext import float_g
from kyverno_mp.values.jsonvalue import Json

_CODE: Final = "cel.template"
_NODE_STEPS: Final = 2
_NODE_BYTES: Final = 100
_GO_TYPES: Final = {
    type(None): "<nil>",
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}
_INT64_MAX: Final = 2**63 - 1


class LinkedTemplate:
    """The documents of one template; safe to share between threads."""

    __slots__ = ("_documents",)

    def __init__(
        self, documents: Sequence[TemplateDocumentIR], dialect: Dialect
    ) -> None:
        self._documents = [_LinkedDocument(document, dialect) for document in documents]

    def apply(self, scope: PolicyScope, facts: Facts, namespace: str) -> None:
        """Generate the objects of all documents, each in its own namespace.

        ``namespace``: of the policy, "" for a cluster one.
        Raises: ExpressionFailed, BudgetExceeded, DeadlinePassed.
        """
        placed: dict[str, list[Json]] = {}
        for resource in self._rendered(scope, facts.runtime):
            namespace_of = metadata_text(resource, "namespace") or namespace
            if namespace and namespace_of != namespace:
                raise ExpressionFailed(
                    "generate.scope",
                    "cross-namespace generation denied: a policy in namespace"
                    f" {quote(namespace)} cannot generate resources into namespace"
                    f" {quote(namespace_of)}",
                )
            placed.setdefault(namespace_of, []).append(resource)
        for namespace_of, objects in placed.items():
            _generate(facts, namespace_of, objects)

    def _rendered(self, scope: PolicyScope, runtime: Runtime) -> list[dict[str, Json]]:
        rendered: list[dict[str, Json]] = []
        for number, document in enumerate(self._documents, 1):
            try:
                rendered.append(document.rendered(scope, runtime))
            except ExpressionFailed as error:
                message = f"failed to render generation template: document {number}"
                raise ExpressionFailed(
                    error.code, f"{message}: {error.message}"
                ) from error
        return rendered


class _LinkedHole:
    """One placeholder, or a text with several."""

    __slots__ = ("_parts", "path")

    def __init__(self, ir: HoleIR, dialect: Dialect) -> None:
        self.path = ir.path
        self._parts = [
            link(part, dialect) if isinstance(part, Expression) else part
            for part in ir.parts
        ]

    def value(self, scope: PolicyScope, runtime: Runtime) -> Json:
        """Return the value of the place. Raises: ExpressionFailed, BudgetExceeded."""
        first = self._parts[0]
        if len(self._parts) == 1 and isinstance(first, LinkedExpression):
            return _value(first, scope, runtime)
        pieces: list[str] = []
        for part in self._parts:
            piece = part if isinstance(part, str) else _text(part, scope, runtime)
            runtime.charge_made(len(piece), piece)
            pieces.append(piece)
        return "".join(pieces)


class _LinkedDocument:
    __slots__ = ("_content", "_holes", "_nodes")

    def __init__(self, ir: TemplateDocumentIR, dialect: Dialect) -> None:
        self._content = ir.content
        self._holes = [_LinkedHole(hole, dialect) for hole in ir.holes]
        self._nodes = _count(ir.content)

    def rendered(self, scope: PolicyScope, runtime: Runtime) -> dict[str, Json]:
        """Return a new object. Raises: ExpressionFailed, BudgetExceeded."""
        runtime.charge(_NODE_STEPS * self._nodes)
        runtime.charge_bytes(_NODE_BYTES * self._nodes)
        root = {"": _copied(self._content)}
        for hole in self._holes:
            runtime.charge(len(hole.path) + 1)
            try:
                value = hole.value(scope, runtime)
            except ExpressionFailed as error:
                message = f"{_place(hole.path)}{error.message}"
                raise ExpressionFailed(error.code, message) from error
            holder: Json = root
            path = ("", *hole.path)
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = value
        document = root[""]
        if type(document) is not dict:
            message = "expected a mapping describing a resource, got"
            raise ExpressionFailed(_CODE, f"{message} {_GO_TYPES[type(document)]}")
        return document


def _generate(facts: Facts, namespace: str, objects: Sequence[Json]) -> None:
    prefix = "failed to generate resources"
    port = facts.ports.generator
    if port is None:
        raise ExpressionFailed(_CODE, f"{prefix}: nothing can be generated here")
    deadline_ns = facts.runtime.deadline_ns
    try:
        asked(prefix, lambda: port.generate(namespace, objects, deadline_ns))
    except CelFailed as error:
        raise ExpressionFailed(_CODE, error.message) from error


def _value(linked: LinkedExpression, scope: PolicyScope, runtime: Runtime) -> Json:
    try:
        value = scope.value(linked)
    except ExpressionFailed as error:
        message = (
            f"failed to evaluate placeholder {quote(linked.text)}: {error.message}"
        )
        raise ExpressionFailed(error.code, message) from error
    try:
        return _native(value, runtime)
    except CelFailed as error:
        message = f"failed to convert placeholder {quote(linked.text)} result"
        raise ExpressionFailed(_CODE, f"{message}: {error.message}") from error


def _native(value: Value, runtime: Runtime) -> Json:
    """Return the value as JSON data; an integer keeps its type. Raises: CelFailed."""
    kind = value.__class__
    if kind is int:
        return value
    if kind is Uint:
        if value > _INT64_MAX:
            message = f"uint value {value} overflows the supported integer range"
            raise CelFailed(message)
        return int(value)
    meter = Meter(budget=runtime)
    converted = protobuf_data(meter, value)
    runtime.charge(meter.settle())
    return converted


def _text(linked: LinkedExpression, scope: PolicyScope, runtime: Runtime) -> str:
    """Return a scalar as Go prints it. Raises: ExpressionFailed."""
    value = _value(linked, scope, runtime)
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is float:
        return float_g(value)
    if type(value) is int:
        return str(value)
    raise ExpressionFailed(
        _CODE,
        f"placeholder {quote(linked.text)} embedded in a string must evaluate to a"
        f" scalar, got {_GO_TYPES[type(value)]}; use a whole-value placeholder for"
        " structured results",
    )


def _place(path: Sequence[str | int]) -> str:
    return "".join(
        f"field {quote(step)}: " if isinstance(step, str) else f"item {step}: "
        for step in path
    )


def _copied(value: Json) -> Json:
    """Return a copy: what is generated may be changed."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


def _count(value: Json) -> int:
    if type(value) is dict:
        return 1 + sum(map(_count, value.values()))
    return 1 + sum(map(_count, value)) if type(value) is list else 1
