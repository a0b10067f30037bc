"""Protect the objects that Kyverno manages from changes by other users.

Room: webhook. Takes: our namespace, a Request. Gives: whether the request is denied.
Next: service.
Source: docs/behaviour/controllers 2.4; Kyverno pkg/webhooks/handlers/protect.go.
"""

from typing import Final

from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request

REFUSAL: Final = "A kyverno managed resource can only be modified by kyverno"
_LABEL: Final = "app.kubernetes.io/managed-by"
_MANAGER: Final = "kyverno"
_NAMESPACE_CONTROLLER: Final = "system:serviceaccount:kube-system:namespace-controller"


class Protection:
    """Rejects changes by all users except the ServiceAccounts of one namespace."""

    __slots__ = ("_own",)

    def __init__(self, namespace: str) -> None:
        self._own = f"system:serviceaccount:{namespace}:"

    def refuses(self, request: Request) -> bool:
        """Return whether the request changes a protected object of Kyverno."""
        if request.username.startswith(self._own):
            return False
        # K8S: the namespace controller must be able to empty a deleted namespace.
        emptied = request.username == _NAMESPACE_CONTROLLER
        if emptied and request.operation == "DELETE":
            return False
        return any(map(_is_managed, (request.object, request.old_object)))


def _is_managed(resource: dict[str, object]) -> bool:
    labels = metadata_of(resource).get("labels") if resource else None
    return isinstance(labels, dict) and labels.get(_LABEL) == _MANAGER
