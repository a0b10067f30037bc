"""Decode the PolicyExceptions of both groups, and find the policies they name.

Room: leader. Takes: StoredDocuments. Gives: exceptions, and for each policy those
that name it. Next: leader/policy_store.py.
Source: docs/behaviour/engine 8.7; docs/behaviour/cel 2.2, 6.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.leader.stored_document import StoredDocument, digest_of
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CEL_EXCEPTION,
    CelPolicyException,
    decode_cel_exception,
)
from kyverno_mp.policy.check import read
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.values.jsonvalue import Json

AnyException = PolicyException | CelPolicyException
EXCEPTIONS: Final = frozenset({"PolicyException", CEL_EXCEPTION})
"""The kinds of exceptions, as named in StoredDocument."""


def read_exception(document: StoredDocument) -> AnyException:
    """Decode an exception of either group. Raises: InputError."""
    raw = document.raw()
    exception: object
    if document.key[0] == CEL_EXCEPTION:
        exception = decode_cel_exception(
            in_namespace(raw, document.key[1]), file=document.file
        )
    else:
        exception, _ = read(raw, file=document.file)
    assert isinstance(exception, PolicyException | CelPolicyException)
    return exception


def in_namespace(raw: Json, namespace: str) -> Json:
    """Return the document with its namespace, or without one if it is cluster-scoped.

    SAFETY: the available functions and the scope of the exception depend on it.
    """
    metadata = raw.get("metadata")
    if type(metadata) is not dict:
        # Decoding rejects it.
        return raw
    return {**raw, "metadata": {**metadata, "namespace": namespace}}


def _exempted_by(exception: AnyException) -> set[str]:
    """Return the keys of the policies that an exception names (``policy_key``)."""
    if isinstance(exception, CelPolicyException):
        return {
            f"{policy_ref.kind} {policy_ref.name}"
            for policy_ref in exception.spec.policy_refs
        }
    return {exempted.policy_name for exempted in exception.spec.exceptions}


@dataclass(frozen=True, slots=True)
class Naming:
    """The exceptions that name one policy, in order, and a digest of them."""

    exceptions: Sequence[AnyException] = ()
    digest: bytes = b""


def by_policy(exceptions: Iterable[AnyException]) -> dict[str, Naming]:
    """Return the exceptions of each policy that they name (``policy_key``)."""
    named: dict[str, list[tuple[AnyException, bytes]]] = {}
    for exception in exceptions:
        encoded = msgspec.json.encode(exception)
        for name in _exempted_by(exception):
            named.setdefault(name, []).append((exception, encoded))
    return {
        name: Naming(
            [exception for exception, _ in pairs],
            digest_of(b"\0".join([encoded for _, encoded in pairs])),
        )
        for name, pairs in named.items()
    }
