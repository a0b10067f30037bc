"""Generate stored objects from a clean-up policy's text.

Room: cli. Takes: a clean-up policy, the resources it lists. Gives: objects as the API
server stores them, and the namespaces that contain them. Next: deletion_proof.py.

A policy deletes an object only if all its criteria hold. So objects that are selected
or deleted are changed in one part each, which also reaches the last criterion.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.at_paths import ABSENT, with_value
from kyverno_mp.cli.fix.rewrite.inputs import (
    names_in,
    namespaces_in,
    selected_places,
    spots_at,
)
from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.query_places import names_with, places_of_conditions
from kyverno_mp.cli.fix.rewrite.typed import stored
from kyverno_mp.cli.fix.rewrite.variants import Path, Spot, objects_of
from kyverno_mp.limits import REWRITE_INPUTS_MAX, REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.policy.fields.match import ResourceDescription
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULT_NAMESPACE: Final = "default"
_SEED: Final = 20260101
_NEAR_S: Final = (-1, 0, 1)
"""Ages beside each duration of the policy."""
_ELSEWHERE: Final = ("another", "elsewhere")
"""A name and a namespace that the policy does not use."""
_ODD_LABEL: Final = "z"
_NAME: Final[Path] = ("metadata", "name")
_NAMESPACE: Final[Path] = ("metadata", "namespace")
_CREATED: Final[Path] = ("metadata", "creationTimestamp")
_TARGET: Final = {"target": frozenset[Path]({()})}


class Sample(NamedTuple):
    """A stored object of a resource."""

    resource: Resource
    content: Json


class StoredObjects:
    """The objects on which a policy is compared; each run yields the same ones."""

    def __init__(
        self,
        policy: AnyCleanupPolicy,
        resources: Sequence[Resource],
    ) -> None:
        blocks = filter(None, (policy.spec.match, policy.spec.exclude))
        descriptions = [
            one.resources for block in blocks for one in (*block.any, *block.all)
        ]
        own = policy.metadata.namespace or DEFAULT_NAMESPACE
        self.namespaces = _namespaces(descriptions, own)
        """The namespaces with their labels."""
        self._resources = resources
        named = [*names_in(descriptions)]
        self._names = [_ELSEWHERE[0], *named, *_near(named)]
        raw = policy.spec.conditions.raw() if policy.spec.conditions is not None else {}
        self._moments = [*_moments(raw)] or [_written(NOW)]
        read = names_with(policy.spec.context, _TARGET)
        places = (
            *selected_places(descriptions),
            *((_CREATED, moment) for moment in self._moments),
            *places_of_conditions(raw, read),
        )
        # A parent that is set later would remove what was set below it.
        self._spots = sorted(spots_at(places), key=lambda spot: len(spot.path))

    def at_random(self) -> Iterator[Sample]:
        """Yield objects of each resource, with names and namespaces at random."""
        randomly = random.Random(_SEED)  # noqa: S311 - repeatable, no secret
        of_resources = [(one, self._contents(one, randomly)) for one in self._resources]
        longest = max(len(contents) for _, contents in of_resources)
        wanted = longest * len(of_resources)
        count = min(max(wanted, REWRITE_INPUTS_MIN), REWRITE_INPUTS_MAX)
        for number in range(-(-count // len(of_resources))):
            for resource, contents in of_resources:
                content = contents[number % len(contents)]
                yield Sample(resource, self._stored(resource, content, randomly))

    def beside(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the objects with each of their parts changed."""
        randomly = random.Random(_SEED)  # noqa: S311 - repeatable, no secret
        spots = [
            Spot(_NAME, tuple(self._names)),
            Spot(_NAMESPACE, tuple(self.namespaces)),
            *self._spots,
        ]
        for resource, content in samples:
            for spot in spots:
                for value in (ABSENT, *spot.values):
                    changed = self._whole(
                        resource, with_value(content, spot.path, value)
                    )
                    if changed is not None:
                        yield Sample(
                            resource, self._stored(resource, changed, randomly)
                        )

    def _contents(self, resource: Resource, randomly: random.Random) -> list[Json]:
        """Return objects of a resource; some have names of the conditions."""

        def is_typed(content: Json) -> bool:
            return self._whole(resource, content) is not None

        contents = objects_of(self._spots, randomly, is_typed, mutates=False)
        whole = (self._whole(resource, content) for content in contents)
        return [content for content in whole if content is not None]

    def _whole(self, resource: Resource, content: Json) -> Json | None:
        """Return the object with what the API server always writes; None: no such."""
        metadata = content.get("metadata")
        metadata = {**metadata} if type(metadata) is dict else {}
        # K8S: only the API server writes this time.
        if metadata.get(_CREATED[1]) not in self._moments:
            metadata[_CREATED[1]] = self._moments[0]
        return stored(resource, {**content, "metadata": metadata})

    def _stored(
        self, resource: Resource, content: Json, randomly: random.Random
    ) -> Json:
        """Return the object with its kind, its name and its namespace."""
        metadata = {**content["metadata"]}
        metadata["name"] = metadata.get("name") or randomly.choice(self._names)
        if metadata[_CREATED[1]] == self._moments[0]:
            metadata[_CREATED[1]] = randomly.choice(self._moments)
        namespace = metadata.pop("namespace", "")
        if not _is_cluster_wide(resource):
            metadata["namespace"] = namespace or randomly.choice([*self.namespaces])
        return {
            **content,
            "apiVersion": "/".join(filter(None, (resource.group, resource.version))),
            "kind": resource.kind,
            "metadata": metadata,
        }


def _namespaces(
    descriptions: Sequence[ResourceDescription], own: str
) -> dict[str, dict[str, str]]:
    """Return namespaces: those that the policy names, and some with odd labels."""
    variants = [
        labels
        for one in descriptions
        if one.namespace_selector is not None
        for labels in _label_variants(one.namespace_selector)
    ]
    given = [*namespaces_in(descriptions)]
    names = [own, _ELSEWHERE[1], *given, *_near(given)]
    named = dict.fromkeys(names, variants[0] if variants else {})
    return named | {f"n{number}": one for number, one in enumerate(variants)}


def _near(names: Iterable[str]) -> Iterator[str]:
    """Yield names that differ in the first, the last, or the second last character."""
    for name in names:
        yield f"z{name[1:]}"
        yield f"{name[:-1]}z"
        yield f"{name[:-2]}z{name[-1:]}"


def _label_variants(selector: LabelSelector) -> Iterator[dict[str, str]]:
    """Yield labels that a selector selects, and labels that differ in one place."""
    usual = dict(selector.match_labels)
    values: dict[str, list[str]] = {key: [one] for key, one in usual.items()}
    for term in selector.match_expressions:
        values.setdefault(term.key, []).extend(term.values or ("x",))
        if term.operator in ("In", "Exists"):
            usual[term.key] = values[term.key][0]
    yield usual
    for key, several in values.items():
        yield {name: one for name, one in usual.items() if name != key}
        for value in (*several, _ODD_LABEL, ""):
            yield {**usual, key: value}


@cache
def _is_cluster_wide(resource: Resource) -> bool:
    return any(
        (one.group, one.plural) == (resource.group, resource.plural)
        and not one.is_namespaced
        for one in BUILT_IN
    )


def _moments(raw: Json) -> Iterator[str]:
    """Yield times whose ages are near the durations in the conditions."""
    if type(raw) in (dict, list):
        for one in raw.values() if type(raw) is dict else raw:
            yield from _moments(one)
    elif type(raw) is str and (nanoseconds := parse_duration(raw)) is not None:
        age = timedelta(microseconds=nanoseconds // 1000)
        for near_s in _NEAR_S:
            yield _written(NOW - age - timedelta(seconds=near_s))


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
