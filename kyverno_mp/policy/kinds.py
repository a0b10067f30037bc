"""Extract the kind from an entry of ``kinds``, for policy checks and autogen.

Room: policy. Takes: the text of a kind selector. Gives: the bare kind. Next: autogen
and policy/checks. Matching uses values/kubernetes/kinds.py instead, which splits
entries differently.
Source: docs/behaviour/engine 2.1; Kyverno pkg/utils/kube/kind.go (GetKindFromGVK,
ContainsKind).
"""

import re
from collections.abc import Iterable
from typing import Final

_VERSION: Final = re.compile(r"v[0-9]((alpha|beta)[0-9])?|\*")


def bare_kind(shown_kind: str) -> str:
    """Return the kind without group, version and subresource."""
    parts = shown_kind.split("/")
    is_version = _VERSION.fullmatch(parts[0]) is not None
    match parts:
        case [only]:
            kind = only.replace(".", "/", 1)
        case ["*", "*"]:
            kind = shown_kind
        case [_, last]:
            kind = last.replace(".", "/", 1) if is_version else shown_kind
        case [_, second, last]:
            kind = f"{second}/{last}" if is_version else last.replace(".", "/", 1)
        case [_, _, third, last]:
            kind = f"{third}/{last}"
        case _:
            return ""
    split = kind.split("/")
    return split[0] if len(split) == 2 else kind  # noqa: PLR2004 - kind and subresource


def contains_kind(kinds: Iterable[str], kind: str) -> bool:
    """Return whether an entry names ``kind``, in any notation."""
    return any(bare_kind(entry) == kind for entry in kinds)
