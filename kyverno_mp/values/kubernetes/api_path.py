"""Read the resource of an API path that may contain variables.

Room: values. Takes: the template of a path in a namespace. Gives: FixedPath, or None if
the resource is known only at run time. Next: policy/checks/author.py (permissions of
the author), program/context/api_call.py (keeps variables within their segments).
Source: Kubernetes API paths ``/api/v1/namespaces/<ns>/<resource>[/<name>[/<sub>]]``.
"""

import re
from typing import Final, NamedTuple

_VARIABLE: Final = re.compile(r"\{\{[^{}]*\}\}")
_FILLED: Final = "*"
_DOTS: Final = frozenset({"", ".", ".."})
_CORE: Final = ("", "api", None, "namespaces", None)
_GROUP: Final = ("", "apis", None, None, "namespaces", None)


class FixedPath(NamedTuple):
    """A path whose resource is known; ``name`` is "" for a list or a variable."""

    group: str
    resource: str
    name: str
    subresource: str
    may_list: bool
    segments: int

    def has_shape(self, path: str) -> bool:
        """Return whether variables only filled their segments of this path."""
        segments = path.partition("?")[0].split("/")
        return len(segments) == self.segments and not _DOTS & set(segments[1:])


def fixed_path(template: str) -> FixedPath | None:
    """Return the resource, None if a variable or dots could change it."""
    bare = _VARIABLE.sub(_FILLED, template).partition("?")[0]
    segments = bare.split("/")
    head = _CORE if segments[1:2] == ["api"] else _GROUP
    tail = segments[len(head) :]
    is_plain = not _DOTS & set(segments[1:]) and not set("{}$%#\\") & set(bare)
    if (
        not tail
        or not is_plain
        or any(
            fixed not in (None, segment)
            for fixed, segment in zip(head, segments, strict=False)
        )
    ):
        return None
    group = segments[2] if head is _GROUP else ""
    resource, name, *below = [*tail, ""] if len(tail) == 1 else tail
    if _FILLED in group + resource + "".join(below):
        return None
    is_filled = _FILLED in name
    return FixedPath(
        group,
        resource,
        "" if is_filled else name,
        "/".join(below),
        not name,
        len(segments),
    )
