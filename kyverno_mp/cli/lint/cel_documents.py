"""Decode policies in CEL of all kinds, and find misleading parts of them.

Room: cli. Takes: raw documents of policies.kyverno.io. Gives: ``is_of_cel``,
``decode_of_cel``, ``cel_concerns``. Next: command. May touch: nothing outside its
arguments.
Source: docs/behaviour/cel 1; docs/behaviour/v1.19 5 (required); docs/images.md.
"""

from collections.abc import Iterator
from typing import Final

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
from kyverno_mp.values.jsonvalue import Json


def is_of_cel(raw: Json) -> bool:
    """Return whether this version evaluates documents of this kind."""
    is_validating = is_validating_policy(raw) or is_authorization_policy(raw)
    return is_validating or is_cel_policy(raw) or is_image_policy(raw)


def decode_of_cel(
    raw: dict[str, Json],
) -> AnyValidatingPolicy | AnyCelPolicy | ImageValidatingPolicy | CelPolicyException:
    """Decode a document for which ``is_of_cel`` is true. Raises: DocumentInvalid."""
    if is_image_policy(raw):
        return decode_image_policy(raw)
    if is_cel_policy(raw):
        return decode_cel_policy(raw)
    return decode_validating_policy(raw)


def of_authorization(
    document: AnyValidatingPolicy
    | AnyCelPolicy
    | ImageValidatingPolicy
    | CelPolicyException,
) -> AuthorizationPolicy | CelPolicyException | None:
    """Return a policy that authorizes requests, or an exception to such policies."""
    if isinstance(document, CelPolicyException):
        is_exception = document.spec.evaluation_mode in AUTHORIZATION_MODES
        return document if is_exception else None
    if isinstance(document, AuthorizationPolicy) and authorizes(document):
        return document
    return None


_VERIFIERS: Final = ("verifyImageSignatures", "verifyAttestationSignatures")


def cel_concerns(
    document: AnyValidatingPolicy
    | AnyCelPolicy
    | ImageValidatingPolicy
    | CelPolicyException,
    *,
    for_server: bool,
) -> Iterator[Concern]:
    """Yield the misleading parts of a policy in CEL."""
    if isinstance(document, AnyServedPolicy):
        for path, text in copy_warnings(document):
            yield Concern("lint.autogen_controllers", path, "", text)
    if not (for_server and isinstance(document, ImageValidatingPolicy)):
        return
    spec = document.spec
    given = spec.validation_configurations
    texts = [validation.expression for validation in spec.validations]
    texts += [variable.expression for variable in spec.variables]
    is_verified = any(name in text for text in texts for name in _VERIFIERS)
    if not is_verified and (given is None or given.required):
        text = (
            "no expression verifies signatures, so in a cluster every image fails:"
            " required is true by default; set it to false if image data is enough"
        )
        path = "spec.validationConfigurations" + (".required" if given else "")
        yield Concern("lint.unverified_images", path, "", text)
