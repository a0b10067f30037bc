"""Read and write the native admission policies that Kyverno generated.

Room: controllers. Takes: Generated, the resources served. Gives: objects in the API
server.
Next: controllers/admission_policies/controller.py. May touch: the API server through
kube.
Source: docs/behaviour/controllers 13.

An object is written only if it or its desired state changed since the last comparison.
Its ``generation`` grows only with its spec, so its status and fields that the API
server adds cause no write.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.controllers.admission_policies.generated import LABEL
from kyverno_mp.controllers.admission_policies.plans import SOURCES, Pair
from kyverno_mp.controllers.webhook_config.options import MANAGER
from kyverno_mp.errors import KubeConflict
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.values.jsonvalue import Json

_SELECTOR: Final = f"{LABEL}={MANAGER}"
_Id = tuple[str, str]
"""Plural and name."""


class _Compared(NamedTuple):
    wanted: Json
    generation: int


class Foreign(Exception):
    """Raised if an object with the name exists that Kyverno did not generate."""


class GeneratedObjects:
    """The objects that Kyverno generated; use it from one thread only."""

    def __init__(self, client: Client, objects: Objects) -> None:
        """``objects`` can write only on the lease holder."""
        self._client = client
        self._objects = objects
        self._observed: dict[_Id, Json] = {}
        self._compared: dict[_Id, _Compared] = {}

    def forget(self) -> None:
        """Compare every object again."""
        self._observed, self._compared = {}, {}

    def read(self, pairs: Iterable[Pair]) -> None:
        """Read all objects again. Raises: DependencyError."""
        found: dict[_Id, Json] = {}
        for resource in (one for pair in pairs for one in pair):
            found |= self._listed(resource)
        self._observed = found
        self._compared = {k: v for k, v in self._compared.items() if k in found}

    def _listed(self, resource: Resource) -> dict[_Id, Json]:
        found: dict[_Id, Json] = {}

        def take(raw: msgspec.Raw) -> None:
            one = msgspec.json.decode(raw)
            if _is_ours(one):
                found[resource.plural, one["metadata"]["name"]] = one

        scope = WatchScope(resource=resource, label_selector=_SELECTOR)
        list_all(self._client, scope, take, restart=found.clear)
        return found

    def __len__(self) -> int:
        return len(self._observed)

    def has(self, pair: Pair, name: str) -> bool:
        """Return whether the policy or its binding exists."""
        return any(key in self._observed for key in _ids_of(pair, name))

    def has_both(self, pair: Pair, name: str) -> bool:
        """Return whether the policy and its binding exist."""
        return all(key in self._observed for key in _ids_of(pair, name))

    def write(self, resource: Resource, kind: str, wanted: Json) -> bool:
        """Create the object, or replace it if it differs; return whether it changed.

        Raises: Foreign, DependencyError.
        """
        name = wanted["metadata"]["name"]
        key = resource.plural, name
        observed = self._observed.get(key)
        if observed is None:
            stored = self._create(resource, kind, wanted)
        else:
            compared = _Compared(wanted, _generation_of(observed))
            if self._compared.get(key) == compared and _has_metadata(observed, wanted):
                return False
            stored = self._objects.replace(
                resource,
                {
                    **observed,
                    "apiVersion": resource.api_version,
                    "kind": kind,
                    "metadata": _merged(observed["metadata"], wanted["metadata"]),
                    "spec": wanted["spec"],
                },
            )
        self._observed[key] = stored
        self._compared[key] = _Compared(wanted, _generation_of(stored))
        return True

    def delete(self, pair: Pair, name: str) -> None:
        """Delete the binding and the policy, if they exist. Raises: DependencyError."""
        policy, binding = _ids_of(pair, name)
        # Without its binding a policy has no effect.
        for key, resource in ((binding, pair.binding), (policy, pair.policy)):
            observed = self._observed.get(key)
            if observed is not None:
                uid = str(observed["metadata"].get("uid") or "")
                self._objects.delete(resource, ("", key[1]), uid)
                self._observed.pop(key)
                self._compared.pop(key, None)

    def _create(self, resource: Resource, kind: str, wanted: Json) -> Json:
        raw = {"apiVersion": resource.api_version, "kind": kind, **wanted}
        try:
            return self._objects.create(resource, raw)
        except KubeConflict as error:
            found = self._objects.find(resource, ("", wanted["metadata"]["name"]))
            if found is not None and not _is_ours(found):
                raise Foreign from error
            # An earlier holder of the lease created it after our last list.
            raise


def _ids_of(pair: Pair, name: str) -> tuple[_Id, _Id]:
    return (pair.policy.plural, name), (pair.binding.plural, f"{name}-binding")


def _is_ours(raw: Json) -> bool:
    """Return whether an object has the label, name and owner of a generated object.

    Other tools can set the label, too.
    """
    metadata = raw["metadata"]
    if (metadata.get("labels") or {}).get(LABEL) != MANAGER:
        return False
    for owner in metadata.get("ownerReferences") or ():
        prefix, _ = SOURCES.get(owner["kind"], ("", ""))
        name = f"{prefix}{owner['name']}"
        if prefix and metadata["name"] in (name, f"{name}-binding"):
            return True
    return False


def _generation_of(raw: Json) -> int:
    return raw["metadata"].get("generation") or 0


def _has_metadata(observed: Json, wanted: Json) -> bool:
    """Return whether our labels and owners are set; other writers may add labels."""
    metadata, ours = observed["metadata"], wanted["metadata"]
    labels = metadata.get("labels") or {}
    return all(
        labels.get(name) == value for name, value in ours["labels"].items()
    ) and (bool(metadata.get("ownerReferences") == ours["ownerReferences"]))


def _merged(observed: Json, wanted: Json) -> Json:
    return {
        **observed,
        "labels": {**(observed.get("labels") or {}), **wanted["labels"]},
        "ownerReferences": wanted["ownerReferences"],
    }
