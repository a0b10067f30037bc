"""Restrict the API paths that policies can read, to prevent a confused deputy.

Room: egress. Takes: a path after substitution, the policy's namespace. Gives: the path
in its normal form. Next: egress/api_calls.py.
Source: docs/behaviour/lessons 4.2 rows 17, 22, 25, 27; docs/behaviour/engine 3.7
(messages).

A path is split first. Then each segment is decoded until it no longer changes, so this
module finds every ``..`` or ``/`` that the API server would find. The outgoing path is
built from the checked segments.
"""

import string
from typing import Final
from urllib.parse import quote, unquote

from kyverno_mp.errors import ExpressionFailed

_ROUNDS_MAX: Final = 5
_SAFE: Final = "!$&'()*+,;=:@-._~"
_FORBIDDEN: Final = frozenset("/\\?#%")
_CORE_DEPTH: Final = 2
_GROUP_DEPTH: Final = 3
_POWERS: Final = frozenset(
    {"proxy", "exec", "attach", "portforward", "token", "eviction"}
)
"""Subresources that act with our own permissions instead of returning data."""


def normal_path(path: str) -> str:
    """Return the normal form of ``/path?query``.

    Raises: ExpressionFailed (``egress.path``) if it has no normal form.
    """
    parts, query = _split(path)
    return _joined(parts, query)


def namespaced_path(path: str, namespace: str, method: str = "GET") -> str:
    """Return the normal form of a path inside ``namespace``.

    Raises: ExpressionFailed (``egress.namespace``, ``egress.path``) for every other
    path.
    """
    parts, query = _split(path)
    clean = "/" + "/".join(parts)
    at = _CORE_DEPTH if parts[:1] == ["api"] else _GROUP_DEPTH
    names = parts[at : at + 2]
    if parts[:1] not in (["api"], ["apis"]) or names[:1] != ["namespaces"]:
        raise _refused(
            f"path {clean} does not contain a namespace segment, which is required for"
            " namespaced policies"
        )
    if names[1:] != [namespace]:
        raise _refused(
            f"path {clean} refers to namespace {''.join(names[1:])}, which is different"
            f" from the policy namespace {namespace}"
        )
    beyond = parts[at + 2 :]
    if _POWERS & set(beyond[2:]):
        raise _refused(f"path {clean} is not allowed in namespaced policies")
    if method != "GET" and not beyond[:1] == ["localsubjectaccessreviews"]:
        raise _refused(
            f"{method} of path {clean} is not allowed in namespaced policies"
        )
    return _joined(parts, query)


def _split(path: str) -> tuple[list[str], str]:
    before, mark, query = path.partition("?")
    if not before.startswith("/") or not path.isprintable() or "#" in path:
        raise ExpressionFailed("egress.path", f"path {path!r} is not a path")
    parts: list[str] = []
    for raw in before.split("/"):
        part = _decoded(raw)
        if part in ("", "."):
            continue
        if part == "..":
            if parts:
                parts.pop()
            continue
        parts.append(part)
    return parts, mark + quote(query, safe=string.punctuation)


def _decoded(raw: str) -> str:
    """Decode one segment; reject a segment that contains encoded separators."""
    part = raw
    for _ in range(_ROUNDS_MAX):
        decoded = unquote(part, errors="strict") if _is_text(part) else "%"
        if decoded == part:
            break
        part = decoded
    if _FORBIDDEN & set(part) or not part.isprintable():
        raise ExpressionFailed("egress.path", f"segment {raw!r} is not part of a path")
    return part


def _is_text(part: str) -> bool:
    try:
        unquote(part, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


def _joined(parts: list[str], query: str) -> str:
    return "/" + "/".join(quote(part, safe=_SAFE) for part in parts) + query


def _refused(message: str) -> ExpressionFailed:
    return ExpressionFailed("egress.namespace", message)
