"""Split one entry of ``kinds`` into its four patterns.

Room: values. Takes: the text of a kind selector. Gives: (group, version, kind,
subresource), each a wildcard pattern. Next: compiler/rules/match,
program/matching/filters, settings.
Source: docs/behaviour/engine 1.3.
"""

import re
from typing import Final, NamedTuple

_VERSION: Final = re.compile(r"(?:v[0-9](?:(?:alpha|beta)[0-9])?|\*)\Z")
"""KYVERNO: only single digits match, so ``v10`` and ``v1alpha12`` are not versions
(1.3)."""


class KindSelector(NamedTuple):
    """Four wildcard patterns, e.g. ("apps", "v1", "Deploy*", "")."""

    group: str
    version: str
    kind: str
    subresource: str


_NOTHING: Final = KindSelector("", "", "", "")


def parse_kind(selector: str) -> KindSelector:
    """Split a kind selector; with too many parts, it matches nothing (1.3)."""
    *head, last = selector.split("/")
    parts = [*head, *last.split(".")]
    if len(parts) == 1:
        return KindSelector("*", "*", parts[0], "")
    if len(parts) == 2:  # noqa: PLR2004 - the number of parts, as in the table of 1.3
        return _parse_two(parts[0], parts[1])
    if len(parts) == 3:  # noqa: PLR2004 - as above
        if _VERSION.match(parts[0]):
            return KindSelector("*", parts[0], parts[1], parts[2])
        return KindSelector(parts[0], parts[1], parts[2], "")
    if len(parts) == 4:  # noqa: PLR2004 - as above
        return KindSelector(parts[0], parts[1], parts[2], parts[3])
    return _NOTHING


def _parse_two(first: str, second: str) -> KindSelector:
    if first == "*" and second == "*":
        return KindSelector("*", "*", "*", "*")
    if first == "*" and second == second.lower():
        return KindSelector("*", "*", "*", second)
    if _VERSION.match(first):
        return KindSelector("*", first, second, "")
    return KindSelector("*", "*", first, second)
