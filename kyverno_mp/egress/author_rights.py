"""Ask the API server whether the author of a namespaced policy may do what it does.

Room: egress. Takes: a policy, its author, the kinds of the cluster. Gives: the reason
against it; the record of the author in an annotation of the policy.
Next: webhook/author_review.py, leader/authors.py, egress/stored_authors.py,
cli/authors.py.
May touch: the cluster only through policy/ports.py, the clock.
Source: docs/differences.md (upstream does not check the author); the wording is that of
Kyverno's checks of its own accounts (pkg/policy/auth).

The annotation has name and groups, which RBAC decides by; it is written by our webhook
alone. ``extra`` is not stored: it may hold tokens' identifiers, and others may read it.
"""

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from kyverno_mp.limits import AUTHOR_BYTES_MAX, AUTHOR_CHECKS_MAX
from kyverno_mp.policy.checks.author import EVERYTHING, Need, author_needs
from kyverno_mp.policy.ports import OF_SERVICE, Author, Authors, Kinds
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector

AUTHOR: Final = "kyverno-mp.io/author"
"""The annotation of a namespaced policy with its author."""
_CALLS_NS_MAX: Final = 5 * 10**9
"""For all checks of one policy: half of the API server's default timeout."""
_RBAC: Final = "rbac.authorization.k8s.io"
_WRITES: Final = frozenset({"create", "update", "patch"})
_GRANTS: Final = {
    "roles": (("escalate", "roles"),),
    "rolebindings": (("bind", "roles"), ("bind", "clusterroles")),
}
"""K8S: writing these gives rights, which the API server checks for the writer."""


class _Record(msgspec.Struct, frozen=True):
    user: str
    groups: tuple[str, ...] = ()


_DECODER: Final = msgspec.json.Decoder(_Record)


def recorded(author: Author) -> str:
    """Return the annotation's value, "" for an author who does not fit into it."""
    value = msgspec.json.encode(_Record(author.name, tuple(author.groups))).decode()
    return value if author.name and len(value) <= AUTHOR_BYTES_MAX else ""


def author_of(annotations: Json) -> Author | None:
    """Return the recorded author, None if it is unknown."""
    value = annotations.get(AUTHOR) if isinstance(annotations, dict) else None
    try:
        record = _DECODER.decode(value) if isinstance(value, str) else None
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return Author(record.user, record.groups) if record is not None else None


def needs_rights(document: Any, kinds: Kinds) -> bool:
    """Return whether the policy uses any permission of the service."""
    return bool(_questions(document, kinds))


def lacking_rights(
    document: Any, namespace: str, author: Author, kinds: Kinds, authors: Authors
) -> str:
    """Return what the author may not do, although the policy does it, or "".

    Raises: DependencyError if the API server does not answer.
    """
    questions = _questions(document, kinds)
    if not questions:
        return ""
    asking = _Asking(authors, author, namespace)
    if asking.may(_ALL):
        # All permissions in the policy's namespace are none in that of the service.
        questions = [question for question in questions if question.namespace]
    if len(questions) > AUTHOR_CHECKS_MAX:
        questions = [_ALL, *(question for question in questions if question.namespace)]
    lacking: dict[tuple[str, str], list[str]] = {}
    for question in questions:
        if question is _ALL or not asking.may(question):
            scope = question.namespace or namespace
            lacking.setdefault((question.shown, scope), []).append(question.verb)
    if not lacking:
        return ""
    reasons = (
        f"{author.name} requires permissions {','.join(verbs)} for resource {resource}"
        f" in namespace {scope}"
        for (resource, scope), verbs in lacking.items()
    )
    return (
        "auth check fails, additional privileges are required for the user"
        f" '{author.name}', because the policy uses them: {'; '.join(reasons)}"
    )


class _Question(NamedTuple):
    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    namespace: str = ""
    """"" = the policy's."""

    @property
    def shown(self) -> str:
        resource = "/".join(filter(None, (self.resource, self.subresource)))
        return f"{self.group}/{resource}" if self.group else resource


_ALL: Final = _Question("*", "*", "*")


def _questions(document: Any, kinds: Kinds) -> list[_Question]:
    """Return what the author must be allowed to do, without repetitions."""
    questions: dict[_Question, None] = {}
    for need in dict.fromkeys(author_needs(document)):
        for question in _of_need(need, kinds):
            questions[question] = None
            if question.group == _RBAC and question.verb in _WRITES:
                for verb, resource in _GRANTS.get(question.resource, ()):
                    questions[_Question(verb, _RBAC, resource)] = None
        if len(questions) > AUTHOR_CHECKS_MAX:
            break
    return list(questions)


def _of_need(need: Need, kinds: Kinds) -> Iterator[_Question]:
    if need == EVERYTHING:
        yield _ALL
        return
    group, _, version = need.api_version.rpartition("/")
    places = [(group, need.plural)]
    if need.kind:
        selector = KindSelector(group, version, need.kind, "")
        resources = [match.resource for match in kinds.find(selector)]
        places = [(resource.group, resource.plural) for resource in resources]
    if not places:
        # Nothing is known about this kind, which may be served later.
        yield _ALL
    for at_group, plural in dict.fromkeys(places):
        for verb in need.verbs:
            yield _Question(
                *(verb, at_group, plural, need.subresource, need.name),
                OF_SERVICE if need.is_of_service else "",
            )


class _Asking:
    """The checks of one policy, with one deadline."""

    def __init__(self, authors: Authors, author: Author, namespace: str) -> None:
        self._authors = authors
        self._namespace = namespace
        self._author = author
        self._deadline_ns = time.monotonic_ns() + _CALLS_NS_MAX

    def may(self, question: _Question) -> bool:
        values = question._asdict()
        values["namespace"] = question.namespace or self._namespace
        attributes = {name: value for name, value in values.items() if value}
        return self._authors.author_may(self._author, attributes, self._deadline_ns)
