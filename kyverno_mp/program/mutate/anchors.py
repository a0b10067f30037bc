"""Process the anchors of a strategic merge patch against its object.

Room: program.mutate. Takes: a patch with variables substituted, an object. Gives: the
patch to merge, None if a condition is not met. Next: values/patches/strategic_merge.
May touch: nothing outside its arguments; the patch is copied first.
Source: docs/behaviour/engine 7.3; Kyverno
pkg/engine/mutate/patch/strategicPreprocessing.go.

KYVERNO: policies rely on the order of the steps, and on the fact that all elements of
the object's list share one processed copy of the patch element.

Over 400 lines: the walk over patch and object also deletes anchors, and the order of
all steps, which policies rely on, is visible in one place.
"""

from functools import lru_cache
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.pattern.anchors import ADD_IF_NOT_PRESENT, parse_anchor
from kyverno_mp.expr.pattern.nodes import CONDITION, GLOBAL
from kyverno_mp.expr.pattern.parse import cached_program, check_depth
from kyverno_mp.limits import PARSE_CACHE_ENTRIES_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import whole_numbers
from kyverno_mp.values.patches.merge_list import ABSENT, text_of
from kyverno_mp.values.patches.node_kind import MAPPING, SEQUENCE, wrong_kind_text
from kyverno_mp.values.spending import ENTRY_BYTES, FREE, POINTER_BYTES, Spender

_ANCHORS: Final = frozenset((CONDITION, GLOBAL, ADD_IF_NOT_PRESENT))
_CONDITIONS: Final = frozenset((CONDITION, GLOBAL))
_GLOBALS: Final = frozenset((GLOBAL,))
_LOCALS: Final = frozenset((CONDITION,))
_ADDED: Final = frozenset((ADD_IF_NOT_PRESENT,))
_MET: Final = 0
_UNMET: Final = 1
_GLOBALLY_UNMET: Final = 2

_Map = dict[str, Json]
_EMPTIED: Final = "\ud800"
"""The key in a map that lost all its ``+()``; no text of a policy is equal to it."""
_KEY_STEPS: Final = 6
_CONDITION_STEPS: Final = 20


def prepare(patch: Json, spend: Spender = FREE) -> Json:
    """Return a patch prepared for ``preprocess``, independent of any object.

    Keys are sorted as in Go's JSON, which determines the order of processing.
    Raises: ExpressionFailed ``failed to preProcess rule: ...``, ExpressionInvalid.
    """
    check_depth(patch)
    charge_size(patch, spend)
    if type(patch) is not dict:
        raise _failed(wrong_kind_text(MAPPING, patch))
    return _sorted(whole_numbers(patch))


def preprocess(prepared: Json, resource: Json, spend: Spender = FREE) -> Json | None:
    """Return the patch without anchors; None if a condition is not met.

    Raises: ExpressionFailed ``failed to preProcess rule: ...``.
    """
    copied = _copy(prepared, spend)
    if _walk(copied, resource, spend) != _MET:
        return None
    return _cleaned(copied)


def adds_only(prepared: Json) -> bool:
    """Return whether a patch consists of maps whose only anchors are ``+()``."""
    if type(prepared) is dict:
        names = set()
        for key in prepared:
            anchor = _anchor(key) if "(" in key else (ADD_IF_NOT_PRESENT, key)
            if anchor is None or anchor[0] != ADD_IF_NOT_PRESENT:
                return False
            names.add(anchor[1])
        return len(names) == len(prepared) and all(map(adds_only, prepared.values()))
    if type(prepared) is list:
        return False
    return type(prepared) is not str or "(" not in prepared


def preprocess_adds(prepared: _Map, resource: Json, spend: Spender = FREE) -> _Map:
    """Preprocess a patch that satisfies ``adds_only``. PERF: in a single walk."""
    spend.charge(_KEY_STEPS * (1 + len(prepared)))
    spend.charge_bytes(ENTRY_BYTES * len(prepared))
    out: _Map = {}
    for key, item in prepared.items():
        name = key
        if "(" in key:
            anchor = _anchor(key)
            assert anchor is not None
            name = anchor[1]
            if _field(resource, name) is not ABSENT:
                continue
        if type(item) is dict:
            below = preprocess_adds(item, _field(resource, name), spend)
            if below or not item:
                out[name] = below
        else:
            out[name] = item
    return out


def has_anchors(value: Json) -> bool:
    """Return whether a patch has anchors that ``preprocess`` must evaluate."""
    return _holds_anchor(value, _ANCHORS)


def has_globals(value: Json) -> bool:
    """Return whether any part of a patch contains ``<()``."""
    return _holds_anchor(value, _GLOBALS)


def has_additions(value: Json) -> bool:
    """Return whether any part of a patch contains ``+()``."""
    return _holds_anchor(value, _ADDED)


def has_lists_of_maps(prepared: Json) -> bool:
    """Return whether ``check_lists`` has lists to check."""
    if type(prepared) is dict:
        return any(map(has_lists_of_maps, prepared.values()))
    return _is_list_of_maps(prepared)


def check_lists(prepared: Json, resource: Json, spend: Spender) -> None:
    """Refuse an object without a list where a patch without anchors has a list of maps.

    KYVERNO: upstream reads the elements before it checks whether any has an anchor.
    Raises: ExpressionFailed, as ``preprocess`` does.
    """
    if type(prepared) is dict:
        for key, item in prepared.items():
            check_lists(item, _field(resource, key), spend)
    elif _is_list_of_maps(prepared):
        _walk_list(prepared, resource, spend)


def _is_list_of_maps(value: Json) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is dict


def clean(prepared: Json) -> Json:
    """Clean a patch without anchors as ``preprocess`` would."""
    return _cleaned(_copy(prepared))


def charge_size(value: Json, spend: Spender) -> None:
    """Charge for a few walks over a value."""
    if type(value) is dict or type(value) is list:
        spend.charge(_KEY_STEPS * (1 + len(value)))
        for item in value.values() if type(value) is dict else value:
            charge_size(item, spend)
    elif type(value) is str:
        spend.charge(len(value) >> 6)


def _failed(reason: str) -> ExpressionFailed:
    return ExpressionFailed("mutate.preprocess", f"failed to preProcess rule: {reason}")


def _sorted(value: Json) -> Json:
    if type(value) is dict:
        return {key: _sorted(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [_sorted(item) for item in value]
    return value


def _copy(value: Json, spend: Spender = FREE) -> Json:
    if type(value) is dict:
        spend.charge(1 + (len(value) >> 1))
        spend.charge_bytes(ENTRY_BYTES * len(value))
        return {
            key: _copy(item, spend)
            if type(item) is dict or type(item) is list
            else item
            for key, item in value.items()
        }
    if type(value) is list:
        spend.charge(1 + (len(value) >> 1))
        spend.charge_bytes(POINTER_BYTES * len(value))
        return [_copy(item, spend) for item in value]
    return value


# PERF: a policy has few keys with anchors, but they are parsed repeatedly.
_anchor: Final = lru_cache(maxsize=PARSE_CACHE_ENTRIES_MAX)(parse_anchor)


def anchor_of(key: str) -> tuple[str, str] | None:
    """Return the modifier and key of an anchor that patches support, otherwise None."""
    anchor = _anchor(key) if "(" in key else None
    return anchor if anchor is not None and anchor[0] in _ANCHORS else None


def is_condition(key: str) -> bool:
    """Return whether a string, if used as a key, would be a condition."""
    return _modifier(key) in _CONDITIONS


def _modifier(key: str) -> str | None:
    anchor = _anchor(key)
    return None if anchor is None else anchor[0]


def _keys(pattern: Json, modifiers: frozenset[str]) -> list[tuple[str, str]]:
    """Return (text, key) of a map's anchors of the wanted kinds."""
    if type(pattern) is not dict:
        return []
    keys = []
    for written_key in pattern:
        if "(" in written_key:
            anchor = _anchor(written_key)
            if anchor is not None and anchor[0] in modifiers:
                keys.append((written_key, anchor[1]))
    return keys


def _field(node: Json, key: str) -> Json:
    return node.get(key, ABSENT) if type(node) is dict else ABSENT


def _rename(pattern: _Map, old: str, new: str) -> None:
    entries = list(pattern.items())
    pattern.clear()
    for key, item in entries:
        pattern.setdefault(new if key == old else key, item)


def _holds_anchor(node: Json, modifiers: frozenset[str]) -> bool:
    if type(node) is dict:
        for key, item in node.items():
            if "(" in key and _modifier(key) in modifiers:
                return True
            kind = type(item)
            if kind is str:
                if "(" in item and _modifier(item) in _CONDITIONS:
                    return True
            elif (kind is dict or kind is list) and _holds_anchor(item, modifiers):
                return True
        return False
    if type(node) is list:
        return any(_holds_anchor(item, modifiers) for item in node)
    return type(node) is str and "(" in node and _modifier(node) in _CONDITIONS


# Walk over patch and object together.


def _walk(pattern: Json, resource: Json, spend: Spender) -> int:
    if type(pattern) is dict:
        return _walk_map(pattern, resource, spend)
    return _walk_list(pattern, resource, spend) if _is_list_of_maps(pattern) else _MET


def _walk_map(pattern: _Map, resource: Json, spend: Spender) -> int:
    spend.charge(_KEY_STEPS * (1 + len(pattern)))
    # PERF: most maps of a patch have no anchor; checking for a parenthesis is fast.
    if "(" in "".join(pattern):
        _add_if_not_present(pattern, resource)
        if not _conditions_met(pattern, resource, _GLOBALS, spend):
            return _GLOBALLY_UNMET
        if not _conditions_met(pattern, resource, _LOCALS, spend):
            return _UNMET
    for key, item in list(pattern.items()):
        if type(item) is not dict and type(item) is not list:
            continue
        if "(" in key and _modifier(key) in _ANCHORS:
            continue
        code = _walk(item, _field(resource, key), spend)
        if code != _MET:
            return code
    return _MET


def _add_if_not_present(pattern: Json, resource: Json) -> int:
    """Keep ``+()`` entries if the object lacks the key; return their total count."""
    additions = _keys(pattern, _ADDED)
    for written_key, key in additions:
        if _field(resource, key) is not ABSENT:
            del pattern[written_key]
        else:
            _rename(pattern, written_key, key)
    if additions and not pattern:
        pattern[_EMPTIED] = None
    return len(additions)


def _conditions_met(
    pattern: _Map, resource: Json, modifier: frozenset[str], spend: Spender
) -> bool:
    for written_key, key in _keys(pattern, modifier):
        value = _field(resource, key)
        if value is ABSENT:
            return False
        condition = pattern[written_key]
        # KYVERNO: a condition that contains ``+()`` anchors is not evaluated
        # (docs/behaviour/engine 7.3).
        if _add_if_not_present(condition, value):
            continue
        if type(condition) is str:
            program = text_program(condition)
        else:
            if type(condition) is dict and _EMPTIED in condition:
                condition = {}
            program = cached_program(comparable(condition))
        spend.charge(_CONDITION_STEPS)
        charge_size(value, spend)
        if not program.passes(comparable(value)):
            return False
    return True


# PERF: no cache key has to be built, because the text itself is the key.
text_program: Final = lru_cache(maxsize=PARSE_CACHE_ENTRIES_MAX)(cached_program)


def comparable(value: Json) -> Json:
    """Return the value that a condition compares. KYVERNO: scalars become text."""
    if type(value) is dict or type(value) is list:
        return whole_numbers(value)
    return text_of(value)


def _walk_list(pattern: list[Json], resource: Json, spend: Spender) -> int:
    if resource is None:
        # KYVERNO: a null list has no elements, so no condition is evaluated on it, and
        # not even a global condition fails.
        return _MET
    if resource is not ABSENT and type(resource) is not list:
        raise _failed(wrong_kind_text(SEQUENCE, resource))
    for element in pattern.copy():
        if not _holds_anchor(element, _ANCHORS):
            continue
        code = _walk_element(pattern, element, resource, spend)
        if code != _MET:
            return code
    return _MET


def _walk_element(
    pattern: list[Json], element: Json, resource: Json, spend: Spender
) -> int:
    is_global = _holds_anchor(element, _GLOBALS)
    has_passed = is_refused = False
    copied = _copy(element, spend)
    if resource is ABSENT:
        return (
            _GLOBALLY_UNMET if _walk(copied, ABSENT, spend) == _GLOBALLY_UNMET else _MET
        )
    for existing in resource:
        code = _walk(copied, existing, spend)
        if code == _GLOBALLY_UNMET:
            is_refused = True
        if code != _MET:
            continue
        if is_global:
            has_passed = True
        else:
            _append_named(pattern, copied, existing, spend)
    return _GLOBALLY_UNMET if is_refused and not has_passed else _MET


def _append_named(
    pattern: list[Json], element: Json, existing: Json, spend: Spender
) -> None:
    """Append a copy of the patch element with the name of the object's element."""
    name = _field(existing, "name")
    if name is ABSENT or name is None or name in ({}, []):
        return
    named = _copy(element, spend)
    if _delete_anchors(named, delete_scalar=True):
        return
    if type(named) is not dict:
        problem = wrong_kind_text(MAPPING, named)
        raise _failed(f"failed to update name in pattern: {problem}")
    # KYVERNO: a quoted name is replaced by a quoted string, so the result is a string.
    named["name"] = text_of(name) if type(named.get("name")) is str else name
    pattern.append(named)


# Remove the remaining anchors.


def _cleaned(pattern: _Map) -> Json:
    pattern.pop(_EMPTIED, None)
    for key in list(pattern):
        is_scalar_deleted = "(" in key and is_condition(key)
        if _delete_anchors(pattern[key], delete_scalar=is_scalar_deleted):
            del pattern[key]
    return pattern


def cleaned_part(part: Json, *, delete_scalar: bool) -> Json:
    """Return a part of a patch without anchors, ABSENT if nothing remains.

    Raises: ExpressionFailed, as ``preprocess`` does.
    """
    copied = _copy(part)
    return ABSENT if _delete_anchors(copied, delete_scalar=delete_scalar) else copied


def _delete_anchors(node: Json, *, delete_scalar: bool) -> bool:
    """Delete anchors below ``node``; return whether the node itself must be deleted.

    A map without content in the policy is content; a map that lost its content is not.
    """
    if type(node) is dict:
        return _delete_in_map(node) if node else delete_scalar
    if type(node) is list:
        return _delete_in_list(node)
    return delete_scalar


def _delete_in_map(node: _Map) -> bool:
    node.pop(_EMPTIED, None)
    if "(" in "".join(node):
        remaining = []
        for written_key, key in _keys(node, _CONDITIONS):
            if _delete_anchors(node[written_key], delete_scalar=True):
                del node[written_key]
            else:
                remaining.append((written_key, key))
        for written_key, key in remaining:
            _rename(node, written_key, key)
    must_go = True
    for key, item in list(node.items()):
        kind = type(item)
        if (kind is dict or kind is list) and _delete_anchors(
            item, delete_scalar=False
        ):
            del node[key]
        else:
            must_go = False
    return must_go


def _delete_in_list(node: list[Json]) -> bool:
    was_empty = not node
    for index, element in enumerate(node.copy()):
        is_anchored = _holds_anchor(element, _ANCHORS)
        if is_anchored or _delete_anchors(element, delete_scalar=False):
            # KYVERNO: the index is not adjusted after a deletion, so the next deletion
            # removes the element after the intended one.
            if index >= len(node):
                raise _failed("a list of the patch has two elements with anchors")
            del node[index]
    return not node and not was_empty
