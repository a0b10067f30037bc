"""Ask the API server what the account of a client may do itself.

Room: kube. Takes: a verb, a resource, namespace and name. Gives: OwnAccess.
Next: cleanup/scan.py, cleanup/ttl/watches.py, egress/dry_runs.py. May touch: the API
server through kube/rest.py.
Source: Kubernetes authorization.k8s.io/v1 SelfSubjectAccessReview and
SelfSubjectRulesReview; plugin/pkg/auth/authorizer/rbac (RuleAllows);
docs/behaviour/lessons 3.10 (resourceNames, Roles).

One list of rules for the whole cluster, and one for a namespace with rules of its own,
answer all questions, instead of one review for each kind and verb. If an authorizer,
such as a webhook, cannot list its rules, it may also deny what others allow. Then the
lists answer nothing, and each question is a review.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from kyverno_mp.errors import KubeRefused
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import ACCESS_ANSWERS_MAX, ACCESS_RULES_MAX
from kyverno_mp.values.jsonvalue import Json

_GROUP: Final = "authorization.k8s.io/v1"
_PATH: Final = f"/apis/{_GROUP}"
_CACHED_S: Final = 30.0
_NO_NAMESPACE: Final = "-"
"""K8S: a review needs a namespace, and its answer has the rules of ClusterRoleBindings,
too. No namespace can have this name, so that no RoleBinding adds to them."""
_ALL: Final = "*"
_AccessKey = tuple[str, str, str, str, str]
_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")


class _Rule(NamedTuple):
    verbs: tuple[str, ...]
    api_groups: tuple[str, ...]
    resources: tuple[str, ...]
    resource_names: tuple[str, ...]

    @classmethod
    def of(cls, raw: Json) -> "_Rule":
        """Return a rule of an answer."""
        names = ("verbs", "apiGroups", "resources", "resourceNames")
        return cls(*(tuple(raw.get(name) or ()) for name in names))

    def covers(self, verb: str, resource: Resource, name: str) -> bool:
        """Return whether the rule grants the verb for the name, "" = for all names."""
        return (
            _has(self.verbs, verb)
            and _has(self.api_groups, resource.group)
            and _has(self.resources, resource.plural)
            and (not self.resource_names or name in self.resource_names)
        )


class _Listed(NamedTuple):
    """``is_complete``: False if an authorizer cannot list its rules."""

    rules: tuple[_Rule, ...]
    is_complete: bool

    def cover(self, verb: str, resource: Resource, name: str) -> bool:
        """Return whether any of the rules grants the verb."""
        return any(rule.covers(verb, resource, name) for rule in self.rules)


class Rules(NamedTuple):
    """The rules for each namespace of a question, equal if none changed."""

    listed: tuple[tuple[str, _Listed], ...]

    @property
    def is_complete(self) -> bool:
        """Whether all authorizers list their rules."""
        return all(listed.is_complete for _, listed in self.listed)


class OwnAccess:
    """Permissions of the account that a client acts as; threads may share it."""

    def __init__(
        self,
        client: Client,
        monotonic_s: Callable[[], float],
        cached_s: float = _CACHED_S,
    ) -> None:
        """``cached_s``: how long an answer of the API server is repeated."""
        self._client = client
        self._monotonic_s = monotonic_s
        self._cached_s = cached_s
        self._lock = threading.Lock()
        self._answers: dict[_AccessKey, tuple[float, bool]] = {}
        self._lists: dict[str, tuple[float, _Listed]] = {}
        """By namespace; "" = the rules for all namespaces. Others lack those."""
        self._forgotten = 0
        """How often the answers were discarded."""

    def allows(
        self,
        verb: str,
        resource: Resource,
        namespace: str = "",
        name: str = "",
        *,
        deadline_ns: int = 0,
    ) -> bool:
        """Return whether the account has the permission.

        Namespace "" = in all namespaces, name "" = for all names.
        Raises: DependencyError.
        """
        everywhere = self._list("", deadline_ns)
        if everywhere.is_complete:
            if everywhere.cover(verb, resource, name):
                return True
            if not namespace:
                return False
            there = self._list(namespace, deadline_ns)
            if there.is_complete:
                return there.cover(verb, resource, name)
        return self._cached(
            self._answers,
            (verb, resource.group, resource.plural, namespace, name),
            lambda: self._ask(verb, resource, namespace, name, deadline_ns),
        )

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

    def forget(self, rules: Rules | None = None) -> None:
        """Discard the cached answers, and those of reviews in progress.

        ``rules``: the newest ones, which replace them.
        """
        now_s = self._monotonic_s()
        with self._lock:
            self._answers.clear()
            self._lists.clear()
            for namespace, listed in rules.listed if rules is not None else ():
                self._lists[namespace] = now_s, listed
            self._forgotten += 1

    def rules(self, bound: Iterable[str]) -> Rules:
        """Ask for the rules of all bindings, to detect changes.

        ``bound``: namespaces with a RoleBinding. Raises: DependencyError.
        """
        namespaces = [*islice(bound, ACCESS_RULES_MAX)] or [""]
        return Rules(
            tuple((namespace, self._rules_of(namespace)) for namespace in namespaces)
        )

    def _list(self, namespace: str, deadline_ns: int = 0) -> _Listed:
        def ask() -> _Listed:
            listed = self._rules_of(namespace, deadline_ns)
            return listed._replace(rules=_without(listed.rules, everywhere))

        everywhere = self._list("", deadline_ns).rules if namespace else ()
        return self._cached(self._lists, namespace, ask)

    def _cached(
        self,
        cache: dict[_Key, tuple[float, _Answer]],
        key: _Key,
        ask: Callable[[], _Answer],
    ) -> _Answer:
        now_s = self._monotonic_s()
        with self._lock:
            known, forgotten = cache.get(key), self._forgotten
        if known is not None and now_s - known[0] < self._cached_s:
            return known[1]
        answer = ask()
        with self._lock:
            if forgotten != self._forgotten:
                # The answer may be older than the grant that ``forget`` is called for.
                return answer
            if len(cache) >= ACCESS_ANSWERS_MAX:
                cache.clear()
            cache[key] = now_s, answer
        return answer

    def _rules_of(self, namespace: str, deadline_ns: int = 0) -> _Listed:
        spec = {"namespace": namespace or _NO_NAMESPACE}
        try:
            status = self._post("SelfSubjectRulesReview", spec, deadline_ns)
        except KubeRefused:
            # This review needs a permission of its own.
            return _Listed((), is_complete=False)
        # K8S: the authorizer lists the bindings of its cache in random order.
        ordered = tuple(sorted(map(_Rule.of, status.get("resourceRules") or ())))
        return _Listed(ordered, is_complete=not status.get("incomplete"))

    def _ask(
        self,
        verb: str,
        resource: Resource,
        namespace: str,
        name: str,
        deadline_ns: int,
    ) -> bool:
        attributes = {
            "verb": verb,
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
            "namespace": namespace,
            "name": name,
        }
        present = {key: value for key, value in attributes.items() if value}
        spec = {"resourceAttributes": present}
        status = self._post("SelfSubjectAccessReview", spec, deadline_ns)
        return status.get("allowed") is True

    def _post(self, kind: str, spec: Json, deadline_ns: int) -> Json:
        """Return the status of the answer."""
        raw = {"apiVersion": _GROUP, "kind": kind, "spec": spec}
        call = Call(
            method="POST",
            path=f"{_PATH}/{kind.lower()}s",
            body=msgspec.json.encode(raw),
            # K8S: the API server stores no review, so a retry is safe.
            repeatable=True,
        )
        return self._client.send(call, deadline_ns).get("status") or {}


def _has(granted: Collection[str], asked: str) -> bool:
    """Return whether a list of a rule names what is asked for."""
    return asked in granted or _ALL in granted


def _without(rules: Iterable[_Rule], others: Collection[_Rule]) -> tuple[_Rule, ...]:
    known = frozenset(others)
    return tuple(rule for rule in rules if rule not in known)
