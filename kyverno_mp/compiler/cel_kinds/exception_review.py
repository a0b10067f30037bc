"""Check a single PolicyException when it is created.

Room: compiler. Takes: decoded exceptions of either group. Gives: why an exception takes
too many steps to compile. Next: webhook/policy_review.py. May touch: nothing outside
its arguments.
Source: docs/differences.md (policies that are rejected).

The leader ignores such an exception, so its author gets the error on creation.
"""

from functools import partial
from typing import Final

from kyverno_mp.compiler.cel_kinds import image_validating_policy as images
from kyverno_mp.compiler.cel_kinds.policies import (
    EXCEPTION_NAMES_OF_DELETING,
    EXCEPTION_NAMES_OF_GENERATING,
)
from kyverno_mp.compiler.cel_kinds.validating_policy import (
    EXCEPTION_NAMES,
    Builder,
    compile_exception,
)
from kyverno_mp.compiler.expression_faults import located_fault
from kyverno_mp.compiler.rules.exceptions import build_exception
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.patches import mutating_library
from kyverno_mp.expr.compile_budget import EXCEPTION_TOO_COSTLY, for_exception
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.problems import Problem

_BUILDERS: Final = {
    "ValidatingPolicy": partial(Builder, names=EXCEPTION_NAMES),
    "MutatingPolicy": partial(Builder, names=EXCEPTION_NAMES, library=mutating_library),
    "GeneratingPolicy": partial(
        Builder,
        names=EXCEPTION_NAMES_OF_GENERATING,
        library=partial(kyverno_library, kind="GeneratingPolicy"),
    ),
    "DeletingPolicy": partial(
        Builder,
        names=EXCEPTION_NAMES_OF_DELETING,
        library=partial(kyverno_library, kind="DeletingPolicy"),
    ),
    "ImageValidatingPolicy": partial(
        Builder,
        names=images.EXCEPTION_NAMES,
        library=partial(kyverno_library, kind="ImageValidatingPolicy"),
    ),
}


def exception_faults(document: CelPolicyException) -> list[Problem]:
    """Return the errors in the expressions, for each kind of policy that it names."""
    kinds = {ref.kind.removeprefix("Namespaced") for ref in document.spec.policy_refs}
    found: list[Problem] = []
    for kind in sorted(kinds & _BUILDERS.keys()):
        builder = _BUILDERS[kind]("")
        try:
            with for_exception():
                compile_exception(document, builder)
        except PolicyInvalid:
            return found  # its cost is reported when it is reviewed
        found += map(located_fault, builder.problems)
    return list(dict.fromkeys(found))


def cost_problem(document: PolicyException | CelPolicyException) -> str:
    """Return why an exception takes too many steps to compile, "" if it does not.

    The exception is compiled once for each policy kind that it names, with the budget
    that the leader grants it per policy. Raises: ExpressionInvalid for a
    PolicyException of kyverno.io.
    """
    try:
        if isinstance(document, PolicyException):
            with for_exception():
                build_exception(document)
            return ""
        kinds = {
            ref.kind.removeprefix("Namespaced") for ref in document.spec.policy_refs
        }
        for kind in sorted(kinds & _BUILDERS.keys()):
            with for_exception():
                compile_exception(document, _BUILDERS[kind](""))
    except PolicyInvalid as error:
        if error.code != EXCEPTION_TOO_COSTLY:
            raise
        return f"{error.message} [{error.code}]"
    return ""
