"""Convert an update into the request that would create the old object now.

Room: program. Takes: the Request of an UPDATE. Gives: Requests for
allowExistingViolations. Next: program/rule.
Source: docs/behaviour/engine 6.8; Kyverno pkg/engine/handlers/validation/utils.go.
"""

from dataclasses import replace
from typing import Final

from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

_NOBODY: Final = "kyverno:kyverno-invalid-controller"
_NO_GROUPS: Final = ("kyverno:invalidgroup",)
_NO_ROLES: Final = ("kyverno:invalidrole",)


def as_created(request: Request) -> Request:
    """Return the request with which a rule evaluates the old object.

    It keeps the user, the kind, the subresource and the namespace labels.
    """
    review = request.review_request
    if review is not None:
        review = {
            **review,
            "object": request.old_object,
            "oldObject": None,
            "operation": "CREATE",
        }
    return replace(
        request,
        operation="CREATE",
        object=request.old_object,
        old_object={},
        review_request=review,
    )


def as_created_by_nobody(request: Request) -> Request:
    """Return the request with which the old object is matched.

    KYVERNO: the old object is matched by its own kind without a subresource, so rules
    on subresources never match it, and with an empty user, so rules that name users do
    not match it either (docs/behaviour/engine 6.8 step 1).
    """
    group, version, kind = _own_kind(request)
    return replace(
        request,
        operation="CREATE",
        group=group,
        version=version,
        kind=kind,
        subresource="",
        object=request.old_object,
        old_object={},
        username=_NOBODY,
        groups=_NO_GROUPS,
        roles=_NO_ROLES,
        cluster_roles=_NO_ROLES,
        has_user_info=True,
    )


def _own_kind(request: Request) -> tuple[str, str, str]:
    """Return group, version and kind of the old object itself.

    For a subresource, the request's ``kind`` is the owner's kind, e.g. Deployment,
    while its object is a Scale.
    """
    kind = (request.review_request or {}).get("kind")
    if request.ints_are_numbers and type(kind) is dict:
        # K8S: the objects in a review include their kind and version.
        return _text(kind, "group"), _text(kind, "version"), _text(kind, "kind")
    api_version = _text(request.old_object, "apiVersion")
    group, _, version = api_version.rpartition("/")
    return group, version, _text(request.old_object, "kind")


def _text(holder: dict[str, Json], key: str) -> str:
    value = holder.get(key)
    return value if type(value) is str else ""
