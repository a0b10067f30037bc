"""Translate errors of the API server and the network into errors of errors.py.

Room: kube. Takes: a status code and body, or an error of a socket. Gives: the error to
raise. Next: kube/rest.py, kube/watch.py.
Source: Kubernetes API concepts (Status); k8s.io/apimachinery/pkg/api/errors.

Foreign messages are truncated. Our queries, headers and bodies are omitted, because
they may contain secrets. So is the secret segment of our webhooks' paths: if the API
server cannot reach us for a write of ours, its error names the path, and would stand in
Events and statuses that tenants read.
"""

import re
import ssl
from collections.abc import Mapping
from typing import Final

import msgspec

from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    Error,
    KubeConflict,
    KubeExpired,
    KubeNotFound,
    KubeRefused,
    KubeUnavailable,
)
from kyverno_mp.limits import KUBE_MESSAGE_CHARACTERS_MAX
from kyverno_mp.snapshot.callers import without_segments

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_GONE: Final = 410
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_RETRY_AFTER_S_MAX: Final = 60.0
_ENDING: Final = re.compile(
    r"\S+ \S+: HTTP 403: \S+ (\"\S+\" )?is forbidden: unable to create new content in"
    r" namespace \S+ because it is being terminated"
)
"""K8S: plugin/pkg/admission/namespace/lifecycle."""
_FAILED_WEBHOOK: Final = re.compile(
    r"\S+ \S+: HTTP 500: (Internal error occurred: failed calling webhook "
    r"|conversion webhook for )"
)
"""K8S: apiserver/pkg/admission/plugin/webhook; apiextensions-apiserver conversion."""


class _Status(msgspec.Struct):
    """The fields of a metav1.Status that we read."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


_STATUS: Final = msgspec.json.Decoder(_Status)


def failure(
    code: int, body: bytes, method: str, path: str, headers: Mapping[str, str]
) -> DependencyError:
    """Return the error for a response with status ``code``."""
    status = _status_of(body)
    detail = status.message if status.kind == "Status" else ""
    words = f"{method} {path}: HTTP {code}"
    detail = cut(detail or body.decode("utf-8", "replace").strip())
    error = _sort(code, status.reason, f"{words}: {detail}" if detail else words)
    # K8S: a throttled client waits even without a Retry-After.
    error.retry_after_s = _retry_after(headers, 1.0 if code == _TOO_MANY else 0.0)
    return error


def message_of(body: bytes) -> str:
    """Return the message of a Status, "" if the body is something else."""
    status = _status_of(body)
    return status.message if status.kind == "Status" else ""


def watch_failure(body: bytes, path: str) -> DependencyError:
    """Return the error for an ERROR event of a watch."""
    status = _status_of(body)
    words = f"watch of {path}: {cut(status.message or status.reason)}"
    return _sort(status.code, status.reason, words)


def broken(error: Exception, method: str, path: str) -> DependencyError:
    """Return the error for a failed connection."""
    words = f"{method} {path}: {type(error).__name__}"
    if isinstance(error, TimeoutError):
        return DeadlinePassed("kube.deadline", f"{method} {path}: no answer in time")
    if isinstance(error, ssl.SSLCertVerificationError):
        return KubeUnavailable(
            "kube.certificate", f"{words}: {cut(error.verify_message)}"
        )
    if isinstance(error, OSError) and error.strerror:
        words = f"{words}: {cut(error.strerror)}"
    return KubeUnavailable("kube.connection", words)


def is_in_ending_namespace(error: KubeRefused) -> bool:
    """Return whether a create was rejected because its namespace is being deleted.

    SAFETY: other rejections may quote values that a user has chosen, e.g. after the
    name of a webhook.
    """
    is_forbidden = error.code == "kube.forbidden"
    return is_forbidden and _ENDING.fullmatch(error.message) is not None


def is_failed_webhook(error: Error) -> bool:
    """Return whether a webhook that the API server had to call has failed.

    Only the objects that this webhook reviews or converts are concerned.
    """
    is_failed = isinstance(error, KubeUnavailable) and error.code == "kube.server"
    return is_failed and _FAILED_WEBHOOK.match(error.message) is not None


def cut(message: str) -> str:
    """Truncate a foreign message, and put it on one line without our secret paths."""
    flat = without_segments(" ".join(message.split()))
    if len(flat) <= KUBE_MESSAGE_CHARACTERS_MAX:
        return flat
    return flat[: KUBE_MESSAGE_CHARACTERS_MAX - 3] + "..."


def _sort(code: int, reason: str, words: str) -> DependencyError:
    if code == _GONE or reason == "Expired":
        return KubeExpired("kube.expired", words)
    if code == _NOT_FOUND:
        return KubeNotFound("kube.not_found", words)
    if code == _CONFLICT:
        exists = reason == "AlreadyExists"
        return KubeConflict("kube.exists" if exists else "kube.conflict", words)
    if code == _TOO_MANY:
        return KubeUnavailable("kube.throttled", words)
    if code >= _SERVER_ERROR or code == 0:
        return KubeUnavailable("kube.server", words)
    names = {401: "unauthorized", 403: "forbidden", 422: "invalid"}
    return KubeRefused(f"kube.{names.get(code, 'refused')}", words)


def _status_of(body: bytes) -> _Status:
    try:
        return _STATUS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Status()


def _retry_after(headers: Mapping[str, str], unsaid: float) -> float:
    """Return the Retry-After in seconds; a date counts as one second."""
    value = headers.get("retry-after", "").strip()
    if not value.isdigit():
        return 1.0 if value else unsaid
    return min(float(value[:9]), _RETRY_AFTER_S_MAX)
