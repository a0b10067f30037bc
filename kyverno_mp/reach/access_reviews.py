"""Ask the API server who may do what, and remember the answers for a moment.

Room: reach. Takes: an account, a verb, a Target. Gives: LivePermissions; satisfies
policy/ports.Permissions. Next: webhook/live.py.
May touch: the API server through kube/rest.py, the clock.
Source: spec/controllers.md 5.9; Kyverno pkg/auth (SubjectAccessReview).
"""

import threading
import time
from typing import Final

import msgspec

from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import ACCESS_ANSWERS_MAX
from kyverno_mp.policy.ports import Target
from kyverno_mp.values.jsonvalue import Json

_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ACCOUNT: Final = "system:serviceaccount:"
_KEPT_S: Final = 5.0
"""Who grants a permission and tries again is not to be told of the past."""
_CALL_NS_MAX: Final = 5 * 10**9
_Question = tuple[str, str, str, str, str, str, str, str]


class LivePermissions:
    """What RBAC, or whoever authorises, grants; for any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._answers: dict[_Question, tuple[float, bool]] = {}

    def allows(self, account: str, verb: str, target: Target) -> bool:
        """Answer as a SubjectAccessReview does. Raises: DependencyError."""
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
            known = self._answers.get(question)
        if known is not None and now_s - known[0] < _KEPT_S:
            return known[1]
        allowed = self._ask(question)
        with self._lock:
            if len(self._answers) >= ACCESS_ANSWERS_MAX:
                self._answers.clear()
            self._answers[question] = (now_s, allowed)
        return allowed

    def _ask(self, question: _Question) -> bool:
        account, verb, group, version, plural, subresource, namespace, name = question
        attributes = {
            "verb": verb,
            "group": group,
            "version": version,
            "resource": plural,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account,
                "groups": _groups_of(account),
                "resourceAttributes": {k: v for k, v in attributes.items() if v},
            },
        }
        call = Call(
            method="POST",
            path=_PATH,
            body=msgspec.json.encode(review),
            # K8S: a review stores nothing, so asking twice comes to the same.
            repeatable=True,
        )
        answer: Json = self._client.send(call, time.monotonic_ns() + _CALL_NS_MAX)
        return (answer.get("status") or {}).get("allowed") is True


def _groups_of(account: str) -> list[str]:
    """Return the groups that every service account is in.

    Upstream sends none, so a grant to such a group is not seen by it.
    """
    if not account.startswith(_ACCOUNT):
        return ["system:authenticated"]
    namespace = account.removeprefix(_ACCOUNT).partition(":")[0]
    return [
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    ]
