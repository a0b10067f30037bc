"""Implement ``generator.apply``.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
May touch: the cluster, through the port of the variable.
Source: kyverno/sdk cel/libs/generator; docs/behaviour/cel 10.2, 12.
"""

from typing import Final

from kyverno_mp.expr.cel.functions.kyverno.documents import protobuf_data
from kyverno_mp.expr.cel.library import Declaration
from kyverno_mp.expr.cel.outside import GeneratorContext, asked, twins
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value
from kyverno_mp.expr.effects import EFFECT_CLUSTER

_PREFIX: Final = "failed to generate resources"


def _apply(
    meter: Meter, context: GeneratorContext, namespace: str, items: list[Value]
) -> bool:
    """Generate the objects in the namespace; it is "" for cluster-scoped kinds."""
    if context.namespace and namespace != context.namespace:
        raise CelFailed(
            f'cross-namespace generation denied: policy in "{context.namespace}" cannot'
            f' generate into "{namespace}"'
        )
    port = context.port
    if port is None:
        raise CelFailed(f"{_PREFIX}: nothing can be generated here")
    for index, item in enumerate(items):
        # At run time a dynamic value can have any type.
        if item.__class__ is not dict:
            raise CelFailed(f"invalid arg 2: element {index} is not a map")
    objects = [protobuf_data(meter, item) for item in items]
    asked(_PREFIX, lambda: port.generate(namespace, objects, context.deadline_ns))
    return True


OVERLOADS: Final[tuple[Declaration, ...]] = tuple(
    twins(
        "apply",
        "GeneratorContext, string, list(map(string, any))",
        "bool",
        _apply,
        EFFECT_CLUSTER,
    )
)
