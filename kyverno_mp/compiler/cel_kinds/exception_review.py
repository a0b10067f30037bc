"""Check a single PolicyException when it is created.

Room: compiler. Takes: decoded exceptions of either group. Gives: its conditions that do
not compile, its invalid annotations, and why it takes too many steps to compile.
Next: webhook/policy_review.py, cli/lint, cli/apply.
Source: docs/differences.md (policies that are rejected); Kyverno 1.19.1 (conditions of
exceptions for policies in CEL are compiled at admission).

The leader ignores such an exception, so its author gets the error on creation.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.compiler.cel_kinds.kinds import row_of
from kyverno_mp.compiler.cel_kinds.validating_policy import compile_exception
from kyverno_mp.compiler.expression_faults import located_fault
from kyverno_mp.compiler.rules.exceptions import build_exception
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.expr.compile_budget import EXCEPTION_TOO_COSTLY, for_exception
from kyverno_mp.limits import EXCEPTION_CONDITIONS_MAX
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AUTHORIZATION_MODES,
    CelPolicyException,
)
from kyverno_mp.policy.checks.exception import condition_faults
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.kubernetes.policy_kinds import CEL_POLICY_KINDS, OF_AUTHORIZERS

_KINDS: Final = frozenset(row.name for row in CEL_POLICY_KINDS)


def exception_faults(document: CelPolicyException) -> list[Problem]:
    """Return the errors in the expressions, for each kind of policy that it names."""
    faults = list(_form_faults(document))
    for kind in _kinds_of(document):
        builder = row_of(kind).exception_builder()
        try:
            with for_exception():
                compile_exception(document, builder)
        except PolicyInvalid:
            return faults  # its cost is reported when it is reviewed
        faults += map(located_fault, builder.problems)
    return list(dict.fromkeys(faults))


def _kinds_of(document: CelPolicyException) -> list[str]:
    """Return the kinds of policies whose variables the conditions can use.

    No server compiles an exception for policies that authorize requests; ``lint`` does.
    """
    kinds = {ref.kind.removeprefix("Namespaced") for ref in document.spec.policy_refs}
    if document.spec.evaluation_mode in AUTHORIZATION_MODES:
        kinds.discard(OF_AUTHORIZERS.name)
    return sorted(kinds & _KINDS)


def _form_faults(document: CelPolicyException) -> Iterator[Problem]:
    """Yield the faults of annotations, and of the conditions' number and names."""
    path = "spec.matchConditions"
    conditions = document.spec.match_conditions
    yield from document.expiry_problems()
    if len(conditions) > EXCEPTION_CONDITIONS_MAX:
        message = f"{len(conditions)} conditions, at most {EXCEPTION_CONDITIONS_MAX}"
        yield Problem("policy.invalid", path, "", message)
    names = [condition.name for condition in conditions]
    for index, condition in enumerate(conditions):
        for field, value in (
            ("name", condition.name),
            ("expression", condition.expression),
        ):
            if not value.strip():
                field_path = f"{path}[{index}].{field}"
                yield Problem("policy.required", field_path, "", "it is required")
        if condition.name in names[:index]:
            message = f"the name {condition.name} occurs twice"
            yield Problem("policy.invalid", f"{path}[{index}].name", "", message)


def condition_problems(
    document: PolicyException | CelPolicyException,
) -> list[Problem]:
    """Return the conditions that do not compile, and the invalid annotations."""
    if isinstance(document, CelPolicyException):
        return exception_faults(document)
    return [*document.expiry_problems(), *condition_faults(document)]


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
        for kind in _kinds_of(document):
            with for_exception():
                compile_exception(document, row_of(kind).exception_builder())
    except PolicyInvalid as error:
        if error.code != EXCEPTION_TOO_COSTLY:
            raise
        return f"{error.message} [{error.code}]"
    return ""
