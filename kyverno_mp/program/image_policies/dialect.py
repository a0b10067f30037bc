"""Define the variables of ImageValidatingPolicies, and where they have no value.

Room: program. Takes: nothing. Gives: ``dialect_of``, ``before_images``,
``of_conditions``. Next: evaluate.py.
Source: docs/behaviour/cel 5, 10.4; Kyverno
pkg/image/verification/evaluator/{compiler,policy}.go.
"""

from functools import cache, partial
from typing import Final

from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.functions.kyverno.image_verification import CONTEXT
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.program.context.cel_scope import Dialect
from kyverno_mp.program.validating_policy.scope import before_variables

_OF_IMAGES: Final = frozenset({"images", "attestors", "attestations"})
_NAMES: Final = (
    "object",
    "oldObject",
    "request",
    "namespaceObject",
    "images",
    "attestors",
    "attestations",
    "resource",
    "globalContext",
    "image",
    "http",
    "json",
    "yaml",
    CONTEXT,
    "variables",
)


def _never(_expression: Expression) -> bool:
    return False


@cache
def dialect_of(kind: str, *, namespaced: bool) -> Dialect:
    """Return the dialect of a kind's cluster policies or of namespaced policies."""
    library = partial(kyverno_library, namespaced=namespaced, kind=kind)
    return Dialect(_NAMES, frozenset({"variables"}), library, _never)


def before_images(dialect: Dialect) -> Dialect:
    """Return the dialect of extractors, which run before the images are known."""
    return dialect._replace(absent=_OF_IMAGES)


def of_conditions(dialect: Dialect) -> Dialect:
    """Return the dialect of the conditions of a policy and its exceptions."""
    return before_variables(before_images(dialect))
