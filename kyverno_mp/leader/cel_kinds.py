"""Define how the leader handles each kind of policies.kyverno.io, one row each.

Room: leader. Takes: nothing. Gives: CEL_KINDS, CEL_SEGMENTS. Next:
leader/policy_store.py compiles the policies, leader/policy_segments.py publishes them.
May touch: nothing.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from kyverno_mp.leader.compile_cache import CompileOutcome
from kyverno_mp.leader.documents.cel import compile_cel_document
from kyverno_mp.leader.documents.generating import compile_generating_document
from kyverno_mp.leader.documents.images import compile_image_document
from kyverno_mp.leader.documents.mutating import compile_mutating_document
from kyverno_mp.leader.stored_document import StoredDocument
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
)
from kyverno_mp.snapshot.cel_policies import CEL_POLICIES
from kyverno_mp.snapshot.generating_policies import GENERATING_POLICIES
from kyverno_mp.snapshot.image_policies import IMAGE_POLICIES
from kyverno_mp.snapshot.mutating_policies import MUTATING_POLICIES
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
)


class Compile(Protocol):
    """Compiles one policy with the exceptions that may name it."""

    def __call__(
        self,
        document: StoredDocument,
        raw: Json,
        exceptions: list[CelPolicyException],
        *,
        force_ignore: bool,
        has_background: bool,
    ) -> CompileOutcome:
        """Compile a policy. Raises: InputError."""


class CelKind(NamedTuple):
    """A kind: the segment of its policies, and the function that compiles them."""

    segment: str
    compile: Compile


_VALIDATING: Final = CelKind(CEL_POLICIES, compile_cel_document)
_MUTATING: Final = CelKind(MUTATING_POLICIES, compile_mutating_document)
_GENERATING: Final = CelKind(GENERATING_POLICIES, compile_generating_document)
_IMAGES: Final = CelKind(IMAGE_POLICIES, compile_image_document)
CEL_KINDS: Final[Mapping[str, CelKind]] = {
    **dict.fromkeys(VALIDATING_POLICY.names, _VALIDATING),
    **dict.fromkeys(MUTATING_POLICY.names, _MUTATING),
    **dict.fromkeys(GENERATING_POLICY.names, _GENERATING),
    **dict.fromkeys(IMAGE_VALIDATING_POLICY.names, _IMAGES),
}
CEL_SEGMENTS: Final = tuple(dict.fromkeys(one.segment for one in CEL_KINDS.values()))
