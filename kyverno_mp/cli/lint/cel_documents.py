"""Decode policies in CEL of all kinds, and their PolicyExceptions.

Room: cli. Takes: raw documents of policies.kyverno.io. Gives: ``is_of_cel``,
``decode_of_cel``. Next: command. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 1.
"""

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
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AnyValidatingPolicy,
    CelPolicyException,
    decode_validating_policy,
    is_validating_policy,
)
from kyverno_mp.values.jsonvalue import Json


def is_of_cel(raw: Json) -> bool:
    """Return whether this version evaluates documents of this kind."""
    return is_validating_policy(raw) or is_cel_policy(raw) or is_image_policy(raw)


def decode_of_cel(
    raw: dict[str, Json],
) -> AnyValidatingPolicy | AnyCelPolicy | ImageValidatingPolicy | CelPolicyException:
    """Decode a document for which ``is_of_cel`` is true. Raises: DocumentInvalid."""
    if is_image_policy(raw):
        return decode_image_policy(raw)
    if is_cel_policy(raw):
        return decode_cel_policy(raw)
    return decode_validating_policy(raw)
