"""Merge a MutatingPolicy's apply configuration into the object.

Room: program. Takes: an object, the value of an expression, the schemas of kinds.
Gives: the merged object. Next: mutate.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 10.1; Kyverno
pkg/cel/policies/mpol/compiler/applyconfig.go.
"""

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.patches import configuration
from kyverno_mp.expr.cel.values import Value
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.typed.merge import Merger
from kyverno_mp.values.typed.schema import Schemas

_PREFIX = "error applying patch"


def configured(
    resource: dict[str, Json],
    value: Value,
    schemas: Schemas,
    spend: Runtime,
    *,
    replaces_atomics: bool = False,
) -> dict[str, Json]:
    """Return the merged object; ``replaces_atomics``: atomic values can be replaced.

    Raises: ExpressionFailed with upstream's message.
    """
    patch = configuration(value, spend)
    api_version, kind = resource.get("apiVersion", ""), resource.get("kind", "")
    notation = schemas.kinds.get((api_version, kind), "")
    if not notation:
        message = "type converter must not be nil"
        if api_version in schemas.versions:
            message = (
                "failed to convert patch object to typed object: no corresponding type"
                f" for {api_version}, Kind={kind}"
            )
        raise ExpressionFailed("cel.patch", f"{_PREFIX}: {message}")
    patch = {**patch, "apiVersion": api_version, "kind": kind}
    try:
        merged: dict[str, Json] = Merger(schemas, notation, spend).merge(
            resource, patch, replaces_atomics=replaces_atomics
        )
    except ExpressionFailed as error:
        raise ExpressionFailed(error.code, f"{_PREFIX}: {error.message}") from error
    return merged
