"""Apply JSON patches that contain only additions, as nearly all do, in one pass.

Room: values. Takes: operations, linked once; an object. Gives: the patched object,
which shares unchanged parts with the old object. Next: program/mutate/json6902.
Source: as values/patches/json_patch; a test verifies that all results are equal.

PERF: a path is split once, and a container is copied once for all operations.
values/patches/json_patch handles everything else: other operations, missing parents,
and indexes that do not exist.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same
from kyverno_mp.values.patches.json_patch import OPERATION_STEPS, Operation, check_depth
from kyverno_mp.values.patches.json_pointer import decoded, number_of, tokens_of
from kyverno_mp.values.spending import (
    COPIED_PER_STEP,
    ENTRY_BYTES,
    FREE,
    POINTER_BYTES,
    Spender,
)

_OPERATIONS_MAX: Final = 16
_TOKENS_MAX: Final = 16
_LONG: Final = 64
_END: Final = "-"
_NO_INDEX: Final = -1
_KIND: Final = "kind"

PathStep = tuple[str, int]
"""A key, and the index that it denotes in a list, or _NO_INDEX."""


class Addition(NamedTuple):
    """One operation: the containers on its path, its last token, and its value."""

    parents: tuple[PathStep, ...]
    key: str
    position: int
    value: Json


class Additions(NamedTuple):
    """The operations of one patch; ``steps``: the cost of applying them."""

    all: tuple[Addition, ...]
    steps: int


def link_additions(operations: Sequence[Operation]) -> Additions | None:
    """Link checked operations; return None if json_patch must apply them.

    Operations that change the object's kind are not linked.
    """
    if not 0 < len(operations) <= _OPERATIONS_MAX:
        return None
    linked = [_linked(operation) for operation in operations]
    additions = tuple([each for each in linked if each is not None])
    if len(additions) < len(linked):
        return None
    return Additions(additions, OPERATION_STEPS * len(additions))


def _linked(operation: Operation) -> Addition | None:
    if not operation or operation["op"] != "add":
        return None
    path, value = operation["path"], operation["value"]
    try:
        tokens = tokens_of(path) or []
        check_depth(value, len(tokens), FREE)
    except ExpressionFailed:
        return None
    if not 0 < len(tokens) <= _TOKENS_MAX or tokens == [_KIND]:
        return None
    *parents, (key, index) = map(_step_of, tokens)
    return Addition(tuple(parents), key, index, value)


def _step_of(token: str) -> PathStep:
    number = number_of(token)
    return decoded(token), _NO_INDEX if number is None or number < 0 else number


def add_all(document: Json, patches: Sequence[Additions], spend: Spender) -> Json:
    """Apply patches in order; return the same object when nothing changes.

    Return None if json_patch must apply them. Raises: BudgetExceeded.
    """
    if type(document) is not dict:
        return None
    if len(document) > _LONG:
        _charge_copy(document, spend)
    root = document.copy()
    # By id(): the containers that only this document contains, so they can be changed.
    copies: dict[int, Json] = {}
    grows = bool(patches)
    for additions, steps in patches:
        spend.charge(steps)
        for parents, key, position, value in additions:
            holder = _own_holder(root, parents, copies, spend)
            if type(holder) is dict:
                holder[key] = value
                grows = False
            elif not _put(holder, key, position, value):
                return None
    # A list that only grows always differs from the original.
    return document if not grows and same(root, document) else root


def _charge_copy(holder: Json, spend: Spender) -> None:
    spend.charge(len(holder) // COPIED_PER_STEP)
    each = ENTRY_BYTES if type(holder) is dict else POINTER_BYTES
    spend.charge_bytes(each * len(holder))


def _own_holder(
    holder: Json, parents: Sequence[PathStep], copies: dict[int, Json], spend: Spender
) -> Json:
    """Follow a path, and copy containers on it that have not been copied yet."""
    for key, index in parents:
        if type(holder) is dict:
            below = holder.get(key)
        elif type(holder) is list and 0 <= index < len(holder):
            below = holder[index]
        else:
            return None
        copied = copies.get(id(below))
        if copied is None:
            if type(below) is not dict and type(below) is not list:
                return None
            if len(below) > _LONG:
                _charge_copy(below, spend)
            copied = below.copy()
            copies[id(copied)] = copied
            holder[key if type(holder) is dict else index] = copied
        holder = copied
    return holder


def _put(holder: Json, key: str, index: int, value: Json) -> bool:
    """Add to a list; return False if that is not possible."""
    if type(holder) is not list:
        return False
    if key == _END:
        holder.append(value)
        return True
    # An insertion moves the following elements, so long lists are excluded.
    if index == _NO_INDEX or index > len(holder) or len(holder) > _LONG:
        return False
    holder.insert(index, value)
    return True
