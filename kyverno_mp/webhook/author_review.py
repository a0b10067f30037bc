"""Check and record the author of a namespaced policy, check who approves an exception.

Room: webhook. Takes: the review's request, the policy, a view of the cluster. Gives:
the reason to reject it; the patch that records its author.
Next: webhook/policy_review.py, webhook/rest.py. May touch: the cluster only through
policy/ports.py.
Source: docs/differences.md (upstream does not check the author);
egress/author_rights.py.

Otherwise, a user of one namespace could use the service's permissions: change a
ResourceQuota by a policy with mutate.targets, or read Secrets by an API call.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

from kyverno_mp.egress.author_rights import AUTHOR, lacking_rights, recorded
from kyverno_mp.policy.ports import Author, ClusterView
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_EXCEPTION, POLICY_KINDS

APPROVE: Final = "approve"
"""The verb of those who may exempt objects, on policyexceptions."""
_CALL_NS_MAX: Final = 3 * 10**9
_NAMESPACED: Final = [row.namespaced.kind for row in POLICY_KINDS]
_OWN_ANNOTATIONS: Final = "kyverno-mp.io/"
_ANNOTATIONS: Final = "/metadata/annotations"
_PATH: Final = f"{_ANNOTATIONS}/{AUTHOR.replace('/', '~1')}"


def author_refusal(request: Request, document: Any, view: ClusterView | None) -> str:
    """Return why the policy's author may not create or change it, or "".

    Raises: DependencyError if the API server does not answer.
    """
    if view is None or view.authors is None:
        return ""
    if not (is_of_tenant(request) and has_changed(request)):
        return ""
    author = author_of_request(request)
    return lacking_rights(document, request.namespace, author, view.kinds, view.authors)


def approval_refusal(request: Request, view: ClusterView | None) -> str:
    """Return why the user may not let an exception exempt these objects, or "".

    Raises: DependencyError if the API server does not answer.
    """
    before = request.old_object
    if before and _exempting(request.object) == _exempting(before):
        return ""
    resource = POLICY_EXCEPTION.plural
    namespace = request.namespace
    attributes = {
        "verb": APPROVE,
        "group": request.group,
        "version": request.version,
        "resource": resource,
        "namespace": namespace,
        "name": request.name,
    }
    authors = view.authors if view is not None else None
    if authors is None:
        return "who may approve exceptions cannot be checked [exception.unapproved]"
    asked = {name: value for name, value in attributes.items() if value}
    deadline_ns = time.monotonic_ns() + _CALL_NS_MAX
    if authors.author_may(author_of_request(request), asked, deadline_ns):
        return ""
    return (
        "what a PolicyException exempts must be approved: the user lacks the verb"
        f" {APPROVE} on {resource}.{request.group} in the namespace {namespace}"
        " [exception.unapproved]"
    )


def _exempting(raw: dict[str, Json]) -> tuple[Json, Json]:
    """Return what decides for how long which objects are exempt."""
    annotations = metadata_of(raw).get("annotations")
    own = annotations if isinstance(annotations, dict) else {}
    own = {k: v for k, v in own.items() if k.startswith(_OWN_ANNOTATIONS)}
    return raw.get("spec"), own


def author_patch(request: Request) -> Iterator[dict[str, Json]]:
    """Yield the patch after which the annotation names who wrote the content.

    SAFETY: it replaces what the user has written there, also in an update that changes
    nothing else: nobody can name another author.
    """
    if not is_of_tenant(request) or request.subresource:
        return
    annotations = metadata_of(request.object).get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    before = metadata_of(request.old_object or {}).get("annotations") or {}
    value = before.get(AUTHOR)
    if has_changed(request, ignored=AUTHOR):
        value = recorded(author_of_request(request)) or None
    if annotations.get(AUTHOR) == value:
        return
    if value is None:
        yield {"op": "remove", "path": _PATH}
    elif annotations:
        yield {"op": "add", "path": _PATH, "value": value}
    else:
        yield {"op": "add", "path": _ANNOTATIONS, "value": {AUTHOR: value}}


def is_of_tenant(request: Request) -> bool:
    """Return whether the review is of a namespaced policy."""
    return request.kind in _NAMESPACED


def has_changed(request: Request, *, ignored: str = "") -> bool:
    """Return whether the object is new, or its spec or an annotation has changed.

    ``ignored``: an annotation that does not count.
    """
    before = request.old_object
    if not before:
        return True
    return _essence(request.object, ignored) != _essence(before, ignored)


def _essence(raw: dict[str, Json], ignored: str) -> tuple[Json, Json]:
    annotations = metadata_of(raw).get("annotations") or {}
    if isinstance(annotations, dict):
        annotations = {k: v for k, v in annotations.items() if k != ignored}
    return raw.get("spec"), annotations


def author_of_request(request: Request) -> Author:
    """Return the user of a request."""
    user = (request.review_request or {}).get("userInfo") or {}
    return Author(request.username, request.groups, user.get("extra") or {})
