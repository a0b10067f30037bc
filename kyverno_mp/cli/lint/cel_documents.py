"""Find faulty and misleading parts of policies in CEL of all kinds.

Room: cli. Takes: documents of policies.kyverno.io. Gives: ``expressions_of``,
``cel_concerns``. Next: command.
Source: docs/behaviour/cel 1; docs/behaviour/v1.19 5 (required); docs/images.md.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.compiler.autogen.cel import copy_warnings
from kyverno_mp.policy.cel_kinds.served import AnyCelDocument, AnyServedPolicy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AUTHORIZATION_MODES,
    AuthorizationPolicy,
    CelPolicyException,
    authorizes,
)
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of

_AnyDocument: TypeAlias = AnyCelDocument | CelPolicyException


def expressions_of(document: _AnyDocument, *, for_server: bool) -> Iterator[Problem]:
    """Yield the errors of expressions, and for a server its reasons to reject it."""
    # Imported late: only runs with such documents need CEL.
    if isinstance(document, CelPolicyException):
        from kyverno_mp.compiler.cel_kinds.exception_review import exception_faults

        yield from exception_faults(document)
        if document.spec.evaluation_mode not in AUTHORIZATION_MODES:
            return
    elif not (isinstance(document, AuthorizationPolicy) and authorizes(document)):
        from kyverno_mp.compiler.cel_kinds.review import entry_problems, faults, review

        yield from faults(document)
        if for_server:
            yield from review(document)
            yield from entry_problems(document)
        return
    from kyverno_mp.compiler.cel_kinds.authorization import faults as faults_of_mode

    yield from faults_of_mode(document)


_VERIFIERS: Final = ("verifyImageSignatures", "verifyAttestationSignatures")


def cel_concerns(
    document: _AnyDocument,
    *,
    for_server: bool,
) -> Iterator[Concern]:
    """Yield the misleading parts of a policy in CEL."""
    if isinstance(document, AnyServedPolicy):
        for path, message in copy_warnings(document):
            yield Concern("lint.autogen_controllers", path, "", message)
    if not (for_server and rule_type_of(document.kind) == "verifyImages"):
        return
    spec: Any = document.spec
    configurations = spec.validation_configurations
    expressions = [validation.expression for validation in spec.validations]
    expressions += [variable.expression for variable in spec.variables]
    is_verified = any(
        name in expression for expression in expressions for name in _VERIFIERS
    )
    if not is_verified and (configurations is None or configurations.required):
        message = (
            "no expression verifies signatures, so in a cluster every image fails:"
            " required is true by default; set it to false if image data is enough"
        )
        path = "spec.validationConfigurations" + (".required" if configurations else "")
        yield Concern("lint.unverified_images", path, "", message)
