"""Reject a policy folder without policies: a wrong path would allow everything.

Room: process. Takes: the path from the settings. Gives: a reason, "" if the folder has
a policy.
Next: process/serve.py, before any process starts.
May touch: reads files of the folder, until one of them contains a policy.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.leader.folder import Folder
from kyverno_mp.policy.cel_kinds.served import authorization_mode, is_served
from kyverno_mp.policy.reading.decode import is_known_kind
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json

_NAMED_MAX: Final = 3
_EXCEPTION: Final = "PolicyException"


def why_without_policies(path: str, mode: str = "") -> str:
    """Return why no policy can be read from a folder or file, "" if one can.

    ``mode``: the evaluation mode of an authorizer, "" for admission reviews.
    """
    try:
        scan = Folder(Path(path)).scan()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    problems, kinds = list(scan.problems), Counter[str]()
    for name in scan.stats:
        try:
            documents = load(Path(name).read_bytes(), file=name)
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
        except PolicyInvalid as error:
            problems.append(f"{error.where}: {error.message}")
        else:
            found = [_kind_of(document.raw) for document in documents]
            if any(
                _is_used(document.raw, mode) and kind != _EXCEPTION
                for document, kind in zip(documents, found, strict=True)
            ):
                return ""
            kinds.update(found)
    return f"{path} contains no policy: {_content(len(scan.stats), problems, kinds)}"


def _is_used(raw: Json, mode: str) -> bool:
    if mode:
        return authorization_mode(raw) == mode
    return is_known_kind(raw) or is_served(raw)


def _kind_of(raw: Json) -> str:
    kind = raw.get("kind") if isinstance(raw, dict) else None
    return kind if isinstance(kind, str) and kind else "no kind"


def _content(files: int, problems: Sequence[str], kinds: Counter[str]) -> str:
    found = [f"{files} YAML or JSON files"]
    if kinds:
        common = kinds.most_common(_NAMED_MAX)
        shown = ", ".join(f"{kind} ({number})" for kind, number in common)
        found.append(f"documents of other kinds: {shown}")
    found += problems[:_NAMED_MAX]
    if len(problems) > _NAMED_MAX:
        found.append(f"and {len(problems) - _NAMED_MAX} more that cannot be read")
    return "; ".join(found)
