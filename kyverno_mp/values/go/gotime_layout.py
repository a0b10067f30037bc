"""Split Go's time layouts into their elements.

Room: values. Takes: a layout such as ``2006-01-02 15:04``. Gives: split_layout. Next:
values/go/gotime_parse.py.
Source: Go's package time (format.go, nextStdChunk); docs/behaviour/engine 9.2.
"""

from functools import lru_cache
from typing import Final

import re2

_CHUNK: Final = re2.compile(
    "January|Jan|Monday|Mon|MST|0[1-6]|002|15|1|2006|2|_2006|_2|__2|3|4|5|PM|pm"
    "|-070000|-07:00:00|-0700|-07:00|-07|Z070000|Z07:00:00|Z0700|Z07:00|Z07"
    "|[.,](?:0+|9+)"
)


@lru_cache(maxsize=256)
def split_layout(layout: str) -> tuple[tuple[str, str], ...]:
    """Split a layout into (literal, element) pairs; the last element is empty."""
    pairs: list[tuple[str, str]] = []
    start = position = 0
    while True:
        match = _CHUNK.search(layout, position)
        if match is None:
            return (*pairs, (layout[start:], ""))
        chunk, begin, end = match.group(), match.start(), match.end()
        following = layout[end : end + 1]
        if (chunk in ("Jan", "Mon") and "a" <= following <= "z") or (
            chunk[0] in ".," and "0" <= following <= "9"
        ):
            position = begin + 1
            continue
        if chunk == "_2006":
            chunk, begin = "2006", begin + 1
        pairs.append((layout[start:begin], chunk))
        start = position = end
