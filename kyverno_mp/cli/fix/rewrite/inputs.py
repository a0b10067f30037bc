"""Generate requests from a policy's text, with passing, failing and odd objects.

Room: cli. Takes: a ClusterPolicy, the resources it matches. Gives: AdmissionReviews as
bytes. Next: proof.py.

Values are taken from the policy (strings of patterns with and without operators and
wildcards, numbers and their neighbours) and from every JSON type, also for the maps and
lists that contain the fields. The seed is fixed, so that a policy is always tested with
the same requests.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cli.fix.rewrite.cel_places import places
from kyverno_mp.cli.fix.rewrite.known_kinds import CONNECTED
from kyverno_mp.cli.fix.rewrite.match import CONNECT, Resource
from kyverno_mp.cli.fix.rewrite.patch_places import mutated_places
from kyverno_mp.cli.fix.rewrite.query_places import (
    CLUSTER,
    REQUEST,
    query_places,
    walked,
)
from kyverno_mp.cli.fix.rewrite.typed import stored, with_names
from kyverno_mp.cli.fix.rewrite.variants import Path, Spot, objects_of
from kyverno_mp.limits import REWRITE_INPUTS_MAX, REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.match import ResourceDescription
from kyverno_mp.policy.fields.validation import Validation
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN
from kyverno_mp.values.kubernetes.kinds import parse_kind

_SEED: Final = 20260101
_SPLIT: Final = re.compile(r"[|&]")
_OPERATOR: Final = re.compile(r"^(?:[<>]=?|!)\s*")
_NUMBER: Final = re.compile(r"-?\d+")
_VERBS: Final = ("CREATE", "UPDATE", "UPDATE", "DELETE")
_FOREIGN: Final = "example.com"
"""An API group whose kinds have the names of built-in kinds."""
_FOREIGN_SHARE: Final = 0.1
_DEBUG_SHARE: Final = 0.2
"""Share of Pod updates that are sent to a subresource, like `kubectl debug`."""
_REQUEST_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_NAMESPACE: Final = "Namespace"
_PODS: Final = "pods"
_DEBUG: Final = "ephemeralcontainers"
_ELSEWHERE: Final = 0.25
"""Share of requests for objects whose name and namespace the policy does not use."""
_UNNAMED: Final = 0.1
"""Share of objects with generateName, and share of objects without a namespace."""
_UNCHANGED: Final = 0.1
"""Share of updates that change nothing."""
_NOTHING: Final[Json] = {}
_TRIES: Final = 10
"""Generated requests for each request whose objects have the types of their kind."""


def spots_of(rules: Sequence[Rule]) -> list[Spot]:
    """Return the paths that patterns and conditions read, with all their parents."""
    return spots_at(
        (path, value)
        for rule in rules
        for path, value in _places_of(rule)
        if path[0] not in (CLUSTER, REQUEST)
    )


def spots_at(places: Iterable[tuple[Path, Json]]) -> list[Spot]:
    """Return the paths, each with its values and similar ones."""
    found: dict[Path, list[Json]] = {}
    for path, value in places:
        found.setdefault(path, []).append(value)
    return [Spot(path, tuple(_values(given))) for path, given in found.items()]


def _places_of(rule: Rule) -> Iterator[tuple[Path, Json]]:
    validate = rule.validate or Validation()
    patterns = [validate.pattern, *(validate.any_pattern or ())]
    yield from selected_places(_descriptions([rule]))
    for one in filter(None, patterns):
        yield from walked(one, ())
    yield from _of_cel(rule)
    yield from query_places(rule)
    yield from mutated_places(rule)


def selected_places(
    descriptions: Iterable[ResourceDescription],
) -> Iterator[tuple[Path, Json]]:
    """Yield the labels that selectors read."""
    selectors = (one.selector for one in descriptions if one.selector is not None)
    for selector in selectors:
        pairs = [*selector.match_labels.items()]
        for term in selector.match_expressions:
            pairs += [(term.key, value) for value in term.values or ("",)]
        for key, value in pairs:
            yield ("metadata", "labels"), {}
            yield ("metadata", "labels", key), value


def _of_cel(rule: Rule) -> Iterator[tuple[Path, Json]]:
    """Yield the paths of a rule in CEL with values."""
    cel = rule.validate.cel if rule.validate is not None else None
    if cel is None:
        return
    conditions = [one.expression for one in rule.cel_preconditions or ()]
    tests = [one.expression for one in cel.expressions]
    variables = [(one.name, one.expression) for one in cel.variables]
    yield from places(variables, (*conditions, *tests))


class _Tried(NamedTuple):
    """A rule's objects, and the resources that the rule matches."""

    objects: Sequence[Json]
    resources: Sequence[Resource]


class _Stored:
    """Objects as the API server would store them, each determined once.

    PERF: requests draw from the same objects again and again; without the record, to
    complete and to check them took half the time of a rewrite.
    """

    def __init__(self) -> None:
        self._objects: dict[tuple[int, Resource, bool], tuple[Json, Json | None]] = {}

    def get(self, resource: Resource, generated: Json, *, exactly: bool) -> Json | None:
        """Return the completed object; None if it cannot be one of this resource."""
        key = id(generated), resource, exactly
        if key not in self._objects:
            whole = generated
            if not resource.subresource:
                metadata = generated.get("metadata")
                metadata = metadata if type(metadata) is dict else {}
                whole = {**generated, "metadata": metadata}
            # With the object itself, so that no other one gets its id.
            self._objects[key] = generated, stored(resource, whole, exactly=exactly)
        return self._objects[key][1]


def reviews(
    rules: Sequence[Rule], resources: Sequence[Resource]
) -> Iterator[tuple[str, bytes]]:
    """Yield a description and the bytes of each AdmissionReview.

    Each rule's objects are created once; as many requests create, update and delete
    objects at random.
    """
    randomly = random.Random(_SEED)  # noqa: S311 - repeatable, no secret
    compared = _compared_names(rules)
    names = sorted({*names_in(_descriptions(rules)), *compared["name"]}) or ["x"]
    namespaces = sorted(
        {*namespaces_in(_descriptions(rules)), *compared["namespace"]}
    ) or ["x"]
    mutates = any(rule.mutate is not None for rule in rules)
    may_be_foreign = all(rule.validate is not None for rule in rules)
    reads = any(one.variable is None for rule in rules for one in rule.context)
    stored = _Stored()
    tried = [_tried(rule, resources, randomly, stored) for rule in rules]
    if mutates:
        tried = [one._replace(objects=[*map(with_names, one.objects)]) for one in tried]
    wanted = 2 * sum(len(one.objects) for one in tried)
    count = min(max(wanted, REWRITE_INPUTS_MIN), REWRITE_INPUTS_MAX)
    conforming = (
        (CONNECT if resource.subresource else verb, resource, now, before)
        for verb, resource, *pair in islice(_requests(tried, randomly), count * _TRIES)
        if (now := stored.get(resource, pair[0], exactly=mutates)) is not None
        and (before := stored.get(resource, pair[1], exactly=mutates)) is not None
    )
    # A kind of another group is taken to have the shape of the known kind.
    for verb, resource, changed, old in islice(conforming, count):
        named = resource
        identity = randomly.choice(names), randomly.choice(namespaces)
        if randomly.random() < _ELSEWHERE:
            identity = "another", "elsewhere"
        if randomly.random() < _UNNAMED:
            identity = identity[0], ""
        if reads:
            identity = _in_its_scope(resource, identity)
        subresource = ""
        if randomly.random() < _FOREIGN_SHARE and may_be_foreign:
            named = _elsewhere(resource)
        elif verb == "UPDATE" and resource.plural == _PODS:
            subresource = _DEBUG if randomly.random() < _DEBUG_SHARE else ""
        is_generated = verb == "CREATE" and randomly.random() < _UNNAMED
        is_same = verb == "UPDATE" and randomly.random() < _UNCHANGED
        pair = changed, changed if is_same else old
        if reads and not resource.subresource:
            pair = _with_uid(pair[0]), _with_uid(pair[1])
        yield _review(
            named, verb, pair, identity, subresource, is_generated=is_generated
        )


def _compared_names(rules: Sequence[Rule]) -> dict[str, set[str]]:
    """Return names and namespaces that conditions compare with the request's own."""
    values: dict[str, list[Json]] = {"name": [], "namespace": []}
    for rule in rules:
        for path, value in query_places(rule):
            if path[:1] == (REQUEST,) and path[1:] and value != "x":
                values[str(path[1])].append(value)
    return {
        part: {
            name
            for name in _values(several)
            if type(name) is str and _REQUEST_NAME.fullmatch(name)
        }
        for part, several in values.items()
    }


def _elsewhere(resource: Resource) -> Resource:
    """Return the resource in another group, or another one to which clients connect."""
    if not resource.subresource:
        return resource._replace(group=_FOREIGN)
    other, kind = next(
        pair for pair in CONNECTED.items() if pair[0] != resource.subresource
    )
    return resource._replace(plural=f"{_PODS}/{other}", kind=kind)


def _in_its_scope(resource: Resource, identity: tuple[str, str]) -> tuple[str, str]:
    """Return name and namespace as the API server sends them, for paths to read."""
    name, namespace = identity
    if resource.kind == _NAMESPACE:
        return name, name
    is_clusters = any(
        not one.is_namespaced
        and (one.kind, one.plural) == (resource.kind, resource.plural)
        for one in BUILT_IN
    )
    return name, "" if is_clusters else namespace or "default"


def _with_uid(value: Json) -> Json:
    """Return an object with the identity that the API server gives it."""
    return {**value, "metadata": {**value.get("metadata", {}), "uid": "u-x0"}}


def _requests(
    tried: Sequence[_Tried], randomly: random.Random
) -> Iterator[tuple[str, Resource, Json, Json]]:
    """Yield operations, resources, objects and old objects, without end."""
    created = _created(tried)
    while True:
        if found := next(created, None):
            resource, changed = found
            yield "CREATE", resource, changed, _NOTHING
        objects, resources = randomly.choice(tried)
        changed, old = randomly.choice(objects), randomly.choice(objects)
        yield randomly.choice(_VERBS), randomly.choice(resources), changed, old


def _created(tried: Sequence[_Tried]) -> Iterator[tuple[Resource, Json]]:
    # The rules take turns, so that the limit affects all rules alike.
    for number in range(max(len(one.objects) for one in tried)):
        for objects, resources in tried:
            if number < len(objects):
                yield resources[number % len(resources)], objects[number]


def _tried(
    rule: Rule,
    resources: Sequence[Resource],
    randomly: random.Random,
    stored: _Stored,
) -> _Tried:
    kinds = {
        parse_kind(text).kind
        for description in _descriptions([rule])
        for text in description.kinds
    }
    own = [resource for resource in resources if resource.kind in kinds]
    own = own or list(resources)

    def is_typed(given: Json) -> bool:
        return any(
            stored.get(resource, given, exactly=False) is not None for resource in own
        )

    mutates = rule.mutate is not None
    objects = objects_of(spots_of([rule]), randomly, is_typed, mutates=mutates)
    return _Tried([*filter(is_typed, objects)], own)


def _values(given: Sequence[Json]) -> Iterator[Json]:
    """Yield the policy's values, and similar values."""
    for value in given:
        yield value
        if type(value) is int:
            yield from (value + 1, value - 1, str(value), float(value), value + 0.5)
            yield from (f"0{value}", f"{value}.0", f"{value}Ki", f"{value * 1000}m")
        if type(value) is not str:
            continue
        for part in _SPLIT.split(value):
            text = _OPERATOR.sub("", part.strip())
            yield from (part.strip(), text, text.replace("*", "a").replace("?", "b"))
            yield from (
                text.replace("*", "").replace("?", ""),
                f"{text}z",
                text.upper(),
                f"{text[:2]}*",
                f" {text}",
                [text],
                ["z", text],
            )
            for number in _NUMBER.findall(text):
                yield from (int(number), int(number) + 1, int(number) - 1, number)
            if text in ("true", "false"):
                yield text == "true"


def names_in(descriptions: Iterable[ResourceDescription]) -> Iterator[str]:
    """Yield names that filters select."""
    for description in descriptions:
        for text in (*description.names, description.name):
            yield from filter(None, (text.replace("*", "a").replace("?", "b"),))


def namespaces_in(descriptions: Iterable[ResourceDescription]) -> Iterator[str]:
    """Yield namespaces that filters select."""
    for description in descriptions:
        for text in description.namespaces:
            yield text.replace("*", "a").replace("?", "b")


def _descriptions(rules: Sequence[Rule]) -> Iterator[ResourceDescription]:
    for rule in rules:
        for block in (rule.match, rule.exclude):
            if block is not None:
                yield block.resources
                for one in (*block.any, *block.all):
                    yield one.resources


def _review(
    resource: Resource,
    verb: str,
    pair: tuple[Json, Json],
    identity: tuple[str, str],
    subresource: str,
    *,
    is_generated: bool,
) -> tuple[str, bytes]:
    version = "v1" if resource.version == "*" else resource.version
    group = resource.home if resource.group == "*" else resource.group
    group_version = f"{group}/{version}" if group else version
    name, namespace = identity
    changed, old = pair

    plural, _, connected = resource.plural.partition("/")

    def finished(given: Json) -> Json:
        if connected:
            return {**given, "apiVersion": group_version, "kind": resource.kind}
        made = dict(given["metadata"])
        made["generateName" if is_generated else "name"] = name
        if namespace and resource.kind != _NAMESPACE:
            made["namespace"] = namespace
        head = {"apiVersion": group_version, "kind": resource.kind}
        return {**given, **head, "metadata": made}

    request: Json = {
        "uid": "u",
        "kind": {"group": group, "version": version, "kind": resource.kind},
        "resource": {"group": group, "version": version, "resource": plural},
        "name": "" if is_generated else name,
        "namespace": namespace,
        "operation": verb,
        "userInfo": {"username": "ann", "groups": ["system:authenticated"]},
        "object": None if verb == "DELETE" else finished(changed),
        "oldObject": None if verb in ("CREATE", CONNECT) else finished(old),
        "options": None,
    }
    if subresource or connected:
        request["subResource"] = subresource or connected
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request,
    }
    shown = {key: request[key] for key in ("operation", "object", "oldObject")}
    return msgspec.json.encode(shown).decode(), msgspec.json.encode(review)
