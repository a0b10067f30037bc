"""Replace policies whose author has lost a right that they use.

Room: leader. Takes: the policies to publish, reasons by key. Gives: their replacements.
Next: leader/policy_store.py.
Source: docs/operate.md (the author of a namespaced policy).

SAFETY: the replacement writes and reads nothing with our permissions. Its rules for
reviews fail where they match, so nothing that the policy denies is allowed for it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.compiler.unlinked import unlinked
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.documents.linked_memory import Limited
from kyverno_mp.leader.status import PolicyStatus
from kyverno_mp.leader.stored_document import Key

NO_RIGHTS: Final = "leader.author_rights"
"""Code of a policy whose author has lost a right that it uses."""
_EFFECT: Final = "; it is not carried out, and its rules are errors where they match"


def without_rights(
    policies: Mapping[Key, tuple[EncodedPolicy | None, PolicyStatus]],
    lost: Mapping[Key, str],
) -> dict[Key, Limited]:
    """Return the replacements; ``lost`` may name policies that do not exist."""
    limited: dict[Key, Limited] = {}
    for key, reason in lost.items():
        if key not in policies:
            continue
        encoded, status = policies[key]
        stub = None if encoded is None else unlinked(encoded, key[0])
        status = msgspec.structs.replace(
            status, ready=False, code=NO_RIGHTS, message=f"{reason}{_EFFECT}"
        )
        limited[key] = Limited(stub, status)
    return limited
