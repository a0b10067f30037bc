"""Resolve ``$( )`` references, which point to other leaves of the same document.

Room: expr. Takes: a JSON document. Gives: the document without references.
Next: expr/template/document. Runs at compile time, because references need only the
document.
Source: docs/behaviour/engine 3.2.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import REFERENCES_PRODUCT_MAX, SUBSTITUTION_DEPTH_MAX
from kyverno_mp.values.go.gotext import float_f, sprint
from kyverno_mp.values.jsonvalue import Json

_REFERENCE: Final = re.compile(r"\A\$\(.[^ ]*\)|[^\\]\$\(.[^ ]*\)")
_ESCAPED: Final = re.compile(r"\\\$\(.[^ )]*\)")
_ANCHOR: Final = re.compile(r"([+<=X^])?\((.+)\)\Z")
_OPERATORS: Final = (">=", "<=", ">", "<", "!")
_SEPARATOR: Final = "\0"
"""Between strings that are searched at once; it begins and ends nothing."""


_VALUE_STEPS: Final = 1
"""The steps for scanning one value for references and variables, and for building its
template."""
_CHARACTERS_A_STEP: Final = 64


class ReferenceFailed(Exception):
    """A reference cannot be resolved; the text is upstream's."""


def resolve_references(document: Json) -> Json:
    """Return the document with every reference replaced.

    Raises: ReferenceFailed; ExpressionInvalid if it is nested too deeply.
    """
    if type(document) is str and "$(" not in document:
        # PERF: most documents of a policy are one string without a reference.
        spend(_VALUE_STEPS + len(document) // _CHARACTERS_A_STEP)
        return document
    count = references = 0
    for depth, strings in enumerate(texts_by_level(document)):
        if depth > SUBSTITUTION_DEPTH_MAX:
            raise ExpressionInvalid("template.depth", "document is nested too deeply")
        count += len(strings)
        references += _SEPARATOR.join(strings).count("$(")
    if not references:
        return document
    if references * count > REFERENCES_PRODUCT_MAX:
        raise ExpressionInvalid(
            "template.references", "document has too many references"
        )
    return _resolve(document, "", document)


def child_path(path: str, key: str) -> str:
    """Return the path of the value under ``key``, with escaped slashes in the key."""
    return f"{path}/" + key.replace("/", "\\/")


def texts_by_level(document: Json) -> Iterator[list[str]]:
    """Yield the keys and the string leaves of each level of a document."""
    level = [document]
    while level:
        steps = _VALUE_STEPS * len(level)
        strings: list[str] = []
        below: list[Json] = []
        for value in level:
            if type(value) is str:
                steps += len(value) // _CHARACTERS_A_STEP
                strings.append(value)
            elif type(value) is dict:
                strings += value
                below += value.values()
            elif type(value) is list:
                below += value
        spend(steps)
        yield strings
        level = below


def leaves_with_variables(document: Json) -> Iterator[tuple[str, str]]:
    """Yield every string and key with a variable, and its JSON pointer."""
    # PERF: most rules have no variable, and pointers cost more than this search.
    levels = texts_by_level(document)
    if not any("{{" in _SEPARATOR.join(strings) for strings in levels):
        return
    stack: list[tuple[Json, str]] = [(document, "")]
    while stack:
        node, pointer = stack.pop()
        if type(node) is str:
            yield node, pointer
            continue
        spend(_VALUE_STEPS * (1 + len(node)))
        if type(node) is dict:
            yield from [(key, pointer) for key in node if "{{" in key]
        items = node.items() if type(node) is dict else enumerate(node)
        below = [
            (item, f"{pointer}/{name}")
            for name, item in items
            if (type(item) is str and "{{" in item) or type(item) in (dict, list)
        ]
        stack += reversed(below)


def _resolve(value: Json, path: str, document: Json) -> Json:
    if type(value) is str:
        return _resolve_text(value, path, document)
    if type(value) is list:
        return [_resolve(item, f"{path}/{i}", document) for i, item in enumerate(value)]
    if type(value) is dict:
        return {
            _resolve_text(key, path, document): _resolve(
                item, child_path(path, key), document
            )
            for key, item in value.items()
        }
    return value


def _resolve_text(string: str, path: str, document: Json) -> str:
    result = string
    for old in _REFERENCE.findall(string):
        prefix = "" if old.startswith("$(") else old[0]
        reference = old[len(prefix) :]
        value = _value_of(reference, path, document)
        if value is None:
            raise ReferenceFailed(
                f"got nil resolved variable {reference} at path {path}: <nil>"
            )
        if type(value) is not str:
            raise ReferenceFailed(
                f"NotResolvedReferenceErr,reference {reference} not resolved"
                f" at path {path}"
            )
        result = result.replace(old, prefix + value, 1)
    for old in _ESCAPED.findall(result):
        result = result.replace(old, old[1:])
    return result


def _value_of(reference: str, path: str, document: Json) -> Json:
    target = reference.strip("$()")
    operator = next((o for o in _OPERATORS if target.startswith(o)), "")
    target = target[len(operator) :]
    if not target:
        raise ReferenceFailed(
            f"failed to resolve {reference} at path {path}:"
            " expected path, found empty reference"
        )
    if not target.startswith("/"):
        target = _joined(path, target)
    value = None
    for leaf_path, leaf in _leaves(document, ""):
        if _without_anchors(leaf_path) == target:
            value = leaf
    if not operator:
        return value
    if type(value) is str:
        return operator + value
    if type(value) is int:
        return f"{operator}{value}"
    if type(value) is float:
        return operator + float_f(value)
    raise ReferenceFailed(
        f"failed to resolve {reference} at path {path}: incorrect expression:"
        f" operator {operator} does not match with value {sprint(value)}"
    )


def _leaves(value: Json, path: str) -> Iterator[tuple[str, Json]]:
    """Yield leaves with their paths; a key is a leaf at the path of its map."""
    if type(value) is dict:
        for key, item in value.items():
            yield path, key
            yield from _leaves(item, child_path(path, key))
    elif type(value) is list:
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}/{i}")
    else:
        yield path, value


def _without_anchors(path: str) -> str:
    parts = []
    for part in path.split("/"):
        anchor = _ANCHOR.match(part.strip())
        parts.append(anchor[2] if anchor else part)
    return "/".join(parts)


def _joined(path: str, reference: str) -> str:
    joined = posixpath.normpath(f"{path}/{reference}")
    return "/" + joined.lstrip("/") if path else joined.lstrip("/")
