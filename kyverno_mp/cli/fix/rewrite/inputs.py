"""Generate requests from a policy's text, with passing, failing and odd objects.

Room: cli. Takes: a ClusterPolicy, the resources it matches. Gives: AdmissionReviews as
bytes. Next: proof.py. May touch: nothing outside its arguments.

Values are taken from the policy (strings of patterns with and without operators and
wildcards, numbers and their neighbours) and from every JSON type. The seed is fixed, so
that a policy is always tested with the same requests.
"""

import random
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.expr.pattern.anchors import parse_anchor
from kyverno_mp.limits import REWRITE_INPUTS_MAX
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.values.jsonvalue import Json

_SEED: Final = 20260101
_ABSENT: Final = object()
_ODD: Final[tuple[Json, ...]] = (
    *(None, "", "x", "0", "5", "-1", "true", 0, 1, -1, 7, 1.5, True, False),
    *([], {}, ["x"], [{}], {"x": "y"}, [None], "x y/z:1"),
)
_SPLIT: Final = re.compile(r"[|&]")
_OPERATOR: Final = re.compile(r"^(?:[<>]=?|!)\s*")
_NUMBER: Final = re.compile(r"-?\d+")
_FIELD: Final = re.compile(r"request\.object\.((?:[A-Za-z]\w*+)(?:\.[A-Za-z]\w*+)*+)")
_VERBS: Final = ("CREATE", "CREATE", "UPDATE", "UPDATE", "DELETE")
_FOREIGN: Final = "example.com"
"""An API group whose kinds have the names of built-in kinds."""
_FOREIGN_SHARE: Final = 0.1
_DEBUG_SHARE: Final = 0.2
"""Share of Pod updates that are sent to a subresource, like `kubectl debug`."""
_PODS: Final = "pods"
_DEBUG: Final = "ephemeralcontainers"
_ELSEWHERE: Final = 0.25
"""Share of requests for objects whose name and namespace the policy does not use."""
_TOGETHER: Final = 400
"""Number of objects that are changed in several places."""
_PLACES_MAX: Final = 4
_Path = tuple[str | int, ...]


class Spot(NamedTuple):
    """A path in objects, and the policy's values for it."""

    path: _Path
    values: tuple[Json, ...]


def spots_of(rules: Sequence[Rule]) -> list[Spot]:
    """Return the paths that patterns and conditions read."""
    found: dict[_Path, list[Json]] = {}
    for rule in rules:
        validate = rule.validate
        if validate is None:
            continue
        patterns = [validate.pattern, *(validate.any_pattern or ())]
        for pattern in filter(None, patterns):
            for path, value in _walk(pattern, ()):
                found.setdefault(path, []).append(value)
        denied = validate.deny.conditions if validate.deny else None
        for one in (*_conditions(denied), *_conditions(rule.preconditions)):
            for text in _FIELD.findall(str(one.get("key"))):
                values = one.get("value")
                given = values if type(values) is list else [values]
                found.setdefault(tuple(text.split(".")), []).extend(given)
    return [Spot(path, tuple(_values(given))) for path, given in found.items()]


def reviews(
    rules: Sequence[Rule], resources: Sequence[Resource]
) -> Iterator[tuple[str, bytes]]:
    """Yield a description and the bytes of each AdmissionReview."""
    spots = spots_of(rules)
    names = sorted(set(_names(rules))) or ["x"]
    namespaces = sorted(set(_namespaces(rules))) or ["x"]
    randomly = random.Random(_SEED)  # noqa: S311 - repeatable, no secret
    objects = list(_objects(spots, randomly))
    for number in range(REWRITE_INPUTS_MAX):
        resource = resources[number % len(resources)]
        # Each object is used once; further objects are chosen at random.
        place = number // len(resources)
        changed = objects[place] if place < len(objects) else randomly.choice(objects)
        old = randomly.choice(objects)
        verb = randomly.choice(_VERBS)
        identity = randomly.choice(names), randomly.choice(namespaces)
        if randomly.random() < _ELSEWHERE:
            identity = "another", "elsewhere"
        subresource = ""
        if randomly.random() < _FOREIGN_SHARE:
            resource = resource._replace(group=_FOREIGN)
        elif verb == "UPDATE" and resource.plural == _PODS:
            subresource = _DEBUG if randomly.random() < _DEBUG_SHARE else ""
        yield _review(resource, verb, changed, old, identity, subresource)


def _walk(pattern: Json, path: _Path) -> Iterator[tuple[_Path, Json]]:
    if type(pattern) is dict:
        for text, value in pattern.items():
            anchor = parse_anchor(text)
            key = anchor[1] if anchor else text
            yield (*path, key), {}
            yield from _walk(value, (*path, key))
    elif type(pattern) is list:
        yield path, []
        for value in pattern[:1]:
            yield from _walk(value, (*path, 0))
    else:
        yield path, pattern


def _conditions(value: Json) -> Iterator[dict[str, Json]]:
    if type(value) is dict and "key" in value:
        yield value
    elif type(value) is dict:
        for one in value.values():
            yield from _conditions(one)
    elif type(value) is list:
        for one in value:
            yield from _conditions(one)


def _values(given: Sequence[Json]) -> Iterator[Json]:
    """Yield the policy's values, and similar values."""
    for value in given:
        yield value
        if type(value) is int:
            yield from (value + 1, value - 1, str(value), float(value))
        if type(value) is not str:
            continue
        for part in _SPLIT.split(value):
            text = _OPERATOR.sub("", part.strip())
            yield from (part.strip(), text, text.replace("*", "a").replace("?", "b"))
            yield from (
                text.replace("*", "").replace("?", ""),
                f"{text}z",
                text.upper(),
            )
            for number in _NUMBER.findall(text):
                yield from (int(number), int(number) + 1, int(number) - 1, number)
            if text in ("true", "false"):
                yield text == "true"


def _objects(spots: Sequence[Spot], randomly: random.Random) -> Iterator[Json]:
    """Yield objects: empty, passing, changed in one place, changed in several."""
    yield {}
    base: Json = {}
    for spot in spots:
        _set(base, spot.path, _usual(spot))
    yield deepcopy(base)
    for spot in spots:
        for value in (_ABSENT, *spot.values, *_ODD):
            yield _with(base, spot.path, value)
            yield _with({}, spot.path, value)
    for _ in range(_TOGETHER if spots else 0):
        changed = deepcopy(base)
        for spot in randomly.sample(
            spots, randomly.randint(1, min(_PLACES_MAX, len(spots)))
        ):
            values = (*spot.values, _ABSENT, randomly.choice(_ODD))
            _set(changed, spot.path, randomly.choice(values))
        yield changed


def _usual(spot: Spot) -> Json:
    """Return a value that may satisfy a pattern."""
    texts = [one for one in spot.values if type(one) is str]
    plain = [one for one in texts if not set("*?<>!|&=") & set(one) and one]
    return deepcopy(plain[0] if plain else spot.values[0])


def _with(base: Json, path: _Path, value: Json) -> Json:
    changed = deepcopy(base)
    _set(changed, path, value)
    return changed


def _set(holder: Json, path: _Path, value: Json) -> None:
    """Set or remove the value at a path; missing containers are created."""
    for key, then in pairwise(path):
        holder = _inner(holder, key, [] if type(then) is int else {})
        if holder is None:
            return
    last = path[-1]
    kept = _ABSENT if value is _ABSENT else deepcopy(value)
    if type(last) is int and type(holder) is list:
        holder[:] = [] if kept is _ABSENT else [kept, *holder[1:]]
    elif type(last) is str and type(holder) is dict:
        holder[last] = kept
        if kept is _ABSENT:
            del holder[last]


def _inner(holder: Json, key: str | int, empty: Json) -> Json:
    """Return the container at a key, created if needed; None if this is impossible."""
    if type(key) is int:
        if type(holder) is not list:
            return None
        if not holder:
            holder.append(empty)
        if type(holder[0]) is not type(empty):
            holder[0] = empty
        return holder[0]
    if type(holder) is not dict:
        return None
    if type(holder.get(key)) is not type(empty):
        holder[key] = empty
    return holder[key]


def _names(rules: Sequence[Rule]) -> Iterator[str]:
    for one in _descriptions(rules):
        for text in (*one.names, one.name):
            yield from filter(None, (text.replace("*", "a").replace("?", "b"),))


def _namespaces(rules: Sequence[Rule]) -> Iterator[str]:
    for one in _descriptions(rules):
        for text in one.namespaces:
            yield text.replace("*", "a").replace("?", "b")


def _descriptions(rules: Sequence[Rule]) -> Iterator[Json]:
    for rule in rules:
        for block in (rule.match, rule.exclude):
            if block is not None:
                yield block.resources
                for one in (*block.any, *block.all):
                    yield one.resources


def _review(
    resource: Resource,
    verb: str,
    changed: Json,
    old: Json,
    identity: tuple[str, str],
    subresource: str,
) -> tuple[str, bytes]:
    version = "v1" if resource.version == "*" else resource.version
    group = resource.home if resource.group == "*" else resource.group
    group_version = f"{group}/{version}" if group else version
    name, namespace = identity

    def finished(given: Json) -> Json:
        metadata = given.get("metadata")
        made = {**(metadata if type(metadata) is dict else {}), "name": name}
        made["namespace"] = namespace
        head = {"apiVersion": group_version, "kind": resource.kind}
        return {**given, **head, "metadata": made}

    request: Json = {
        "uid": "u",
        "kind": {"group": group, "version": version, "kind": resource.kind},
        "resource": {"group": group, "version": version, "resource": resource.plural},
        "name": name,
        "namespace": namespace,
        "operation": verb,
        "userInfo": {"username": "ann", "groups": ["system:authenticated"]},
        "object": None if verb == "DELETE" else finished(changed),
        "oldObject": None if verb == "CREATE" else finished(old),
        "options": None,
    }
    if subresource:
        request["subResource"] = subresource
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request,
    }
    shown = {key: request[key] for key in ("operation", "object", "oldObject")}
    return msgspec.json.encode(shown).decode(), msgspec.json.encode(review)
