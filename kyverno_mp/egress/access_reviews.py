"""Check permissions with SubjectAccessReviews; a permission is cached for five seconds.

Room: egress. Takes: an account, a verb, a PermissionTarget. Gives:
LivePermissions; satisfies policy/ports.Permissions. Next: webhook/live.py.
May touch: the API server through egress/authority.py, the clock.
Source: docs/behaviour/controllers 5.9; Kyverno pkg/auth (SubjectAccessReview).
"""

import threading
import time
from collections.abc import Mapping
from typing import Final

from kyverno_mp.egress.authority import LiveAuthority
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import ACCESS_ANSWERS_MAX
from kyverno_mp.policy.ports import OF_SERVICE, Author, PermissionTarget
from kyverno_mp.program.ports import AccessQuery

_ACCOUNT: Final = "system:serviceaccount:"
_KEPT_S: Final = 5.0
"""Denials are not cached, so a retry after a grant succeeds at once."""
_CALL_NS_MAX: Final = 3 * 10**9
_ATTRIBUTES: Final = (
    "verb",
    "group",
    "version",
    "resource",
    "subresource",
    "namespace",
    "name",
)
_Question = tuple[str, str, str, str, str, str, str, str]
"""The account, then the values of _ATTRIBUTES."""


class LivePermissions:
    """Permissions that the API server's authorizers grant; thread-safe."""

    def __init__(self, client: Client, own_namespace: str = "kyverno") -> None:
        """``own_namespace``: that of this service."""
        self._authority = LiveAuthority(client)
        self._own_namespace = own_namespace
        self._lock = threading.Lock()
        self._granted_s: dict[_Question, float] = {}

    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        """Return the verdict of a SubjectAccessReview. Raises: DependencyError."""
        resource = target.resource
        question = (
            account,
            verb,
            resource.group,
            resource.version,
            resource.plural,
            target.subresource,
            target.namespace,
            target.name,
        )
        now_s = time.monotonic()
        with self._lock:
            granted_s = self._granted_s.get(question)
        if granted_s is not None and now_s - granted_s < _KEPT_S:
            return True
        if not self._ask(question):
            return False
        with self._lock:
            if len(self._granted_s) >= ACCESS_ANSWERS_MAX:
                self._granted_s.clear()
            self._granted_s[question] = now_s
        return True

    def author_may(
        self, author: Author, attributes: Mapping[str, str], deadline_ns: int
    ) -> bool:
        """Return whether a user may do something; nothing is cached.

        Raises: DependencyError.
        """
        if attributes["namespace"] == OF_SERVICE:
            attributes = {**attributes, "namespace": self._own_namespace}
        access_query = AccessQuery(
            user=author.name,
            groups=tuple(author.groups),
            extra=author.extra,
            attributes=attributes,
        )
        return self._authority.may(access_query, deadline_ns)[0]

    def _ask(self, question: _Question) -> bool:
        account, *values = question
        attributes = dict(zip(_ATTRIBUTES, values, strict=True))
        access_query = AccessQuery(
            user=account,
            groups=_groups_of(account),
            attributes={name: value for name, value in attributes.items() if value},
        )
        return self._authority.may(access_query, time.monotonic_ns() + _CALL_NS_MAX)[0]


def _groups_of(account: str) -> tuple[str, ...]:
    """Return the groups to which every service account belongs.

    Upstream sends no groups, so it misses permissions granted to a group.
    """
    if not account.startswith(_ACCOUNT):
        return ("system:authenticated",)
    namespace = account.removeprefix(_ACCOUNT).partition(":")[0]
    return (
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    )
