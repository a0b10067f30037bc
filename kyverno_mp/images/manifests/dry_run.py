"""Compare an object with what the API server makes of its signed manifest.

Room: images. Takes: signed manifests, an object, a function that creates objects in a
dry run. Gives: Differences. Next: images/manifests/verifier.py. May touch: the API
server through the given function.
Source: docs/behaviour/images 7 (match order); k8s-manifest-sigstore
pkg/k8smanifest/verify_resource.go, pkg/util/kubeutil/dryrun.go.

The API server and its mutating webhooks add fields to an object. The same fields are
added to the manifest in a dry run, so that only the other differences count.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.manifests.compare import Difference, Flat, differences
from kyverno_mp.images.manifests.message import failed
from kyverno_mp.values.jsonvalue import Json

DryRunCreate: TypeAlias = Callable[
    [dict[str, Json], str, int, bool], dict[str, Json] | None
]
"""Takes an object, a namespace for namespaced kinds, a deadline, and whether a
namespaced policy asks; returns the object that would be stored, None if our account may
not create it. Raises: ExpressionFailed (the API server rejects the object),
DependencyError.
"""

_CRD: Final = "CustomResourceDefinition"
_ERROR: Final = (
    "error occurred during matching manifest: error occured during dryrun create match:"
    " failed to dryrun with the found YAML in image: Error in creating resource"
)
_NAMES: Final = {"kind": "Sim", "listKind": "Sim", "singular": "sim", "plural": "sim"}
"""Prefixes for the names of a CustomResourceDefinition, which must be unique."""


def simulated(
    candidates: Sequence[dict[str, Json]],
    document: Mapping[str, Json],
    ignored: Sequence[str],
    create: Callable[[dict[str, Json]], dict[str, Json] | None],
) -> list[Difference] | None:
    """Return no differences if a candidate's dry run matches, else the first one's.

    Return None if no candidate could be created. The caller must have checked that the
    candidates are signed. Raises: ExpressionFailed, DependencyError.
    """
    first: list[Difference] | None = None
    current = Flat(dict(document))
    for candidate in _of_kind(candidates, document):
        try:
            created = create(_renamed(candidate))
        except ExpressionFailed as error:
            raise failed(f"{_ERROR} {_gvk(candidate)}: {error.message}") from error
        if created is None:
            return first
        changes = differences(_restored(created, candidate), current, ignored)
        if not changes:
            return []
        first = first or changes
    return first


def _of_kind(
    candidates: Sequence[dict[str, Json]], document: Mapping[str, Json]
) -> Iterator[dict[str, Json]]:
    """Yield the candidates of the object's kind; permissions differ between kinds."""
    identity = document.get("apiVersion"), document.get("kind")
    for candidate in candidates:
        is_named = type(candidate.get("metadata")) is dict
        if (
            is_named
            and (candidate.get("apiVersion"), candidate.get("kind")) == identity
        ):
            yield candidate


def _renamed(candidate: Mapping[str, Json]) -> dict[str, Json]:
    """Return the object to create; its name must not exist yet."""
    renamed = copy.deepcopy(dict(candidate))
    metadata = renamed["metadata"]
    metadata.pop("namespace", None)
    name = metadata.get("name")
    if renamed.get("kind") != _CRD:
        metadata["name"] = f"{name or ''}-dry-run"
        return renamed
    if type(name) is str:
        metadata["name"] = f"sim{name}"
    names = _names(renamed)
    for field, prefix in _NAMES.items():
        if type(names.get(field)) is str:
            names[field] = prefix + names[field]
    return renamed


def _restored(
    created: Mapping[str, Json], candidate: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the created object with the names that were signed.

    SAFETY: upstream does not compare these names, so with a dry run an object can be
    renamed.
    """
    restored = copy.deepcopy(dict(created))
    signed, metadata = candidate["metadata"], restored.get("metadata")
    if type(metadata) is dict:
        for field in ("name", "namespace"):
            metadata[field] = signed.get(field)
    if restored.get("kind") == _CRD:
        names = _names(restored)
        for field, prefix in _NAMES.items():
            if type(names.get(field)) is str:
                names[field] = names[field].removeprefix(prefix)
    return restored


def _names(document: Mapping[str, Json]) -> dict[str, Json]:
    spec = document.get("spec")
    names = spec.get("names") if type(spec) is dict else None
    return names if type(names) is dict else {}


def _gvk(document: Mapping[str, Json]) -> str:
    group, slash, version = str(document.get("apiVersion") or "").rpartition("/")
    return f"{group if slash else ''}/{version}, Kind={document.get('kind')}"
