"""Build the root of the JSON context from a request.

Room: program. Takes: Request. Gives: ``{"request": .., "serviceAccountName": .., ..}``.
Next: program/context. May touch: nothing outside its arguments; the review is shared.
Source: docs/behaviour/engine 3.4; docs/behaviour/cli 7.
"""

from typing import Final

from kyverno_mp.program.request import Request
from kyverno_mp.values.dotted import merged
from kyverno_mp.values.jsonvalue import Json

_PREFIX: Final = len("system:serviceaccount:")
_ALWAYS: Final[dict[str, Json]] = {"object": None, "oldObject": None, "options": None}


def request_root(request: Request) -> dict[str, Json]:
    """Return the common root of all rules of the request; it is read-only."""
    root: dict[str, Json] = {"request": _request(request)}
    if request.ints_are_numbers or request.has_user_info:
        name, namespace = _service_account(request.username)
        root["serviceAccountName"] = name
        root["serviceAccountNamespace"] = namespace
    if request.variables:
        root = merged(root, request.variables)
    return root


def _request(request: Request) -> dict[str, Json]:
    review = request.review_request
    if review is None:
        return _minimal(request)
    if not request.ints_are_numbers:
        # The CLI passes the exact content of the context.
        return review
    # PERF: one shallow copy per request; the nested objects are shared.
    return {
        **_ALWAYS,
        **review,
        **_roles(request),
    }


def _minimal(request: Request) -> dict[str, Json]:
    """Return the content of a background scan's context."""
    out: dict[str, Json] = {
        "namespace": request.namespace,
        "operation": request.operation,
    }
    if request.operation != "DELETE":
        out["object"] = request.object
    if request.operation == "DELETE" or request.old_object:
        out["oldObject"] = request.old_object
    if request.has_user_info:
        out.update(_roles(request))
        out["userInfo"] = {
            "username": request.username,
            "groups": list(request.groups),
        }
    return out


def _roles(request: Request) -> dict[str, Json]:
    """Return the roles of the user.

    KYVERNO: an empty list is absent, so reading it without a default is an error
    (docs/behaviour/engine 3.4).
    """
    out: dict[str, Json] = {}
    if request.roles:
        out["roles"] = list(request.roles)
    if request.cluster_roles:
        out["clusterRoles"] = list(request.cluster_roles)
    return out


def _service_account(username: str) -> tuple[str, str]:
    """Return the service account's name and namespace.

    KYVERNO: upstream removes the prefix by length, without a comparison
    (docs/behaviour/engine 3.4).
    """
    parts = username[_PREFIX:].split(":")
    return (parts[1], parts[0]) if len(parts) > 1 else ("", "")
