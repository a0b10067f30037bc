"""Parse a JSON pattern to records that do not depend on a resource.

Room: expr.pattern. Takes: the value of ``pattern`` or of one ``anyPattern`` entry,
after substitution. Gives: Pattern, or the cached program of a value known only at run
time. Next: link.
Source: docs/behaviour/engine 5.
"""

from functools import lru_cache
from typing import Final

import msgspec

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.expr.pattern.anchors import entry_of, is_anchored, ordered
from kyverno_mp.expr.pattern.labels import is_block_key, needs_expansion
from kyverno_mp.expr.pattern.link import PatternProgram, link_pattern
from kyverno_mp.expr.pattern.nodes import (
    Leaf,
    ListPattern,
    MapPattern,
    Node,
    Pattern,
    PatternEntry,
)
from kyverno_mp.expr.pattern.text import parse_alternatives
from kyverno_mp.limits import (
    EXPRESSION_TEXT_BYTES_MAX,
    PARSE_CACHE_ENTRIES_MAX,
    PATTERN_DEPTH_MAX,
)
from kyverno_mp.values.jsonvalue import Json

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def parse_pattern(value: Json, *, any_pattern: bool = False) -> Pattern:
    """Parse one pattern.

    ``any_pattern``: the value is an entry of ``anyPattern``.
    KYVERNO: 5.8 - upstream encodes and decodes anyPattern again, which turns every
    number in it into a float64.

    Raises: ExpressionInvalid (pattern.depth, pattern.number).
    """
    check_depth(value)
    return Pattern(_node(value, floats=any_pattern))


def cached_program(value: Json, *, any_pattern: bool = False) -> PatternProgram:
    """Parse and link a value that was substituted at run time, with a bounded cache.

    Raises: ExpressionInvalid, as parse_pattern.
    """
    check_depth(value)
    try:
        # MessagePack distinguishes 1, 1.0 and true, and NaN and null.
        encoded = msgspec.msgpack.encode(value, order="deterministic")
    except (OverflowError, UnicodeEncodeError):
        return link_pattern(parse_pattern(value, any_pattern=any_pattern))
    if len(encoded) > EXPRESSION_TEXT_BYTES_MAX:
        return link_pattern(parse_pattern(value, any_pattern=any_pattern))
    return _program(encoded, any_pattern)


@lru_cache(maxsize=PARSE_CACHE_ENTRIES_MAX)
def _program(encoded: bytes, any_pattern: bool) -> PatternProgram:  # noqa: FBT001 - a part of the key
    value = msgspec.msgpack.decode(encoded)
    return link_pattern(parse_pattern(value, any_pattern=any_pattern))


def check_depth(value: Json) -> None:
    """Reject a value nested beyond PATTERN_DEPTH_MAX, without recursion."""
    level: list[Json] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > PATTERN_DEPTH_MAX:
            raise ExpressionInvalid(
                "pattern.depth", f"pattern is nested deeper than {PATTERN_DEPTH_MAX}"
            )
        below: list[Json] = []
        for item in level:
            if type(item) is dict:
                below.extend(item.values())
            elif type(item) is list:
                below.extend(item)
        level = below


_NODE_STEPS: Final = 4


def _node(value: Json, *, floats: bool) -> Node:
    spend(_NODE_STEPS)
    if type(value) is dict:
        return _map(value, floats=floats)
    if type(value) is list:
        items = tuple([_node(item, floats=floats) for item in value])
        return ListPattern(items, any(is_anchored(item) for item in items))
    if type(value) is str:
        return Leaf(value, parse_alternatives(value))
    if type(value) is int:
        return Leaf(_number(value, floats=floats))
    return Leaf(value)


def _number(value: int, *, floats: bool) -> int | float:
    if not floats and _INT64_MIN <= value <= _INT64_MAX:
        return value
    try:
        return float(value)
    except OverflowError as error:
        raise ExpressionInvalid(
            "pattern.number", "a number of the pattern is out of range"
        ) from error


def _map(value: dict[str, Json], *, floats: bool) -> MapPattern:
    entries = [entry_of(key, _node(item, floats=floats)) for key, item in value.items()]
    expands = False
    for index, entry in enumerate(entries):
        if entry.key == "metadata" and type(entry.value) is MapPattern:
            metadata = _metadata(entry.value)
            expands = expands or metadata.expands
            entries[index] = PatternEntry(entry.kind, entry.key, entry.text, metadata)
    return ordered(entries, expands=expands)


def _metadata(metadata: MapPattern) -> MapPattern:
    """Mark the labels and annotations of a metadata map if they change at run time.

    ``expands`` of the result covers these blocks and also a nested metadata map.
    """
    entries: list[PatternEntry] = []
    expands = False
    for entry in (*metadata.first, *metadata.then):
        value = entry.value
        if is_block_key(entry.key) and type(value) is MapPattern:
            if needs_expansion(value):
                expands = True
                value = ordered((*value.first, *value.then), block=True)
            entry = PatternEntry(entry.kind, entry.key, entry.text, value)  # noqa: PLW2901 - the marked copy replaces it
        entries.append(entry)
    return ordered(entries, expands=metadata.expands or expands)
