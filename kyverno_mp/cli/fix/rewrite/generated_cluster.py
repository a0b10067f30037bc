"""Answer the reads of both policies with the same generated objects.

Room: cli. Takes: a ClusterPolicy's rules, a request. Gives: the ports for ConfigMaps,
API calls and ``resource``. Next: proof.py.
Source: docs/behaviour/engine 3.7; Kubernetes API paths and lists.

What is read depends on the request and its number only, whichever policy reads first.
Values come from the request, so that objects of the cluster have its names and labels,
and from the policy; some calls fail, and some objects do not exist.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

from kyverno_mp.cli.fix.rewrite.at_paths import ABSENT, copied, set_at
from kyverno_mp.cli.fix.rewrite.cluster_reads import read_of
from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.query_places import CLUSTER, query_places
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.cli.fix.rewrite.typed import completed, conforms
from kyverno_mp.cli.fix.rewrite.variants import Path
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN, ApiResource

_FAILED_SHARE: Final = 0.08
_LACKING_SHARE: Final = 0.2
_OWN_SHARE: Final = 0.5
_OBJECTS_MAX: Final = 3
_TRIES: Final = 20
_SHARES: Final = (10, 50, 30, 10)
"""Of fields that are missing, have a value of the request, the policy, an odd one."""
_ODD: Final[tuple[Json, ...]] = ("", "*", "x", "0", 0, 1, 2, True, False, {}, [])
_CONFIG_MAP: Final = "configmaps"


class GeneratedCluster:
    """A cluster for one request at a time."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._places: dict[tuple[str, str], dict[Path, list[Json]]] = {}
        for rule in rules:
            for key, path, value in _read_places(rule):
                values = self._places.setdefault(key, {}).setdefault(path, [])
                values.append(value)
        self._number = 0
        self._name = ""
        self._own: list[Json] = []
        self._answers: dict[str, Json] = {}

    def turn(self, number: int, request: Request) -> None:
        """Take the objects for another request."""
        self._number = number
        self._name = request.name or "x"
        self._answers = {}
        if self._places:
            parts = (request.object, request.old_object, request.name)
            unique = {repr(value): value for value in _parts(parts)}
            self._own = [*unique.values()]

    def answers(self) -> dict[str, Json]:
        """Return what was read since the request began, by path; null: absent."""
        return self._answers

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Return a ConfigMap. Raises: ExpressionFailed."""
        stored = self.get("v1", _CONFIG_MAP, (namespace, name), deadline_ns)
        if stored is None:
            _fail(f"configmaps {name} not found")
        return stored

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Answer a call of the API server. Raises: ExpressionFailed."""
        path, _, query = request.path.partition("?")
        root, *segments = path.strip("/").split("/")
        if request.method != "GET" or "" in segments:
            _fail(f"no such path: {request.path}")
        end = 1 if root == "api" else 2
        api_version, below = "/".join(segments[:end]), segments[end:]
        namespace = ""
        if below[0] == "namespaces" and below[2:]:
            namespace, below = below[1], below[2:]
        plural, *names = below
        if not names:
            _, _, selector = query.replace("%3D", "=").partition("=")
            key, _, value = selector.partition("=")
            labels = {key: value} if selector else {}
            return self.list(api_version, plural, namespace, labels, deadline_ns)
        stored = self.get(api_version, plural, (namespace, names[0]), deadline_ns)
        if stored is None:
            _fail(f"{plural} {names[0]} not found")
        return stored

    def get(
        self, api_version: str, plural: str, key: tuple[str, str], deadline_ns: int
    ) -> Json | None:
        """Return an object, None if it does not exist. Raises: ExpressionFailed."""
        del deadline_ns
        resource = _resource_of(api_version, plural)
        namespace, name = key
        randomly = self._chance(resource, *key)
        answer = (
            None
            if randomly.random() < _LACKING_SHARE
            else self._object(resource, (), namespace, name, randomly)
        )
        return self._answered(f"{plural} {namespace}/{name}", answer)

    def list(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        deadline_ns: int,
    ) -> Json:
        """Return the List. Raises: ExpressionFailed."""
        del deadline_ns
        resource = _resource_of(api_version, plural)
        randomly = self._chance(resource, namespace, str(labels))
        items = []
        for number in range(randomly.randint(0, _OBJECTS_MAX)):
            within = namespace or f"n{number}" if resource.is_namespaced else ""
            # Only one object of a list can have the name of the request's object.
            is_own = not number and randomly.random() < _OWN_SHARE
            name = self._name if is_own else f"x{number}"
            item = self._object(resource, ("items", 0), within, name, randomly)
            item["metadata"]["uid"] = f"u-x{number}"
            item["metadata"].setdefault("labels", {}).update(labels)
            items.append(item)
        answer = {
            "apiVersion": api_version,
            "kind": f"{resource.kind}List",
            "metadata": {"resourceVersion": "1"},
            "items": items,
        }
        return self._answered(f"{plural} {namespace}", answer)

    def post(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        body: Json,
        deadline_ns: int,
    ) -> NoReturn:
        """Fail, because no rewritten policy creates objects."""
        del namespace, body, deadline_ns
        _fail(f"{api_version} {plural} is not created")

    def plural(self, api_version: str, kind: str) -> NoReturn:
        """Fail, because rewritten policies write plural names."""
        _fail(f"{api_version} {kind} is not known")

    def _chance(self, resource: ApiResource, *key: str) -> random.Random:
        """Return the numbers of one read. Raises: ExpressionFailed for some."""
        text = f"{self._number} {resource.api_version} {resource.plural} {key}"
        randomly = random.Random(text)  # noqa: S311 - repeatable, no secret
        if randomly.random() < _FAILED_SHARE:
            self._answers[f"{resource.plural} {key[0]}"] = "the call fails"
            _fail("the server is currently unable to handle the request")
        return randomly

    def _answered(self, name: str, answer: Json) -> Json:
        self._answers[name] = answer
        # Both policies may keep and change what they read.
        return copied(answer)

    def _object(
        self,
        resource: ApiResource,
        prefix: Path,
        namespace: str,
        name: str,
        randomly: random.Random,
    ) -> Json:
        typed = Resource(
            resource.group, resource.version, resource.plural, resource.kind
        )
        metadata = {"name": name, "uid": f"u-{name}"}
        if namespace:
            metadata["namespace"] = namespace
        stored = completed(typed, {"metadata": metadata})
        places = self._places.get((resource.api_version, resource.plural), {})
        for path in sorted(places, key=len):
            below = path[len(prefix) :]
            if path[: len(prefix)] != prefix or not below:
                continue
            for _ in range(_TRIES):
                changed = copied(stored)
                set_at(changed, below, self._value(places[path], randomly))
                if conforms(typed, changed):
                    changed["metadata"] = {**changed.get("metadata", {}), **metadata}
                    stored = changed
                    break
        return stored

    def _value(self, values: Sequence[Json], randomly: random.Random) -> Json:
        sources = ((ABSENT,), self._own or values, values, _ODD)
        (source,) = randomly.choices(sources, _SHARES)
        return randomly.choice(source)


def _parts(value: Json) -> Iterator[Json]:
    """Yield all values in a value, and wildcards that match its texts."""
    if type(value) is dict:
        for one in value.values():
            yield one
            yield from _parts(one)
    elif type(value) in (list, tuple):
        for one in value:
            yield one
            yield from _parts(one)
    elif type(value) is str and value:
        yield value
        yield f"{value[:1]}*"


def _read_places(rule: Rule) -> Iterator[tuple[tuple[str, str], Path, Json]]:
    """Yield the places that a rule reads in objects of the cluster."""
    keys = {}
    for entry in rule.context:
        try:
            resource = read_of(entry).resource
        except NotRewritten:
            continue
        keys[entry.name] = resource.api_version, resource.plural
        yield keys[entry.name], ("metadata", "labels"), {}
    for path, value in query_places(rule) if keys else ():
        if path[:1] == (CLUSTER,) and path[2:] and path[1] in keys:
            yield keys[str(path[1])], path[2:], value


def _resource_of(api_version: str, plural: str) -> ApiResource:
    resources = (
        one
        for one in BUILT_IN
        if (one.api_version, one.plural) == (api_version, plural)
    )
    resource = next(resources, None)
    if resource is None:
        _fail(f"the server could not find the requested resource {plural}")
    return resource


def _fail(message: str) -> NoReturn:
    raise ExpressionFailed("context.apicall", message)
