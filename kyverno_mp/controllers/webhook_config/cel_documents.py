"""Decode the policies of policies.kyverno.io that need webhooks, each text once.

Room: controllers. Takes: policies as JSON. Gives: DecodedCelPolicies. Next:
controllers/webhook_config/cel.py. May touch: nothing outside its arguments, the log.
Source: docs/behaviour/controllers 3.3.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kyverno_mp.controllers.policy_status import PolicyName
from kyverno_mp.errors import InputError
from kyverno_mp.policy.cel_kinds.served import (
    SERVED_CEL_KINDS,
    AnyServedPolicy,
    decode_served,
)
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException

_log = logging.getLogger(__name__)


class DecodedCelPolicies:
    """The last decoded policies; an unchanged text yields the same object."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, AnyServedPolicy | None] = {}

    def decode(self, documents: Iterable[bytes]) -> tuple[AnyServedPolicy, ...]:
        """Return the policies; log and skip invalid documents."""
        known, self._decoded = self._decoded, {}
        for text in documents:
            found = known[text] if text in known else _decoded(text)
            self._decoded[text] = found
        return tuple(one for one in self._decoded.values() if one is not None)

    @staticmethod
    def in_force(
        policies: Sequence[AnyServedPolicy], kept: Mapping[PolicyName, str]
    ) -> list[AnyServedPolicy]:
        """Return the policies in the versions that workers evaluate."""
        found = [policy for policy in policies if cel_name_of(policy) not in kept]
        earlier = (
            _decoded(text.encode())
            for name, text in kept.items()
            if name[0] in SERVED_CEL_KINDS
        )
        return [*found, *(one for one in earlier if one is not None)]


def cel_name_of(policy: AnyServedPolicy) -> PolicyName:
    """Return the key of a policy in Served."""
    return policy.kind, policy.metadata.namespace, policy.metadata.name


def _decoded(text: bytes) -> AnyServedPolicy | None:
    try:
        found = decode_served(msgspec.json.decode(text))
    except InputError as error:
        _log.warning("policy excluded from the webhooks: %s", error.message)
        return None
    return None if isinstance(found, CelPolicyException) else found
