"""Give policies whose documents are not kept their stubs and their status.

Room: leader. Takes: the policies to publish, the documents. Gives: their replacements.
Next: leader/policy_store.py.
Source: docs/operate.md (room for policies).

SAFETY: an outline has only the matches of its policy (leader/outline.py), so
it is published as a stub, which fails where the policy matches.
"""

from collections.abc import Iterator, Mapping, Sized
from typing import Final

import msgspec

from kyverno_mp.compiler.unlinked import is_missed, unlinked
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.documents.linked_memory import Limited
from kyverno_mp.leader.status import OVER_SOURCES, PolicyStatus
from kyverno_mp.leader.stored_document import Key, StoredDocument

_SHARE: Final = (
    "more than the namespace's part of what the policies and exceptions of all"
    " namespaces may take in the leader of this pod"
)
_EFFECT: Final = "; its rules are errors where they match"


def without_documents(
    policies: Mapping[Key, tuple[EncodedPolicy | None, PolicyStatus]],
    documents: Mapping[Key, StoredDocument],
) -> dict[Key, Limited]:
    """Return the replacements of the policies of which only outlines are kept."""
    limited: dict[Key, Limited] = {}
    for key, (encoded, status) in policies.items():
        size = documents[key].outline_of
        if not size:
            continue
        stub = None if encoded is None else unlinked(encoded, key[0])
        lost = encoded is not None and stub is None and is_missed(encoded, key[0])
        message = f"its document has {size >> 10} KiB, {_SHARE}{_EFFECT}"
        refused = msgspec.structs.replace(
            status, ready=False, code=OVER_SOURCES, message=message, in_force=""
        )
        limited[key] = Limited(stub, refused, lost)
    return limited


def no_exception(document: StoredDocument) -> str:
    """Return the problem of an exception of which only an outline is kept."""
    _, namespace, name = document.key
    size = document.outline_of >> 10
    return f"PolicyException {namespace}/{name} is ignored: {size} KiB are {_SHARE}"


def left_out(policies: Sized) -> Iterator[str]:
    """Yield the reason why policies are left out, if any are."""
    if policies:
        yield (
            f"{len(policies)} namespaced policies are not in force, because the"
            " documents of their namespaces take more than their share of this pod"
        )
