"""Query the permissions of the clean-up account from the API server.

Room: cleanup. Takes: a verb, a resource, namespace and name. Gives: OwnAccess.
Next: cleanup/scan.py, cleanup/ttl/watches.py. May touch: the API server through
kube/rest.py, the clock.
Source: Kubernetes authorization.k8s.io/v1 SelfSubjectAccessReview and
SelfSubjectRulesReview; docs/behaviour/lessons 3.10 (resourceNames, Roles).
"""

import threading
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import ACCESS_ANSWERS_MAX, ACCESS_RULES_MAX
from kyverno_mp.values.jsonvalue import Json

_GROUP: Final = "authorization.k8s.io/v1"
_PATH: Final = f"/apis/{_GROUP}"
_CACHED_S: Final = 30.0
_UNBOUND_NAMESPACE: Final = "kyverno-mp-no-such-namespace"
"""K8S: an answer about any namespace contains the rules of ClusterRoleBindings, too."""
_AccessKey = tuple[str, str, str, str, str]


class Rules(NamedTuple):
    """Rules for resources, for each namespace of a question, equal if none changed.

    ``is_complete``: False if an authorizer, such as a webhook, cannot list its rules.
    """

    listed: tuple[tuple[bytes, ...], ...]
    is_complete: bool


class OwnAccess:
    """Permissions of the account that a client acts as; threads may share it."""

    def __init__(self, client: Client, monotonic_s: Callable[[], float]) -> None:
        self._client = client
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._answers: dict[_AccessKey, tuple[float, bool]] = {}
        self._forgotten = 0
        """How often the answers were discarded."""

    def allows(
        self, verb: str, resource: Resource, namespace: str = "", name: str = ""
    ) -> bool:
        """Return whether the account has the permission.

        Namespace "" = in all namespaces, name "" = for all names.
        Raises: DependencyError.
        """
        key = (verb, resource.group, resource.plural, namespace, name)
        now_s = self._monotonic_s()
        with self._lock:
            answer, forgotten = self._answers.get(key), self._forgotten
        if answer is not None and now_s - answer[0] < _CACHED_S:
            return answer[1]
        allowed = self._ask(verb, resource, namespace, name)
        with self._lock:
            if forgotten != self._forgotten:
                # The answer may be older than the grant that ``forget`` is called for.
                return allowed
            if len(self._answers) >= ACCESS_ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = now_s, allowed
        return allowed

    def allows_object(
        self, verb: str, resource: Resource, namespace: str, name: str
    ) -> bool:
        """Return whether any grant covers one object.

        Wider grants are checked first, because their cached answers serve many objects.
        Raises: DependencyError.
        """
        return (
            self.allows(verb, resource)
            or (bool(namespace) and self.allows(verb, resource, namespace))
            or self.allows(verb, resource, namespace, name)
        )

    def forget(self) -> None:
        """Discard the cached answers, and those of reviews in progress."""
        with self._lock:
            self._answers.clear()
            self._forgotten += 1

    def rules(self, bound: Iterable[str]) -> Rules:
        """Return the rules of all bindings, to detect changes.

        ``bound``: namespaces with a RoleBinding. Raises: DependencyError.
        """
        listed: list[tuple[bytes, ...]] = []
        is_complete = True
        namespaces = [*islice(bound, ACCESS_RULES_MAX)] or [_UNBOUND_NAMESPACE]
        for namespace in namespaces:
            review = self._post("SelfSubjectRulesReview", {"namespace": namespace})
            status = review.get("status") or {}
            # K8S: the authorizer lists the bindings of its cache in random order.
            rules = map(msgspec.json.encode, status.get("resourceRules") or ())
            listed.append(tuple(sorted(rules)))
            is_complete = is_complete and not status.get("incomplete")
        return Rules(tuple(listed), is_complete)

    def _ask(self, verb: str, resource: Resource, namespace: str, name: str) -> bool:
        attributes = {
            "verb": verb,
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
            "namespace": namespace,
            "name": name,
        }
        present = {key: value for key, value in attributes.items() if value}
        review = self._post("SelfSubjectAccessReview", {"resourceAttributes": present})
        return (review.get("status") or {}).get("allowed") is True

    def _post(self, kind: str, spec: Json) -> Json:
        raw = {"apiVersion": _GROUP, "kind": kind, "spec": spec}
        call = Call(
            method="POST",
            path=f"{_PATH}/{kind.lower()}s",
            body=msgspec.json.encode(raw),
            # K8S: the API server stores no review, so a retry is safe.
            repeatable=True,
        )
        return self._client.send(call)
