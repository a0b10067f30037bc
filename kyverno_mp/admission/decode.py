"""Read an AdmissionReview into a Request.

Room: admission. Takes: the bytes of a POST body. Gives: Request. Next: webhook.service.
Source: docs/behaviour/controllers 2.1-2.3 (top-level kind of subresources), 2.2
(decoding); Kubernetes admission.k8s.io/v1.
"""

from collections.abc import Callable, Mapping
from typing import Final

import orjson

from kyverno_mp.admission.weigh import decoded_bytes
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import (
    DECODED_BYTES_MAX,
    DECODED_KEYS_MAX,
    DECODED_TIMES_MAX,
    DEEP_CONTAINERS_MAX,
    JSON_DEPTH_MAX,
)
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN

EMPTY: Final = "admission.empty"
NOT_JSON: Final = "admission.not_json"
NO_REQUEST: Final = "admission.no_request"
KIND_UNKNOWN: Final = "admission.kind_unknown"
INCOMPLETE: Final = "admission.incomplete"
TOO_DEEP: Final = "admission.too_deep"
TOO_LARGE: Final = "admission.too_large"

_UNWEIGHED_BYTES_MAX: Final = DECODED_BYTES_MAX // DECODED_TIMES_MAX
"""PERF: a smaller body cannot take too much memory, so its braces are not counted."""
_TOO_DEEP: Final = f"it is nested deeper than {JSON_DEPTH_MAX} levels"
_PARSER_TOO_DEEP: Final = "depth limit exceeded"
_WITH_OBJECT: Final = frozenset({"CREATE", "UPDATE"})
_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})

TopKind = Callable[[str, str, str], str | None]
"""Map (group, version, resource) to the kind that owns the subresource, None if
unknown."""

BUILT_IN_KINDS: Final[Mapping[tuple[str, str], str]] = {
    (built_in.group, built_in.plural): built_in.kind for built_in in BUILT_IN
}
"""Kinds that every cluster has; a worker in a cluster uses discovery instead."""


def built_in_kind(group: str, version: str, resource: str) -> str | None:
    """Return the kind of a built-in resource."""
    del version
    return BUILT_IN_KINDS.get((group, resource))


def decode(
    body: bytes | bytearray, top_kind: TopKind = built_in_kind, weight: int = 0
) -> Request:
    """Read one review.

    ``weight`` is ``decoded_bytes(body)``, if the caller has computed it.

    Roles and namespace labels stay empty; the webhook fills them in. Numbers keep their
    JSON spelling, with ``ints_are_numbers`` set (docs/behaviour/engine 0.2).

    Raises: RequestInvalid with code ``admission.empty``, ``admission.not_json`` (also
    for wrong types), ``admission.too_deep``, ``admission.too_large``,
    ``admission.no_request``, ``admission.incomplete`` or ``admission.kind_unknown``.
    """
    review = parse(body, weight)
    if type(review) is not dict:
        raise _wrong("AdmissionReview", "an object")
    request = review.get("request")
    if request is None:
        raise RequestInvalid(NO_REQUEST, "AdmissionReview request is nil")
    if type(request) is not dict:
        raise _wrong("request", "an object")
    return _request(request, top_kind, len(body))


def parse(body: bytes | bytearray, weight: int = 0) -> Json:
    """Read JSON within the limits of a review.

    ``weight``: as for ``decode``. Raises: RequestInvalid with code ``admission.empty``,
    ``admission.not_json``, ``admission.too_deep`` or ``admission.too_large``.
    """
    if not body:
        raise RequestInvalid(EMPTY, "empty body")
    if len(body) > _UNWEIGHED_BYTES_MAX:
        weight = weight or decoded_bytes(body)
        if weight > DECODED_BYTES_MAX or _has_too_many_keys(body):
            raise RequestInvalid(TOO_LARGE, "it has too many values")
    try:
        value: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # The parser's own limit, slightly above ours.
        deep = error.msg.startswith(_PARSER_TOO_DEEP)
        code = TOO_DEEP if deep else NOT_JSON
        raise RequestInvalid(code, _TOO_DEEP if deep else str(error)) from error
    # PERF: a document of depth d has d opening brackets, and counting bytes is cheap.
    # Only the few reviews with more brackets than the limit are walked.
    if body.count(b"{") + body.count(b"[") > JSON_DEPTH_MAX:
        _check_depth(value)
    return value


def _has_too_many_keys(body: bytes | bytearray) -> bool:
    # PERF: only a body with many colons, in strings or outside, is parsed here.
    if body.count(b":") <= DECODED_KEYS_MAX:
        return False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Every second part is a string; a colon between strings follows a key.
    return b"".join(plain.split(b'"')[::2]).count(b":") > DECODED_KEYS_MAX


def _request(raw: dict[str, Json], top_kind: TopKind, size: int) -> Request:
    kind = _mapping(raw, "kind")
    user = _mapping(raw, "userInfo")
    operation = _text(raw, "operation")
    if operation not in _OPERATIONS:
        raise _wrong("request.operation", "CREATE, UPDATE, DELETE or CONNECT")
    groups = user.get("groups") or ()
    if type(groups) is list:
        if not all(type(group) is str for group in groups):
            raise _wrong("request.userInfo.groups", "texts")
    elif groups:
        raise _wrong("request.userInfo.groups", "a list")
    dry_run = raw.get("dryRun")
    if dry_run is not None and type(dry_run) is not bool:
        raise _wrong("request.dryRun", "true or false")
    request = Request(
        operation=operation,
        group=_text(kind, "group"),
        version=_text(kind, "version"),
        kind=_text(kind, "kind"),
        subresource=_text(raw, "subResource"),
        name=_text(raw, "name"),
        namespace=_text(raw, "namespace"),
        object=_mapping(raw, "object"),
        old_object=_mapping(raw, "oldObject"),
        username=_text(user, "username"),
        groups=tuple(groups),
        has_user_info=True,
        dry_run=dry_run is True,
        uid=_text(raw, "uid"),
        review_request=raw,
        size=size,
        ints_are_numbers=True,
    )
    # K8S: every API server sends these fields. Upstream allows such a review, because
    # no policy matches a missing kind or object.
    if not request.kind:
        raise RequestInvalid(INCOMPLETE, "request.kind: names no kind")
    if raw.get("object") is None and operation in _WITH_OBJECT:
        raise RequestInvalid(INCOMPLETE, f"request.object: missing in a {operation}")
    if request.subresource:
        _use_top_kind(request, _mapping(raw, "resource"), top_kind)
    return request


def _use_top_kind(
    request: Request, resource: dict[str, Json], top_kind: TopKind
) -> None:
    """Replace the kind of the subresource's object by the kind of its owner.

    Policies name ``Pod/exec``, while the review's object is a PodExecOptions. If the
    object and the resource have the same group (status, finalize), the object's kind is
    already the owner's.
    """
    group, version = _text(resource, "group"), _text(resource, "version")
    name = _text(resource, "resource")
    kind = top_kind(group, version, name)
    if kind is None:
        if request.group != group or not name.startswith(request.kind.lower()):
            raise RequestInvalid(
                KIND_UNKNOWN,
                f"the kind of {group}/{version}/{name} is not known",
            )
        kind = request.kind
    request.group, request.version, request.kind = group, version, kind


def _text(holder: dict[str, Json], key: str) -> str:
    value = holder.get(key)
    if type(value) is str:
        return value
    if value is None:
        return ""
    raise _wrong(f"request {key}", "a text")


def _mapping(holder: dict[str, Json], key: str) -> dict[str, Json]:
    value = holder.get(key)
    if type(value) is dict:
        return value
    if value is None:
        return {}
    raise _wrong(f"request {key}", "an object")


def _wrong(subject: str, expected: str) -> RequestInvalid:
    return RequestInvalid(NOT_JSON, f"{subject}: expected {expected}")


def _check_depth(value: Json) -> None:
    """Raise RequestInvalid if the value is nested beyond the limit."""
    try:
        # PERF: walking a million lists level by level takes half a second; serialising
        # takes 10 ms.
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        # The serialiser's own limit, half of ours.
        _walk_levels(value)


def _walk_levels(value: Json) -> None:
    level, remaining = [value], DEEP_CONTAINERS_MAX
    for _ in range(JSON_DEPTH_MAX):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
        remaining -= len(level)
        if remaining < 0:
            raise RequestInvalid(TOO_DEEP, "too many of its values are deeply nested")
    raise RequestInvalid(TOO_DEEP, _TOO_DEEP)
