"""Decode the policies that need webhooks, each document once.

Room: controllers. Takes: policies as JSON. Gives: DecodedPolicies;
policies_in_force. Next: controllers/webhook_config/controller.py.
May touch: nothing outside its arguments, the log.
Source: docs/behaviour/controllers 3.3.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kyverno_mp.controllers.policy_status import PolicyName, name_of
from kyverno_mp.errors import InputError
from kyverno_mp.policy.cel_kinds.served import SERVED_CEL_KINDS
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.reading.decode import decode

_log = logging.getLogger(__name__)


class DecodedPolicies:
    """The last decoded policies; an unchanged text yields the same object."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, AnyPolicy | None] = {}

    def decode(self, documents: Iterable[bytes]) -> tuple[AnyPolicy, ...]:
        """Return the policies; log and skip invalid documents."""
        return tuple(self._decode(documents))

    def _decode(self, documents: Iterable[bytes]) -> Iterator[AnyPolicy]:
        known, self._decoded = self._decoded, {}
        for text in documents:
            found = known[text] if text in known else _decoded(text)
            self._decoded[text] = found
            if found is not None:
                yield found


def policies_in_force(
    policies: Sequence[AnyPolicy], kept: Mapping[PolicyName, str]
) -> list[AnyPolicy]:
    """Return the policies in the versions that workers evaluate.

    ``kept`` contains the earlier versions, as JSON, that stay in force in place of
    rejected ones. The webhooks must match the resources of the last valid version.
    """
    found = [policy for policy in policies if name_of(policy) not in kept]
    earlier = (
        _decoded(text.encode())
        for name, text in kept.items()
        if name[0] not in SERVED_CEL_KINDS
    )
    return [*found, *(one for one in earlier if one is not None)]


def _decoded(text: bytes) -> AnyPolicy | None:
    try:
        document = decode(msgspec.json.decode(text))
    except InputError as error:
        _log.warning("policy excluded from the webhooks: %s", error.message)
        return None
    return document if isinstance(document, AnyPolicy) else None
