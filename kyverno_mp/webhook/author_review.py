"""Check that the author of a namespaced policy may do what the policy does.

Room: webhook. Takes: the review's request, the policy, a view of the cluster. Gives:
the reason to reject it. Next: webhook/policy_review.py. May touch: the cluster only
through policy/ports.py.
Source: docs/differences.md (upstream does not check the author); the wording is that of
Kyverno's checks of its own accounts (pkg/policy/auth).

Otherwise, a user of one namespace could use the service's permissions: change a
ResourceQuota by a policy with mutate.targets, or read Secrets by an API call.
"""

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kyverno_mp.limits import AUTHOR_CHECKS_MAX
from kyverno_mp.policy.checks.author import EVERYTHING, Need, author_needs
from kyverno_mp.policy.ports import Author, Authors, ClusterView, Kinds
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector

_NAMESPACED: Final = ("Policy", "CleanupPolicy")
_CALLS_NS_MAX: Final = 5 * 10**9
"""For all checks of one review: half of the API server's default timeout."""
_RBAC: Final = "rbac.authorization.k8s.io"
_WRITES: Final = frozenset({"create", "update", "patch"})
_GRANTS: Final = {
    "roles": (("escalate", "roles"),),
    "rolebindings": (("bind", "roles"), ("bind", "clusterroles")),
}
"""K8S: writing these gives rights, which the API server checks for the writer."""


class _Question(NamedTuple):
    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""

    @property
    def shown(self) -> str:
        resource = "/".join(filter(None, (self.resource, self.subresource)))
        return f"{self.group}/{resource}" if self.group else resource


_ALL: Final = _Question("*", "*", "*")


def author_refusal(request: Request, document: Any, view: ClusterView | None) -> str:
    """Return why the policy's author may not create or change it, or "".

    Raises: DependencyError if the API server does not answer.
    """
    if view is None or view.authors is None:
        return ""
    if not (is_of_tenant(request) and has_changed(request)):
        return ""
    questions = _questions(document, view.kinds)
    if not questions:
        return ""
    asking = _Asking(view.authors, request)
    if asking.may(_ALL):
        return ""
    if len(questions) > AUTHOR_CHECKS_MAX:
        questions = [_ALL]
    lacking: dict[str, list[str]] = {}
    for question in questions:
        if question is _ALL or not asking.may(question):
            lacking.setdefault(question.shown, []).append(question.verb)
    if not lacking:
        return ""
    user = request.username
    texts = (
        f"{user} requires permissions {','.join(verbs)} for resource {shown} in"
        f" namespace {request.namespace}"
        for shown, verbs in lacking.items()
    )
    return (
        "auth check fails, additional privileges are required for the user"
        f" '{user}', because the policy uses them: {'; '.join(texts)}"
    )


def is_of_tenant(request: Request) -> bool:
    """Return whether the review is of a namespaced policy."""
    return request.kind in _NAMESPACED or request.kind.startswith("Namespaced")


def has_changed(request: Request) -> bool:
    """Return whether the object is new, or its spec or an annotation has changed."""
    before = request.old_object
    return not before or _essence(request.object) != _essence(before)


def _essence(raw: dict[str, Json]) -> tuple[Json, Json]:
    return raw.get("spec"), metadata_of(raw).get("annotations") or {}


def _questions(document: Any, kinds: Kinds) -> list[_Question]:
    """Return what the author must be allowed to do, without repetitions."""
    found: dict[_Question, None] = {}
    for need in dict.fromkeys(author_needs(document)):
        for one in _of_need(need, kinds):
            found[one] = None
            if one.group == _RBAC and one.verb in _WRITES:
                for verb, resource in _GRANTS.get(one.resource, ()):
                    found[_Question(verb, _RBAC, resource)] = None
        if len(found) > AUTHOR_CHECKS_MAX:
            break
    return list(found)


def _of_need(need: Need, kinds: Kinds) -> Iterator[_Question]:
    if need == EVERYTHING:
        yield _ALL
        return
    group, _, version = need.api_version.rpartition("/")
    places = [(group, need.plural)]
    if need.kind:
        selector = KindSelector(group, version, need.kind, "")
        found = [one.resource for one in kinds.find(selector)]
        places = [(one.group, one.plural) for one in found]
    if not places:
        # Nothing is known about this kind, which may be served later.
        yield _ALL
    for at_group, plural in dict.fromkeys(places):
        for verb in need.verbs:
            yield _Question(verb, at_group, plural, need.subresource, need.name)


class _Asking:
    """The checks of one review, with one deadline."""

    def __init__(self, authors: Authors, request: Request) -> None:
        self._authors = authors
        self._namespace = request.namespace
        user = (request.review_request or {}).get("userInfo") or {}
        self._author = Author(request.username, request.groups, user.get("extra") or {})
        self._deadline_ns = time.monotonic_ns() + _CALLS_NS_MAX

    def may(self, question: _Question) -> bool:
        values = {**question._asdict(), "namespace": self._namespace}
        attributes = {name: value for name, value in values.items() if value}
        return self._authors.author_may(self._author, attributes, self._deadline_ns)
