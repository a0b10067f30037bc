"""Convert the path of an element to JMESPath, for the variable ``@``.

Room: expr. Takes: a path such as ``/spec/containers/0/image``. Gives: JMESPath.
Next: expr/template/lookup.
Source: docs/behaviour/engine 3.3; Kyverno pkg/utils/jsonpointer/pointer.go.
"""

import re
from typing import Final

_SKIPPED: Final = 2
_PLAIN: Final = re.compile(r"[(A-Za-z_][)0-9A-Za-z_]*\Z")
_INDEX: Final = re.compile(r"[0-9]+\Z")
_INDEX_MAX: Final = (1 << 64) - 1
_SPECIAL: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_CONTROL_END: Final = 0x20


def current_path(path: str, prefix: str) -> str:
    """Return the meaning of ``@`` at ``path``, below ``prefix``.

    KYVERNO: the first two components are always dropped; this is correct only for
    documents that are whole rules (docs/behaviour/engine 3.3).
    """
    parts = _components(path)
    if "foreach" in parts:
        parts = parts[parts.index("foreach") + 1 :]
    parts = parts[_SKIPPED:] if len(parts) > _SKIPPED else []
    return _jmespath([*prefix.split("."), *parts])


def _components(path: str) -> list[str]:
    """Split at ``/``; a backslash escapes the next character."""
    parts: list[str] = []
    current: list[str] = []
    escaped = False
    for char in path:
        if escaped:
            current.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "/":
            if current:
                parts.append("".join(current))
            current = []
        else:
            current.append(char)
    if current:
        parts.append("".join(current))
    return parts


def _jmespath(parts: list[str]) -> str:
    out: list[str] = []
    for part in parts:
        if _INDEX.match(part) and int(part[:21]) <= _INDEX_MAX:
            out.append(f"[{part}]")
            continue
        if out:
            out.append(".")
        out.append(part if _PLAIN.match(part) else _quoted(part))
    return "".join(out)


def _quoted(part: str) -> str:
    escaped = "".join(
        _SPECIAL.get(char)
        or (char if ord(char) >= _CONTROL_END else f"\\u{ord(char):04x}")
        for char in part
    )
    return f'"{escaped}"'
