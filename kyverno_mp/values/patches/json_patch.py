"""Apply RFC 6902 patches with the options that Kyverno sets.

Room: values. Takes: operations, an object. Gives: the patched object, which shares
unchanged parts with the old object. Next: program/mutate.
Source: RFC 6902; docs/behaviour/engine 7.4; messages as in evanphx/json-patch v5.9.

Options: negative indices count from the end, removing a missing value is not an error,
and adding creates missing parents.

Over 400 lines: six operations share the code for following paths, charging and
reporting errors; paths themselves are in values/patches/json_pointer.py.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import JSON_DEPTH_MAX, PATCH_COPY_NODES_MAX, PATCH_PADDING_MAX
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same_paid
from kyverno_mp.values.patches.json_pointer import (
    ABSENT,
    INVALID_INDEX,
    MISSING,
    Change,
    Way,
    bad_index,
    changed,
    container_of,
    decoded,
    entry_at,
    failed,
    not_a_number,
    number_of,
    rebuilt,
    tokens_of,
    way_to,
)
from kyverno_mp.values.spending import FREE, POINTER_BYTES, Spender

_CHECK_STEPS: Final = 4
OPERATION_STEPS: Final = 24
_TOKEN_STEPS: Final = 4
_OPERATIONS_PAID: Final = 16
_PATH_PAID: Final = 128
"""Following a path up to this length is covered by OPERATION_STEPS."""
_MADE_BYTES: Final = 300
_SHORT: Final = 16
_HOLDERS: Final = frozenset({dict, list})
_FAILED_TEST: Final = "failed: test failed"

Operation = dict[str, Json]


def check_operations(raw: Json, spend: Spender = FREE) -> list[Operation]:
    """Return the operations of a decoded patch.

    Raises: ExpressionFailed ``failed to decode patches: ...``.
    """
    if raw is None:
        return []
    if type(raw) is not list:
        raise _undecodable(
            f"json: cannot unmarshal {_json_type(raw)} into Go value of type"
            " jsonpatch.Patch"
        )
    spend.charge(_CHECK_STEPS * len(raw))
    for operation in raw:
        if operation is not None and type(operation) is not dict:
            raise _undecodable(
                f"json: cannot unmarshal {_json_type(operation)} into Go value of type"
                " jsonpatch.Operation"
            )
        problem = _problem(operation or {})
        if problem:
            raise _undecodable(f"invalid operation {json_text(operation)}: {problem}")
    return raw


def apply_patch(
    document: Json,
    operations: Sequence[Operation],
    spend: Spender = FREE,
    *,
    strict: bool = False,
) -> Json:
    """Apply the operations in order; ``document`` itself stays unchanged.

    ``spend``: charged for all reading and copying. ``strict``: patches are applied
    without Kyverno's options, as the API server applies them.

    Raises: ExpressionFailed at the first operation that does not apply.
    """
    apply = _APPLY | _STRICT if strict else _APPLY
    is_long = len(operations) > _OPERATIONS_PAID
    if not is_long:
        # PERF: a few operations are charged at once.
        spend.charge(OPERATION_STEPS * len(operations))
    for operation in operations:
        path = operation["path"]
        if is_long or len(path) > _PATH_PAID:
            steps = path.count("/") + (len(path) >> 6)
            spend.charge(OPERATION_STEPS + _TOKEN_STEPS * steps)
        document = apply[operation["op"]](document, operation, spend)
    return document


def is_failed_test(error: ExpressionFailed) -> bool:
    """Return whether the error comes from a failed ``test`` operation."""
    return error.message.endswith(_FAILED_TEST)


def _undecodable(reason: str) -> ExpressionFailed:
    return ExpressionFailed("json_patch.decode", f"failed to decode patches: {reason}")


def _json_type(value: Json) -> str:
    if type(value) is dict:
        return "object"
    if type(value) is list:
        return "array"
    if type(value) is str:
        return "string"
    return "bool" if type(value) is bool else "number"


def _problem(operation: Operation) -> str:
    kind = operation.get("op")
    if kind in ("add", "replace"):
        if "value" not in operation:
            return (
                f"failed to decode 'value': operation, missing value field: {MISSING}"
            )
    elif kind in ("move", "copy"):
        if type(operation.get("from")) is not str:
            return "failed to decode 'from': operation, missing from field: " + MISSING
    elif kind not in ("remove", "test"):
        return "unsupported operation"
    if type(operation.get("path")) is not str:
        return f"failed to decode 'path': operation missing path field: {MISSING}"
    return ""


def check_depth(value: Json, depth: int, spend: Spender) -> None:
    """Reject a value that would nest the document beyond JSON_DEPTH_MAX.

    Otherwise, copying a part into itself could nest the document without limit.
    """
    if depth < JSON_DEPTH_MAX - 1:
        # PERF: nearly every value is a scalar or a short map of scalars.
        if type(value) not in _HOLDERS:
            return
        if len(value) <= _SHORT:
            for child in value.values() if type(value) is dict else value:
                if type(child) in _HOLDERS:
                    break
            else:
                return
    level = [value]
    while level:
        spend.charge(sum([len(parent) for parent in level if type(parent) in _HOLDERS]))
        level = [
            child
            for parent in level
            if type(parent) is dict or type(parent) is list
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        depth += 1
        if depth > JSON_DEPTH_MAX:
            raise failed(f"the object would nest deeper than {JSON_DEPTH_MAX}")


def _check_count(value: Json, spend: Spender) -> None:
    stack, count = [value], 0
    while stack:
        holder = stack.pop()
        if type(holder) is dict or type(holder) is list:
            count += len(holder)
            spend.charge(1 + (len(holder) >> 1))
            if count > PATCH_COPY_NODES_MAX:
                raise failed(f"a copy has more than {PATCH_COPY_NODES_MAX} values")
            stack.extend(holder.values() if type(holder) is dict else holder)


# Operations.


def _insert(key: str, value: Json) -> Change:
    """Return the change that adds a value to a map or a list."""

    def insert(container: Json) -> Json:
        if type(container) is dict:
            container[key] = value
            return container
        if key == "-":
            container.append(value)
            return container
        number = number_of(key)
        if number is None:
            raise failed(
                f"value was not a proper array index: '{key}': {not_a_number(key)}"
            )
        size = len(container) + 1
        if not -size <= number < size:
            raise failed(bad_index(number))
        container.insert(number if number >= 0 else number + size, value)
        return container

    return insert


def _add(
    document: Json, operation: Operation, spend: Spender, *, grows: bool = True
) -> Json:
    path, value = operation["path"], operation["value"]
    tokens = tokens_of(path)
    if path == "":
        if type(value) is not dict and type(value) is not list:
            raise failed("json: cannot unmarshal the value into an object")
        return value
    if tokens is None:
        raise failed(
            f'add operation does not apply: doc is missing path: "{path}": {MISSING}'
        )
    way = way_to(document, tokens)
    if way is None and grows:
        way = way_to(_with_parents(document, tokens, spend), tokens)
    return _add_at(
        way,
        tokens,
        value,
        f'add operation does not apply: doc is missing path: "{path}": {MISSING}',
        f"error in add for path: '{path}': ",
        spend,
    )


def _add_at(
    way: Way | None,
    tokens: Sequence[str],
    value: Json,
    missing: str,
    prefix: str,
    spend: Spender,
) -> Json:
    """Add a value at the end of a path and copy the containers on it."""
    if not tokens or way is None:
        raise failed(missing)
    check_depth(value, len(tokens), spend)
    try:
        return rebuilt(way, _insert(decoded(tokens[-1]), value), spend)
    except ExpressionFailed as error:
        raise failed(prefix + error.message) from error


def _with_parents(document: Json, tokens: Sequence[str], spend: Spender) -> Json:
    """Create the missing containers on the path to the last token.

    KYVERNO: the name of a new parent is not decoded: ``a~1b`` is created under exactly
    this name, so the path still does not resolve.
    """
    for depth in range(len(tokens) - 1):
        container = container_of(document, tokens[: depth + 1])
        if container is None:
            break
        token, following = tokens[depth], tokens[depth + 1]
        target, _ = entry_at(container, decoded(token))
        if type(target) is dict or type(target) is list:
            continue
        if target is not ABSENT and target is not None:
            raise failed("invalid state detected")
        parent = _new_parent(following)
        padding = _padding(container, token)
        # Each depth looks up the new containers again.
        spend.charge(OPERATION_STEPS + _TOKEN_STEPS * depth)
        spend.charge_bytes(_MADE_BYTES + POINTER_BYTES * (padding + len(parent)))
        document = changed(
            document,
            tokens[: depth + 1],
            lambda copied, t=token, m=parent, p=padding: _put(copied, t, m, p),  # type: ignore[misc]  # the defaults bind the loop's values
            spend,
        )
    return document


def _padding(container: Json, token: str) -> int:
    """Return the number of nulls that a list needs for the index to exist."""
    number = number_of(token)
    if type(container) is not list or number is None:
        return 0
    return _bounded(max(0, number - len(container)))


def _bounded(count: int) -> int:
    if count > PATCH_PADDING_MAX:
        raise failed(f"an index is more than {PATCH_PADDING_MAX} beyond the list's end")
    return count


def _new_parent(following: str) -> Json:
    if following == "-":
        return []
    number = number_of(following)
    if number is None:
        return {}
    if number < -1:
        raise failed(
            f"Unable to ensure path for negative index other than -1: {number}:"
            f" {INVALID_INDEX}"
        )
    return [None] * _bounded(max(0, number))


def _put(container: Json, token: str, value: Json, padding: int) -> Json:
    if type(container) is list:
        container.extend([None] * padding)
    try:
        return _insert(token, value)(container)
    except ExpressionFailed:
        # KYVERNO: if a parent cannot be created, it is reported as missing later.
        return container


def _remove(document: Json, operation: Operation, spend: Spender) -> Json:
    path = operation["path"]
    tokens = tokens_of(path)
    if tokens is None or container_of(document, tokens) is None:
        return document
    try:
        return _removed(document, tokens, spend)
    except ExpressionFailed as error:
        raise failed(f"error in remove for path: '{path}': {error.message}") from error


def _remove_present(document: Json, operation: Operation, spend: Spender) -> Json:
    path = operation["path"]
    tokens = tokens_of(path)
    container = None if tokens is None else container_of(document, tokens)
    if tokens is None or container is None:
        raise failed(
            f'remove operation does not apply: doc is missing path: "{path}": {MISSING}'
        )
    key = decoded(tokens[-1])
    problem = entry_at(container, key)[1]
    if problem and type(container) is dict:
        problem = f"Unable to remove nonexistent key: {key}: {MISSING}"
    if problem:
        raise failed(f"error in remove for path: '{path}': {problem}")
    return _remove(document, operation, spend)


def _removed(document: Json, tokens: Sequence[str], spend: Spender) -> Json:
    container, key = container_of(document, tokens), decoded(tokens[-1])
    if type(container) is list and number_of(key) is None:
        raise failed(not_a_number(key))
    if entry_at(container, key)[1]:
        return document

    def drop(copied: Json) -> Json:
        del copied[key if type(copied) is dict else int(key)]
        return copied

    return changed(document, tokens, drop, spend)


def _replace(
    document: Json, operation: Operation, spend: Spender, *, sets: bool = False
) -> Json:
    """Replace a value; ``sets``: add it if a map does not contain the key."""
    path, value = operation["path"], operation["value"]
    if path == "":
        if type(value) is not dict and type(value) is not list:
            raise failed("replace operation value must be object or array: %!w(<nil>)")
        return value
    tokens = tokens_of(path)
    container = None if tokens is None else container_of(document, tokens)
    if tokens is None or container is None:
        raise failed(
            f"replace operation does not apply: doc is missing path: {path}: {MISSING}"
        )
    key = decoded(tokens[-1])
    is_there = not entry_at(container, key)[1]
    if not is_there and not (sets and type(container) is dict):
        raise failed(
            f"replace operation does not apply: doc is missing key: {path}: {MISSING}"
        )

    check_depth(value, len(tokens), spend)

    def put(copied: Json) -> Json:
        copied[key if type(copied) is dict else int(key)] = value
        return copied

    return changed(document, tokens, put, spend)


def _move(document: Json, operation: Operation, spend: Spender) -> Json:
    source, path = operation["from"], operation["path"]
    if source == "":
        raise failed(
            "unable to move entire document to another path: invalid state detected"
        )
    tokens = tokens_of(source)
    container = None if tokens is None else container_of(document, tokens)
    if tokens is None or container is None:
        raise failed(
            f"move operation does not apply: doc is missing from path: {source}:"
            f" {MISSING}"
        )
    key = decoded(tokens[-1])
    value, problem = entry_at(container, key)
    if problem:
        raise failed(f"error in move for path: '{key}': {problem}")
    document = _removed(document, tokens, spend)
    # KYVERNO: engine 7.4 - a destination of "" means the object's key "".
    places = [""] if path == "" else tokens_of(path) or []
    return _add_at(
        way_to(document, places),
        places,
        value,
        f"move operation does not apply: doc is missing destination path: {path}:"
        f" {MISSING}",
        f"error in move for path: '{path}': ",
        spend,
    )


def _source_of_copy(document: Json, source: str) -> Json:
    if source == "":
        return document
    tokens = tokens_of(source)
    container = None if tokens is None else container_of(document, tokens)
    if tokens is None or container is None:
        raise failed(
            f'copy operation does not apply: doc is missing from path: "{source}":'
            f" {MISSING}"
        )
    value, problem = entry_at(container, decoded(tokens[-1]))
    if problem:
        raise failed(f"error in copy for from: '{source}': {problem}")
    return value


def _copy(document: Json, operation: Operation, spend: Spender) -> Json:
    """Copy a value. RFC 6902: the source ``""`` is the document as it is now."""
    path = operation["path"]
    value = _source_of_copy(document, operation["from"])
    _check_count(value, spend)
    # KYVERNO: engine 7.4 - a destination of "" means the object's key "".
    places = [""] if path == "" else tokens_of(path) or []
    return _add_at(
        way_to(document, places),
        places,
        value,
        f"copy operation does not apply: doc is missing destination path: {path}:"
        f" {MISSING}",
        "error while adding value during copy: ",
        spend,
    )


def _test(document: Json, operation: Operation, spend: Spender) -> Json:
    path, expected = operation["path"], operation.get("value")
    if path == "":
        actual: Json = document
    else:
        tokens = tokens_of(path)
        container = None if tokens is None else container_of(document, tokens)
        if tokens is None or container is None:
            raise failed(
                f"test operation does not apply: is missing path: {path}: {MISSING}"
            )
        actual, problem = entry_at(container, decoded(tokens[-1]))
        if problem and not problem.endswith(MISSING):
            raise failed(f"error in test for path: '{path}': {problem}")
        if actual is ABSENT:
            # KYVERNO: a missing key passes a test for null.
            actual = None
    if not same_paid(actual, expected, spend):
        raise failed(f"testing value {path} {_FAILED_TEST}")
    return document


_APPLY: Final[dict[str, Callable[[Json, Operation, Spender], Json]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _test_strictly(document: Json, operation: Operation, spend: Spender) -> Json:
    """K8S: json-patch v4 fails a test for null, even if the value is null."""
    if operation.get("value", "") is None:
        raise failed(f"testing value {operation['path']} {_FAILED_TEST}")
    return _test(document, operation, spend)


def _below_root(
    change: Callable[[Json, Operation, Spender], Json], missing: str
) -> Callable[[Json, Operation, Spender], Json]:
    """K8S: json-patch v4 replaces the whole document only by ``replace``."""

    def checked(document: Json, operation: Operation, spend: Spender) -> Json:
        if operation["path"] == "":
            raise failed(f"{operation['op']} operation does not apply: {missing}")
        return change(document, operation, spend)

    return checked


def _copy_part(document: Json, operation: Operation, spend: Spender) -> Json:
    """K8S: json-patch v4 does not find the whole document."""
    if operation["from"] == "":
        raise failed(
            f"copy operation does not apply: doc is missing from path: : {MISSING}"
        )
    return _copy(document, operation, spend)


_NO_PATH: Final = f'doc is missing path: "": {MISSING}'
_NO_DESTINATION: Final = f"doc is missing destination path: : {MISSING}"
_STRICT: Final[dict[str, Callable[[Json, Operation, Spender], Json]]] = {
    "add": _below_root(partial(_add, grows=False), _NO_PATH),
    "copy": _below_root(_copy_part, _NO_DESTINATION),
    "move": _below_root(_move, _NO_DESTINATION),
    "test": _test_strictly,
    "remove": _remove_present,
    # K8S: the API server's json-patch v4 treats every key of a map as present.
    "replace": partial(_replace, sets=True),
}
