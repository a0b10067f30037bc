"""List the kinds of policies.kyverno.io that the server evaluates, and decode them.

Room: policy. Takes: raw documents. Gives: typed documents. Next:
leader/policy_store.py, webhook/policy_review.py, controllers/webhook_config/cel.py.
Source: docs/behaviour/cel 1, 2.
"""

from typing import Final

import msgspec

from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    ImageValidatingPolicy,
    decode_image_policy,
    is_image_policy,
)
from kyverno_mp.policy.cel_kinds.policies import (
    AnyCelPolicy,
    ReviewedCelPolicy,
    decode_cel_policy,
    is_cel_policy,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    JSON_MODE,
    AnyValidatingPolicy,
    CelPolicyException,
    decode_validating_policy,
    evaluation_mode,
    is_authorization_policy,
    is_validating_policy,
    mode_of_authorization,
)
from kyverno_mp.policy.reading.decode import examine
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    REVIEWED_CEL_KINDS,
)

SERVED_CEL_KINDS: Final = frozenset(
    name for row in REVIEWED_CEL_KINDS for name in row.names
)
"""The kinds of policies, without PolicyException."""
AnyServedPolicy = AnyValidatingPolicy | ReviewedCelPolicy | ImageValidatingPolicy
"""Those that reviews evaluate."""
AnyCelDocument = AnyServedPolicy | AnyCelPolicy
"""All policies in CEL."""


def is_served(raw: Json) -> bool:
    """Return whether the server uses ``raw``: a policy or PolicyException."""
    if is_validating_policy(raw) or is_image_policy(raw):
        return True
    return is_cel_policy(raw) and raw["kind"] in SERVED_CEL_KINDS


def authorization_mode(raw: Json) -> str:
    """Return the evaluation mode of a policy for an authorizer, "" for others."""
    return mode_of_authorization(raw) if is_authorization_policy(raw) else ""


def evaluation_mode_of(document: AnyCelDocument) -> str:
    """Return the evaluation mode that a policy names, "" for none."""
    evaluation = getattr(document.spec, "evaluation", None)
    mode: str = getattr(evaluation, "mode", "")
    return mode


def judges_payloads(raw: Json) -> bool:
    """Return whether ``raw`` is a policy in evaluation mode JSON."""
    is_policy = is_validating_policy(raw) or is_image_policy(raw)
    return is_policy and evaluation_mode(raw) == JSON_MODE


def decode_served(
    raw: dict[str, Json], *, file: str = ""
) -> AnyServedPolicy | CelPolicyException:
    """Decode a document for which ``is_served`` is true.

    Raises: DocumentInvalid with all structural problems.
    """
    document = decode_cel_document(raw, file=file)
    assert isinstance(document, AnyServedPolicy | CelPolicyException)
    return document


def is_cel_document(raw: Json) -> bool:
    """Return whether ``raw`` is a policy in CEL of any kind, or an exception for some.

    A policy for an authorizer is one.
    """
    is_validating = is_validating_policy(raw) or is_authorization_policy(raw)
    return is_validating or is_cel_policy(raw) or is_image_policy(raw)


def decode_cel_document(
    raw: dict[str, Json], *, file: str = ""
) -> AnyCelDocument | CelPolicyException:
    """Decode a document for which ``is_cel_document`` is true.

    Raises: DocumentInvalid with all structural problems.
    """
    if is_image_policy(raw):
        return decode_image_policy(raw, file=file)
    if is_cel_policy(raw):
        return decode_cel_policy(raw, file=file)
    return decode_validating_policy(raw, file=file)


def decode_policy(raw: dict[str, Json]) -> msgspec.Struct | None:
    """Decode a policy of any kind; None if its structure is invalid.

    Raises: DocumentInvalid for the kinds in CEL.
    """
    if is_served(raw) or is_cel_policy(raw):
        return decode_cel_document(raw)
    return examine(raw).document
