"""Load the policies of ``json scan``: their files, schema and labels.

Room: cli. Takes: paths and label selectors. Gives: documents that fit the schema.
Next: scan.py. May touch: files named by the user.
Source: docs/behaviour/cli 19 (json scan); kyverno-json v1alpha1 ValidatingPolicy.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.policies import sources
from kyverno_mp.policy.reading.load import load
from kyverno_mp.policy.reading.shape import TYPE_NAMES
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import OF_TYPE
from kyverno_mp.values.kubernetes.selector import LabelTest, compile_selector, labels_of

_API: Final = "json.kyverno.io/v1alpha1"
_KIND: Final = OF_TYPE["validate"].name
_NAME_MAX: Final = 63
_Shape = type | dict[str, "_Shape"] | list["_Shape"]
"""Allowed data: a type (``object``: any), the fields of a map (``name!``: required), or
a list of one shape. A null counts as absent, as in the API server."""

_TREES: Final[_Shape] = {"any": [dict], "all": [dict]}
_CHECK: Final[_Shape] = {"check!": dict, "message": str}
_RULE: Final[_Shape] = {
    "name!": str,
    "context": [{"name!": str, "variable": object}],
    "match": _TREES,
    "exclude": _TREES,
    "identifier": str,
    "feedback": [{"name!": str, "value!": str}],
    "assert!": {"any": [_CHECK], "all": [_CHECK]},
}
_POLICY: Final[dict[str, _Shape]] = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "spec!": {"rules!": [_RULE]},
}
_COMMA = re.compile(r",(?![^(]*\))")  # not inside a list of values
_TERM = re.compile(r"!?\s*[\w./-]+\s*(?:!?==?\s*[\w.-]*|)")
_LISTED = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")


def policies_of(
    paths: Sequence[str], selectors: Sequence[str]
) -> list[dict[str, Json]]:
    """Return the selected policies. Raises: CommandFailed for any other document."""
    policies = []
    keeps = _selector(selectors)
    for path in paths:
        for content, file in sources(path):
            for document in load(content, file=file):
                raw = _checked(document.raw, file)
                if keeps(labels_of(raw["metadata"].get("labels"))):
                    policies.append(raw)
    return policies


def _checked(raw: Json, file: str) -> dict[str, Json]:
    if (
        not isinstance(raw, dict)
        or raw.get("apiVersion") != _API
        or raw.get("kind") != _KIND
    ):
        raise CommandFailed(f"{file}: not a {_API} {_KIND}")
    try:
        fitted = _fitted(raw, _POLICY, "")
        _check_names(fitted["spec"]["rules"])
    except _Misfit as error:
        name = (raw.get("metadata") or {}).get("name", "")
        message = f'{_KIND}.json.kyverno.io "{name}" is invalid: {error}'
        raise CommandFailed(f"{file}: {message}") from error
    # GO: the values of checks and variables are decoded from JSON, to float64.
    encoded = json.dumps({"metadata": {}, **fitted})
    floats: dict[str, Json] = json.loads(encoded, parse_int=float)
    return floats


def _check_names(rules: list[dict[str, Json]]) -> None:
    for index, rule in enumerate(rules):
        if len(rule["name"]) > _NAME_MAX:
            reason = f"Too long: may not be more than {_NAME_MAX} bytes"
            raise _Misfit(f"spec.rules[{index}].name: {reason}")


class _Misfit(Exception):
    """A document that does not fit; the text names the field."""


def _fitted(value: Json, shape: _Shape, path: str) -> Json:
    """Return the data without null fields. Raises: _Misfit for the first problem."""
    kind = shape if isinstance(shape, type) else type(shape)
    fits: bool = isinstance(value, kind)
    if not fits:
        word = quote(TYPE_NAMES[type(value)])
        reason = f"{path} in body must be of type {TYPE_NAMES[kind]}: {word}"
        raise _Misfit(f"{path}: Invalid value: {word}: {reason}")
    if isinstance(shape, list):
        return [_fitted(v, shape[0], f"{path}[{i}]") for i, v in enumerate(value)]
    if isinstance(shape, dict):
        return _fields(value, shape, path)
    return value


def _fields(
    value: dict[str, Json], shape: dict[str, _Shape], path: str
) -> dict[str, Json]:
    dot = f"{path}." if path else ""
    shapes = {name.removesuffix("!"): inner for name, inner in shape.items()}
    for name in value:
        if name not in shapes:
            reason = "Invalid value: value provided for unknown field"
            raise _Misfit(f"{dot}{name}: {reason}")
    for name in shape:
        required = name.removesuffix("!")
        if required != name and value.get(required) is None:
            raise _Misfit(f"{dot}{required}: Required value")
    return {
        name: _fitted(inner, shapes[name], f"{dot}{name}")
        for name, inner in value.items()
        if inner is not None
    }


def _selector(selectors: Sequence[str]) -> LabelTest:
    """Parse selectors in the syntax of ``kubectl -l``."""
    labels: list[tuple[str, str]] = []
    terms: list[tuple[str, str, tuple[str, ...]]] = []
    for part in (p.strip() for p in _COMMA.split(",".join(selectors))):
        key, unequal, value = part.partition("!=")
        listed = _LISTED.fullmatch(part)
        if part and listed is None and _TERM.fullmatch(part) is None:
            raise CommandFailed(f"unable to parse requirement: {part}")
        if listed is not None:
            values = tuple(value.strip() for value in listed[3].split(","))
            operator = "In" if listed[2] == "in" else "NotIn"
            terms.append((listed[1], operator, values))
        elif unequal:
            terms.append((key.strip(), "NotIn", (value.strip(),)))
        elif "=" in part:
            key, _, value = part.replace("==", "=").partition("=")
            labels.append((key.strip(), value.strip()))
        elif part.startswith("!"):
            terms.append((part[1:], "DoesNotExist", ()))
        elif part:
            terms.append((part, "Exists", ()))
    return compile_selector(labels, terms)
