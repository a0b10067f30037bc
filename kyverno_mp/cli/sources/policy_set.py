"""Define what the policy paths of a run contain.

Room: cli. Takes: decoded documents. Gives: PolicySet. Next: policies, compiled.
Source: docs/behaviour/cli 4.
"""

from typing import TYPE_CHECKING

import msgspec

from kyverno_mp.policy.cel_kinds.admission_policy import (
    AdmissionBinding,
    AdmissionPolicy,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AuthorizationPolicy,
    CelPolicyException,
)
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.policy.cel_kinds.policies import AnyCelPolicy
    from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy


class PolicySet(msgspec.Struct):
    """The content of the policy paths."""

    documents: list[AnyPolicy] = []
    raw: dict[str, Json] = {}
    """Policy key -> the document as written (for checks of a test file)."""
    exceptions: list[PolicyException] = []
    cleanups: list[AnyCleanupPolicy] = []
    admission: list[AdmissionPolicy] = []
    bindings: list[AdmissionBinding] = []
    validating: "list[AnyServedPolicy]" = []
    authorization: list[AuthorizationPolicy] = []
    """Policies in the evaluation modes HTTP and Envoy."""
    cel: "list[AnyCelPolicy]" = []
    """Those that mutate, generate or delete."""
    images: "list[AnyServedPolicy]" = []
    cel_exceptions: list[CelPolicyException] = []
    failed_paths: list[tuple[str, str]] = []
    """(path, reason) of paths and single documents that could not be loaded."""
    lost_paths: list[str] = []
    """Upstream's message for each path that could not be loaded at all."""
    warnings: list[str] = []
    """What a loaded policy says and nothing reads, each with file, policy and field."""
    unread: list[str] = []
    """Folders or parts of folders that could not be read."""
    silent: list[tuple[str, str]] = []
    """(path, reason) of what is skipped without a word: as upstream, files of a
    repository that cannot be used, and paths without policies."""

    foreign: list[tuple[str, str]] = []
    """The entries of ``failed_paths`` for documents that are no policies at all."""

    @property
    def has_policies(self) -> bool:
        """Return whether any policy or exception was loaded."""
        non_policies = {
            "raw",
            "failed_paths",
            "lost_paths",
            "warnings",
            "unread",
            "silent",
            "foreign",
        }
        return any(
            getattr(self, name) for name in {*self.__struct_fields__} - non_policies
        )

    @property
    def of_other_kinds(self) -> list[str]:
        """Return the policies of kinds that bench does not evaluate."""
        return [
            f"{policy.api_version} {policy.kind} {policy.metadata.name}"
            for policy in (
                *self.validating,
                *self.authorization,
                *self.cel,
                *self.images,
            )
        ]
