"""Write the answer to a review.

Room: admission. Takes: uid, message, patch, warnings. Gives: the bytes of the response.
Next: webhook.
Source: docs/behaviour/controllers 2.2; recorded answers of the real webhook. The
request is not echoed back: the API server reads only ``response``, and an echo would
double the size.
"""

import base64
from collections.abc import Sequence
from typing import Final

import msgspec
import orjson

from kyverno_mp.admission.annotations import NONE, Annotations
from kyverno_mp.values.jsonvalue import Json

_HEAD: Final = (
    b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":'
)


def allowed(
    uid: str, warnings: Sequence[str] = (), annotations: Annotations = NONE
) -> bytes:
    """Allow the request, with warnings for the user if there are any."""
    if not warnings and not annotations:
        # PERF: most answers take this path; only the uid needs escaping.
        return b"".join((_HEAD, orjson.dumps(uid), b',"allowed":true}}'))
    rest = _rest(warnings, annotations)
    return b"".join((_HEAD, orjson.dumps(uid), b',"allowed":true', rest))


def patched(
    uid: str,
    operations: Sequence[dict[str, Json]],
    warnings: Sequence[str] = (),
    annotations: Annotations = NONE,
) -> bytes:
    """Allow the request, modified by a JSON patch."""
    patch = base64.b64encode(_encoded(operations))
    return b"".join(
        (
            _HEAD,
            orjson.dumps(uid),
            b',"allowed":true,"patch":"',
            patch,
            b'","patchType":"JSONPatch"',
            _rest(warnings, annotations),
        )
    )


def _encoded(operations: Sequence[dict[str, Json]]) -> bytes:
    try:
        return orjson.dumps(operations)
    except orjson.JSONEncodeError:
        # orjson fails beyond 254 levels; the stdlib encoder supports any depth that
        # Python does.
        return msgspec.json.encode(operations)


def _rest(warnings: Sequence[str], annotations: Annotations) -> bytes:
    """Return the end of an answer."""
    warning_part = b',"warnings":' + orjson.dumps(list(warnings)) if warnings else b""
    annotation_part = b',"auditAnnotations":' + orjson.dumps(dict(annotations))
    return warning_part + (annotation_part if annotations else b"") + b"}}"


def denied(
    uid: str,
    message: str,
    warnings: Sequence[str] = (),
    annotations: Annotations = NONE,
) -> bytes:
    """Deny the request, like Kyverno with a message but no code."""
    return b"".join(
        (
            _HEAD,
            orjson.dumps(uid),
            b',"allowed":false,"status":{"metadata":{},"status":"Failure","message":',
            orjson.dumps(message),
            b"}",
            _rest(warnings, annotations),
        )
    )
