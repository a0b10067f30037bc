"""Decode policies in CEL of all kinds, and find misleading parts of them.

Room: cli. Takes: raw documents of policies.kyverno.io. Gives: ``is_of_cel``,
``decode_of_cel``, ``expressions_of``, ``cel_concerns``. Next: command.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 1; docs/behaviour/v1.19 5 (required); docs/images.md.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.compiler.autogen.cel import copy_warnings
from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    ImageValidatingPolicy,
    decode_image_policy,
    is_image_policy,
)
from kyverno_mp.policy.cel_kinds.policies import (
    AnyCelPolicy,
    decode_cel_policy,
    is_cel_policy,
)
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AUTHORIZATION_MODES,
    AnyValidatingPolicy,
    AuthorizationPolicy,
    CelPolicyException,
    authorizes,
    decode_validating_policy,
    is_authorization_policy,
    is_validating_policy,
)
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.jsonvalue import Json

_AnyDocument: TypeAlias = (
    AnyValidatingPolicy | AnyCelPolicy | ImageValidatingPolicy | CelPolicyException
)


def is_of_cel(raw: Json) -> bool:
    """Return whether this version evaluates documents of this kind."""
    is_validating = is_validating_policy(raw) or is_authorization_policy(raw)
    return is_validating or is_cel_policy(raw) or is_image_policy(raw)


def decode_of_cel(
    raw: dict[str, Json],
) -> _AnyDocument:
    """Decode a document for which ``is_of_cel`` is true. Raises: DocumentInvalid."""
    if is_image_policy(raw):
        return decode_image_policy(raw)
    if is_cel_policy(raw):
        return decode_cel_policy(raw)
    return decode_validating_policy(raw)


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
    if not (for_server and isinstance(document, ImageValidatingPolicy)):
        return
    spec = document.spec
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
