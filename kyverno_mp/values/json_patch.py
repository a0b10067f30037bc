"""Apply RFC 6902 patches with the options that Kyverno sets.

Room: values. Takes: operations, an object. Gives: the patched object, which shares
unchanged parts with the old one. Next: program/mutate.
May touch: nothing outside its arguments.
Source: RFC 6902; spec/engine.md 7.4; the texts are those of evanphx/json-patch v5.9.

Options: negative indices count from the end, removing what is missing is no error, and
adding creates missing parents.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.limits import JSON_DEPTH_MAX, PATCH_COPY_NODES_MAX, PATCH_PADDING_MAX
from kyverno_mp.values.gotext import json_text
from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json

_MISSING: Final = "missing value"
_INVALID_INDEX: Final = "invalid index referenced"
_FAILED_TEST: Final = "failed: test failed"
_ABSENT: Final = object()
_INDEX: Final = re.compile(r"[+-]?[0-9]+\Z")
_INT64_DIGITS_MAX: Final = 18

Operation = dict[str, Json]


def check_operations(raw: Json) -> list[Operation]:
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
    document: Json, operations: Sequence[Operation], *, strict: bool = False
) -> Json:
    """Apply the operations in order; ``document`` itself stays as it is.

    ``strict``: without Kyverno's options, as the API server applies patches.

    Raises: ExpressionFailed at the first operation that does not apply.
    """
    apply = _APPLY | _STRICT if strict else _APPLY
    for operation in operations:
        document = apply[operation["op"]](document, operation)
    return document


def is_failed_test(error: ExpressionFailed) -> bool:
    """Tell whether it was a ``test`` that did not hold."""
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
                f"failed to decode 'value': operation, missing value field: {_MISSING}"
            )
    elif kind in ("move", "copy"):
        if type(operation.get("from")) is not str:
            return "failed to decode 'from': operation, missing from field: " + _MISSING
    elif kind not in ("remove", "test"):
        return "unsupported operation"
    if type(operation.get("path")) is not str:
        return f"failed to decode 'path': operation missing path field: {_MISSING}"
    return ""


def _failed(text: str) -> ExpressionFailed:
    return ExpressionFailed("json_patch.apply", text)


# Paths.


def _tokens(path: str) -> list[str] | None:
    """Split a pointer; None for one that points nowhere below the document.

    KYVERNO: what stands before the first slash is not looked at.
    """
    parts = path.split("/")[1:]
    if len(parts) > JSON_DEPTH_MAX:
        raise _failed(f"path has more than {JSON_DEPTH_MAX} parts")
    return parts or None


def _decoded(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~") if "~" in token else token


def _number(token: str) -> int | None:
    if _INDEX.match(token) and len(token) <= _INT64_DIGITS_MAX:
        return int(token)
    return None


def _bad_index(number: int) -> str:
    return f"Unable to access invalid index: {number}: {_INVALID_INDEX}"


def _not_a_number(token: str) -> str:
    return f'strconv.Atoi: parsing "{token}": invalid syntax'


def _get(container: Json, token: str) -> tuple[Json, str]:
    """Return what a container holds and "", or nothing and the reason."""
    if type(container) is dict:
        if token in container:
            return container[token], ""
        return _ABSENT, f"unable to get nonexistent key: {token}: {_MISSING}"
    number = _number(token)
    if number is None:
        return _ABSENT, _not_a_number(token)
    size = len(container)
    if not -size <= number < size:
        return _ABSENT, _bad_index(number)
    return container[number], ""


def _container(document: Json, tokens: Sequence[str]) -> Json:
    """Return the map or list that holds the last token, None when there is none."""
    for token in tokens[:-1]:
        if type(document) is dict:
            document = document.get(_decoded(token))
        elif type(document) is list:
            document, problem = _get(document, _decoded(token))
            if problem:
                return None
        else:
            return None
    is_container = type(document) is dict or type(document) is list
    return document if is_container else None


_Change = Callable[[Json], Json]


def _changed(document: Json, tokens: Sequence[str], change: _Change) -> Json:
    """Copy the containers on the way down and change the innermost."""
    if len(tokens) == 1:
        return change(document.copy())
    key = _decoded(tokens[0])
    place: str | int = key if type(document) is dict else int(key)
    out = document.copy()
    out[place] = _changed(document[place], tokens[1:], change)
    return out


def _check_depth(value: Json, depth: int) -> None:
    """Refuse a value that would nest the document beyond JSON_DEPTH_MAX.

    Copies of a part into itself could otherwise nest it without end.
    """
    level = [value]
    while level:
        level = [
            child
            for parent in level
            if type(parent) is dict or type(parent) is list
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        depth += 1
        if depth > JSON_DEPTH_MAX:
            raise _failed(f"the object would nest deeper than {JSON_DEPTH_MAX}")


def _check_count(value: Json) -> None:
    stack, count = [value], 0
    while stack:
        holder = stack.pop()
        if type(holder) is dict or type(holder) is list:
            count += len(holder)
            if count > PATCH_COPY_NODES_MAX:
                raise _failed(f"a copy has more than {PATCH_COPY_NODES_MAX} values")
            stack.extend(holder.values() if type(holder) is dict else holder)


# Operations.


def _insert(key: str, value: Json) -> _Change:
    """Make the change that adds to a map or a list."""

    def insert(container: Json) -> Json:
        if type(container) is dict:
            container[key] = value
            return container
        if key == "-":
            container.append(value)
            return container
        number = _number(key)
        if number is None:
            raise _failed(
                f"value was not a proper array index: '{key}': {_not_a_number(key)}"
            )
        size = len(container) + 1
        if not -size <= number < size:
            raise _failed(_bad_index(number))
        container.insert(number if number >= 0 else number + size, value)
        return container

    return insert


def _add(document: Json, operation: Operation, *, grows: bool = True) -> Json:
    path, value = operation["path"], operation["value"]
    tokens = _tokens(path)
    if path == "":
        if type(value) is not dict and type(value) is not list:
            raise _failed("json: cannot unmarshal the value into an object")
        return value
    if tokens is None:
        raise _failed(
            f'add operation does not apply: doc is missing path: "{path}": {_MISSING}'
        )
    if grows and not _has_parents(document, tokens):
        document = _with_parents(document, tokens)
    return _add_at(
        document,
        tokens,
        value,
        f'add operation does not apply: doc is missing path: "{path}": {_MISSING}',
        f"error in add for path: '{path}': ",
    )


def _has_parents(document: Json, tokens: Sequence[str]) -> bool:
    """Tell whether nothing is missing on the way to the last token.

    PERF: mostly so; ``_with_parents`` begins at the top for each token.
    """
    for token in tokens[:-1]:
        if type(document) is dict:
            document = document.get(_decoded(token))
        elif type(document) is list:
            document = _get(document, _decoded(token))[0]
        else:
            return False
    return type(document) is dict or type(document) is list


def _add_at(
    document: Json, tokens: Sequence[str], value: Json, missing: str, prefix: str
) -> Json:
    if not tokens or _container(document, tokens) is None:
        raise _failed(missing)
    _check_depth(value, len(tokens))
    try:
        return _changed(document, tokens, _insert(_decoded(tokens[-1]), value))
    except ExpressionFailed as error:
        raise _failed(prefix + error.message) from error


def _with_parents(document: Json, tokens: Sequence[str]) -> Json:
    """Create the containers that are missing on the way to the last token.

    KYVERNO: a new parent's name is not decoded: ``a~1b`` is made under that very name,
    and the path then leads nowhere.
    """
    for depth in range(len(tokens) - 1):
        container = _container(document, tokens[: depth + 1])
        if container is None:
            break
        token, following = tokens[depth], tokens[depth + 1]
        target, _ = _get(container, _decoded(token))
        if type(target) is dict or type(target) is list:
            continue
        if target is not _ABSENT and target is not None:
            raise _failed("invalid state detected")
        made = _new_parent(following)
        padding = _padding(container, token)
        document = _changed(
            document,
            tokens[: depth + 1],
            lambda copied, t=token, m=made, p=padding: _put(copied, t, m, p),  # type: ignore[misc]  # the defaults bind the loop's values
        )
    return document


def _padding(container: Json, token: str) -> int:
    """Return how many nulls a list needs before the index exists."""
    number = _number(token)
    if type(container) is not list or number is None:
        return 0
    return _bounded(max(0, number - len(container)))


def _bounded(count: int) -> int:
    if count > PATCH_PADDING_MAX:
        raise _failed(f"an index is more than {PATCH_PADDING_MAX} beyond its list")
    return count


def _new_parent(following: str) -> Json:
    if following == "-":
        return []
    number = _number(following)
    if number is None:
        return {}
    if number < -1:
        raise _failed(
            f"Unable to ensure path for negative index other than -1: {number}:"
            f" {_INVALID_INDEX}"
        )
    return [None] * _bounded(max(0, number))


def _put(container: Json, token: str, made: Json, padding: int) -> Json:
    if type(container) is list:
        container.extend([None] * padding)
    try:
        return _insert(token, made)(container)
    except ExpressionFailed:
        # KYVERNO: what cannot be made is found missing later.
        return container


def _remove(document: Json, operation: Operation) -> Json:
    path = operation["path"]
    tokens = _tokens(path)
    if tokens is None or _container(document, tokens) is None:
        return document
    try:
        return _removed(document, tokens)
    except ExpressionFailed as error:
        raise _failed(f"error in remove for path: '{path}': {error.message}") from error


def _remove_present(document: Json, operation: Operation) -> Json:
    path = operation["path"]
    tokens = _tokens(path)
    container = None if tokens is None else _container(document, tokens)
    if tokens is None or container is None:
        raise _failed(
            f'remove operation does not apply: doc is missing path: "{path}":'
            f" {_MISSING}"
        )
    problem = _get(container, _decoded(tokens[-1]))[1]
    if problem:
        raise _failed(f"error in remove for path: '{path}': {problem}")
    return _remove(document, operation)


def _removed(document: Json, tokens: Sequence[str]) -> Json:
    container, key = _container(document, tokens), _decoded(tokens[-1])
    if type(container) is list and _number(key) is None:
        raise _failed(_not_a_number(key))
    if _get(container, key)[1]:
        return document

    def drop(copied: Json) -> Json:
        del copied[key if type(copied) is dict else int(key)]
        return copied

    return _changed(document, tokens, drop)


def _replace(document: Json, operation: Operation) -> Json:
    path, value = operation["path"], operation["value"]
    if path == "":
        if type(value) is not dict and type(value) is not list:
            raise _failed("replace operation value must be object or array: %!w(<nil>)")
        return value
    tokens = _tokens(path)
    container = None if tokens is None else _container(document, tokens)
    if tokens is None or container is None:
        raise _failed(
            f"replace operation does not apply: doc is missing path: {path}: {_MISSING}"
        )
    key = _decoded(tokens[-1])
    if _get(container, key)[1]:
        raise _failed(
            f"replace operation does not apply: doc is missing key: {path}: {_MISSING}"
        )

    _check_depth(value, len(tokens))

    def put(copied: Json) -> Json:
        copied[key if type(copied) is dict else int(key)] = value
        return copied

    return _changed(document, tokens, put)


def _move(document: Json, operation: Operation) -> Json:
    source, path = operation["from"], operation["path"]
    if source == "":
        raise _failed(
            "unable to move entire document to another path: invalid state detected"
        )
    tokens = _tokens(source)
    container = None if tokens is None else _container(document, tokens)
    if tokens is None or container is None:
        raise _failed(
            f"move operation does not apply: doc is missing from path: {source}:"
            f" {_MISSING}"
        )
    key = _decoded(tokens[-1])
    value, problem = _get(container, key)
    if problem:
        raise _failed(f"error in move for path: '{key}': {problem}")
    document = _removed(document, tokens)
    return _add_at(
        document,
        _tokens(path) or [],
        value,
        f"move operation does not apply: doc is missing destination path: {path}:"
        f" {_MISSING}",
        f"error in move for path: '{path}': ",
    )


def _copy(document: Json, operation: Operation) -> Json:
    source, path = operation["from"], operation["path"]
    tokens = _tokens(source)
    container = None if tokens is None else _container(document, tokens)
    if tokens is None or container is None:
        raise _failed(
            f'copy operation does not apply: doc is missing from path: "{source}":'
            f" {_MISSING}"
        )
    value, problem = _get(container, _decoded(tokens[-1]))
    if problem:
        raise _failed(f"error in copy for from: '{source}': {problem}")
    _check_count(value)
    return _add_at(
        document,
        _tokens(path) or [],
        value,
        f"copy operation does not apply: doc is missing destination path: {path}:"
        f" {_MISSING}",
        "error while adding value during copy: ",
    )


def _test(document: Json, operation: Operation) -> Json:
    path, wanted = operation["path"], operation.get("value")
    if path == "":
        found: Json = document
    else:
        tokens = _tokens(path)
        container = None if tokens is None else _container(document, tokens)
        if tokens is None or container is None:
            raise _failed(
                f"test operation does not apply: is missing path: {path}: {_MISSING}"
            )
        found, problem = _get(container, _decoded(tokens[-1]))
        if problem and not problem.endswith(_MISSING):
            raise _failed(f"error in test for path: '{path}': {problem}")
        if found is _ABSENT:
            # KYVERNO: a missing key passes a test for null.
            found = None
    if not same(found, wanted):
        raise _failed(f"testing value {path} {_FAILED_TEST}")
    return document


_APPLY: Final[dict[str, Callable[[Json, Operation], Json]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
_STRICT: Final[dict[str, Callable[[Json, Operation], Json]]] = {
    "add": partial(_add, grows=False),
    "remove": _remove_present,
}
