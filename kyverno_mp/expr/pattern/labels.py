"""Replace wildcard keys in the labels and annotations of a pattern.

Room: expr.pattern. Takes: MapPattern and the resource at the same place. Gives: the
MapPattern that applies to this resource. Next: explain; fast, which uses the plan of a
block.
Source: docs/behaviour/engine 5.6 ("Before a map is processed").
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.expr.pattern.anchors import is_anchored, ordered, parse_anchor
from kyverno_mp.expr.pattern.leaf import charge_leaf, match_leaf
from kyverno_mp.expr.pattern.nodes import (
    CONDITION,
    GLOBAL,
    PLAIN,
    Leaf,
    MapPattern,
    PatternEntry,
)
from kyverno_mp.values.effort import Charge, uncharged
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import contains_wildcard, matches

_STEPS_PER_KEY: Final = 8
_SEARCHED_PER_STEP: Final = 128
_WEIGHT_MAX: Final = 1000
_BLOCKS: Final = ("labels", "annotations")


def is_block_key(key: str) -> bool:
    """Return whether a key of a metadata map is ``labels`` or ``annotations``."""
    return key in _BLOCKS


def needs_expansion(block: MapPattern) -> bool:
    """Return whether the resulting block depends on the resource's block."""
    return any(
        contains_wildcard(entry.text) or not is_text(entry)
        for entry in (*block.first, *block.then)
    )


def is_text(entry: PatternEntry) -> bool:
    """Return whether the pattern value is a string; upstream drops all other values."""
    return type(entry.value) is Leaf and type(entry.value.value) is str


def expand_metadata(
    node: MapPattern, resource: dict[str, Json], charge: Charge = uncharged
) -> MapPattern:
    """Return the map with the blocks of its metadata expanded for the resource.

    KYVERNO: 5.6 - upstream modifies its copy of the pattern, so within one list the
    keys of the first element also apply to the following elements, and it chooses an
    arbitrary matching key. Here each element gets its own keys, and the choice is
    deterministic (see choose_key).
    """
    metadata = resource.get("metadata")
    if type(metadata) is not dict:
        return node
    entries = [_expand_entry(e, metadata, charge) for e in (*node.first, *node.then)]
    return ordered(entries)


def _expand_entry(
    entry: PatternEntry, metadata: dict[str, Json], charge: Charge
) -> PatternEntry:
    pattern = entry.value
    if entry.key != "metadata" or type(pattern) is not MapPattern:
        return entry
    entries: list[PatternEntry] = []
    for inner in (*pattern.first, *pattern.then):
        block, labels = inner.value, metadata.get(inner.key)
        if type(block) is MapPattern and block.block and type(labels) is dict:
            count = len(block.first) + len(block.then)
            charge(count * _STEPS_PER_KEY)
            for item in (*block.first, *block.then):
                if contains_wildcard(item.text):
                    charge_labels(labels, len(item.text), charge)
                    # choose_key tests the values of all keys that match.
                    if type(item.value) is Leaf:
                        charge_leaf(item.value, list(labels.values()), charge)
                elif type(item.value) is Leaf:
                    charge_leaf(item.value, [labels.get(item.key)], charge)
            entries.append(_with_value(inner, expand_block(block, labels)))
        else:
            entries.append(inner)
    expanded = ordered(entries, expands=pattern.expands)
    return _with_value(entry, expanded)


def _with_value(entry: PatternEntry, value: MapPattern) -> PatternEntry:
    return PatternEntry(entry.kind, entry.key, entry.text, value)


def charge_labels(labels: dict[str, Json], weight: int, charge: Charge) -> None:
    """Charge the search for a wildcard key in labels."""
    charge(_STEPS_PER_KEY * len(labels))
    length = sum(map(len, labels))
    charge((length * min(weight, _WEIGHT_MAX) + length * 8) // _SEARCHED_PER_STEP)


def expand_block(block: MapPattern, labels: dict[str, Json]) -> MapPattern:
    """Return the block with wildcard keys replaced and without non-text values.

    KYVERNO: 5.6 - of two keys that become the same key, upstream uses an arbitrary one.
    Here it is one that the label violates, if there is one.
    """
    chosen: dict[str, PatternEntry] = {}
    entries = sorted((*block.first, *block.then), key=lambda entry: entry.text)
    for entry in entries:
        if is_text(entry):
            fitted = _fit(entry, labels)
            earlier = chosen.get(fitted.text)
            if earlier is None or not _finds(earlier, labels.get(earlier.key)):
                chosen[fitted.text] = fitted
    return ordered(chosen.values())


def _finds(entry: PatternEntry, label: Json) -> bool:
    """Return whether the label violates the pattern, or meets its condition."""
    assert type(entry.value) is Leaf
    return match_leaf(label, entry.value.value) == (entry.kind in (CONDITION, GLOBAL))


def _fit(entry: PatternEntry, labels: dict[str, Json]) -> PatternEntry:
    if not contains_wildcard(entry.text):
        return entry
    anchor = parse_anchor(entry.text)
    modifier, wildcard = anchor or ("", entry.text)
    key = choose_key(entry, wildcard, labels)
    new_key = key if anchor is None else f"{modifier}({key})"
    looked_up = new_key if entry.kind == PLAIN else key
    return PatternEntry(entry.kind, looked_up, new_key, entry.value)


def choose_key(entry: PatternEntry, wildcard: str, labels: dict[str, Json]) -> str:
    """Return the key that replaces a wildcard key; the wildcard if no key matches.

    KYVERNO: 5.6 - upstream takes the first matching key of an unordered map. Of these
    keys, this function takes the alphabetically first one that violates the pattern. So
    a second, harmless annotation cannot hide a violation, and the result is
    deterministic.
    """
    matching = [k for k, v in labels.items() if type(v) is str and matches(wildcard, k)]
    matching.sort()
    for key in matching:
        if _finds(entry, labels[key]):
            return key
    return matching[0] if matching else wildcard


def block_plan(
    block: MapPattern, *, can_skip: bool
) -> tuple[tuple[PatternEntry, ...], PatternEntry | None] | None:
    """Split a block into its fixed entries and its only wildcard entry.

    None if the order of keys or their collisions depend on the resource; then the fast
    program must expand the block, as ``explain`` does.
    """
    fixed: list[PatternEntry] = []
    wild: list[PatternEntry] = []
    for entry in (*block.first, *block.then):
        if not is_text(entry):
            if entry.kind != PLAIN or is_anchored(entry.value):
                return None
        elif contains_wildcard(entry.text):
            if entry.kind == PLAIN and parse_anchor(entry.text):
                return None
            wild.append(entry)
        else:
            fixed.append(entry)
    if len(wild) > 1 or (wild and fixed and can_skip):
        return None
    if not wild:
        return tuple(fixed), None
    if _collides(wild[0], fixed):
        return None
    return tuple(fixed), wild[0]


def _collides(wild: PatternEntry, fixed: list[PatternEntry]) -> bool:
    anchor = parse_anchor(wild.text)
    wildcard: Callable[[str], bool] = lambda key: matches(  # noqa: E731 - a named helper
        anchor[1] if anchor else wild.text, key
    )
    return any(entry.kind == wild.kind and wildcard(entry.key) for entry in fixed)
