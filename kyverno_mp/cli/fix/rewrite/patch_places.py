"""Find the places of the object that patches read and change, and their values.

Room: cli. Takes: a mutate rule. Gives: paths with the patch's values for them. Next:
inputs.py.
Source: docs/behaviour/engine 7.
"""

from collections.abc import Iterator, Mapping

import yaml

from kyverno_mp.cli.fix.rewrite.cel_places import Path, parents
from kyverno_mp.cli.fix.rewrite.query_places import (
    elements_of,
    names_in,
    places_of_conditions,
    read_in,
    walked,
)
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.values.jsonvalue import Json

_Names = Mapping[str, frozenset[Path]]
_Places = Iterator[tuple[Path, Json]]


def mutated_places(rule: Rule) -> _Places:
    """Yield (path, value) for the patches of a rule, and what it reads to generate."""
    mutate = rule.mutate
    names = names_in(rule)
    if rule.generate is not None:
        yield from read_in(rule.generate.raw(), names)
    if mutate is None:
        return
    yield from _merged(mutate.patch_strategic_merge, names)
    yield from _patched(mutate.patches_json6902, names)
    for entry in mutate.foreach or ():
        elements, read = elements_of(entry.list, names)
        yield from read
        inner = {**names, "element": elements}
        if entry.preconditions is not None:
            yield from places_of_conditions(entry.preconditions.raw(), inner)
        yield from _merged(entry.patch_strategic_merge, inner)
        yield from _patched(entry.patches_json6902, inner)


def _merged(patch: Json, names: _Names) -> _Places:
    if patch is None:
        return
    for path, value in walked(patch, ()):
        if not path or "{{" in "".join(map(str, path)):
            continue
        is_variable = type(value) is str and "{{" in value
        yield path, "x" if is_variable else value
    yield from read_in(patch, names)


def _patched(source: str, names: _Names) -> _Places:
    try:
        operations = yaml.safe_load(source) if source else None
    except yaml.YAMLError:
        return
    for operation in operations if type(operations) is list else ():
        if type(operation) is not dict:
            continue
        path = _path(str(operation.get("path", "")))
        if path:
            yield from parents(path)
        value = operation.get("value")
        if path and value is not None and "{{" not in str(value):
            yield path, value
        yield from read_in([operation.get("path"), value], names)


def _path(pointer: str) -> Path:
    tokens = [
        item.replace("~1", "/").replace("~0", "~") for item in pointer.split("/")[1:]
    ]
    return tuple(
        0 if item == "-" or item.lstrip("-").isdigit() or "{{" in item else item
        for item in tokens
    )
