"""Simulate a cluster from given objects.

Room: cli. Takes: ClusterResource files. Gives: the ports of program/ports.py.
May touch: nothing outside its arguments after loading, except registries.
Source: docs/behaviour/cli 6 (ClusterResource), 7, 7b, 15.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kyverno_mp.cli.cluster.given_cel import context_ports, simulated_ports
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.plurals import Plurals, plurals_of
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.policy.reading.load import items_of
from kyverno_mp.program.matching.subject import metadata_of, metadata_text
from kyverno_mp.program.ports import (
    ApiRequest,
    ClusterData,
    Images,
    ObjectQuery,
    ReadNamedSecret,
    ReviewedImages,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

if TYPE_CHECKING:
    from kyverno_mp.cli.sources.payloads import ContextFile

_HERE = Path()
_PLURALS = {"endpoints": "endpoints"}
_TARGETED = frozenset(
    {
        "configmaps",
        "daemonsets",
        "deployments",
        "namespaces",
        "resourcequotas",
        "secrets",
        "serviceaccounts",
        "statefulsets",
    }
)


def _plural(kind: str) -> str:
    """Return the resource name of a kind by the rule of client-go's fake clients."""
    low = kind.lower()
    if low in _PLURALS:
        return _PLURALS[low]
    if low.endswith("s"):
        return low + "es"
    return low[:-1] + "ies" if low.endswith("y") else low + "s"


class GivenObjects:
    """Objects by kind; answers ConfigMap look-ups and GET calls on API paths."""

    def __init__(self, objects: Sequence[Json], plurals: dict[str, str]) -> None:
        self._objects: dict[tuple[str, str], list[Json]] = {}
        for raw in objects:
            kind = str(raw.get("kind", ""))
            resource = plurals.get(kind) or _plural(kind)
            key = (str(raw.get("apiVersion", "")), resource)
            self._objects.setdefault(key, []).append(raw)

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Return the ConfigMap; raises ExpressionFailed if it does not exist."""
        del deadline_ns
        config_map = self._find(("v1", "configmaps"), namespace, name)
        if config_map is None:
            raise ExpressionFailed(
                "context.configmap_not_found",
                f"failed to get configmap {namespace}/{name} :"
                f' configmaps "{name}" not found',
            )
        return config_map

    def _find(self, key: tuple[str, str], namespace: str, name: str) -> Json | None:
        for raw in self._objects.get(key, []):
            metadata = metadata_of(raw)
            if metadata.get("name") == name and (
                not namespace or metadata.get("namespace", "default") == namespace
            ):
                return raw
        return None

    def call(self, request: ApiRequest, _deadline_ns: int) -> Json:
        """Answer a GET of one object or a list; raises ExpressionFailed otherwise."""
        path = urlsplit(request.path).path
        if request.url or request.method != "GET":
            raise ExpressionFailed(
                "context.apicall", f"{request.method} {request.url or path}: not given"
            )
        parts = [part for part in path.split("/") if part]
        version = "v1" if parts[:1] == ["api"] else "/".join(parts[1:3])
        rest = parts[2:] if parts[:1] == ["api"] else parts[3:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:  # noqa: PLR2004 - ns, name, resource
            namespace, rest = rest[1], rest[2:]
        if not rest:
            raise ExpressionFailed("context.apicall", f"GET {path}: not given")
        key = (version, rest[0])
        if len(rest) > 1:
            answer = self._find(key, namespace, rest[1])
            if answer is None:
                raise ExpressionFailed(
                    "context.apicall",
                    f"failed to GET resource with raw url: {path}:"
                    f' {rest[0]} "{rest[1]}" not found',
                )
            return answer
        items = [
            raw
            for raw in self._objects.get(key, [])
            if not namespace
            or metadata_of(raw).get("namespace", "default") == namespace
        ]
        return {"apiVersion": version, "kind": "List", "metadata": {}, "items": items}


class GivenTargets:
    """The objects that mutate-existing rules can find."""

    def __init__(self, objects: Sequence[Json], *, is_cluster: bool = False) -> None:
        """``is_cluster``: ClusterResource files are given, so every kind is known."""
        self._objects = sorted(objects, key=_place_of)
        self._is_cluster = is_cluster
        self._kinds = {str(raw.get("kind")) for raw in objects}

    def objects(self, object_query: ObjectQuery, _deadline_ns: int) -> list[Json]:
        """Return the requested objects, sorted by namespace and name.

        Raises: ExpressionFailed if the named object does not exist.
        """
        resource = _plural(object_query.kind)
        # KYVERNO: without ClusterResources, only the kinds of client-go's fake exist;
        # here, those of the given objects exist, too, as in upstream's `test`.
        is_known = self._is_cluster or resource in _TARGETED
        if not is_known and object_query.kind not in self._kinds:
            raise ExpressionFailed("cli.unknown_kind", "not found")
        objects = [raw for raw in self._objects if _is_asked(raw, object_query)]
        if not objects and object_query.is_one:
            group = (
                f".{object_query.group}" if object_query.group not in ("", "*") else ""
            )
            raise ExpressionFailed(
                "cli.target_not_found",
                f'{resource}{group} "{object_query.name}" not found',
            )
        return objects


def _place_of(raw: Json) -> tuple[str, str]:
    return metadata_text(raw, "namespace"), metadata_text(raw, "name")


def _is_asked(raw: Json, object_query: ObjectQuery) -> bool:
    group, _, version = str(raw.get("apiVersion", "")).rpartition("/")
    namespace, name = _place_of(raw)
    return (
        not object_query.subresource
        and matches(object_query.group, group)
        and matches(object_query.version, version)
        and matches(object_query.kind, str(raw.get("kind", "")))
        and (not object_query.namespace or matches(object_query.namespace, namespace))
        and (not object_query.name or matches(object_query.name, name))
    )


def load_cluster_data(  # noqa: PLR0913 - the inputs of a run, keyword-only
    paths: Sequence[str],
    *,
    folder: Path = _HERE,
    registry: bool = False,
    layout: str = "",
    targets: Sequence[Json] = (),
    resources: Sequence[Json] = (),
    context: "ContextFile | None" = None,
    plurals: Plurals | None = None,
) -> ClusterData:
    """Return cluster data from ClusterResource files and mutate-existing targets.

    Without either there is no client, and rules with targets fail with that message.
    ``layout``: a folder of images instead of registries; ``resources``: the objects of
    the run, which a simulated cluster contains, too; ``context``: the data for policies
    in CEL without a cluster; ``plurals``: plural names of more kinds.
    """
    objects: list[Json] = []
    for path in paths:
        objects += _cluster_objects(Path(path))
    defined = plurals_of(cluster_definitions(paths, folder))
    by_kind = {kind: plural for (_, kind), plural in defined.items()}
    given_objects = GivenObjects(objects, by_kind) if paths else None
    registry = registry or bool(layout)
    images = registry_images(layout) if registry else None
    if paths:
        everything = [*resources, *targets, *objects]
        cel = simulated_ports(everything, (plurals or {}) | defined, images)
    else:
        cel = context_ports(context, plurals)
    return ClusterData(
        cel=cel,
        config_maps=given_objects,
        api_calls=given_objects,
        images=images,
        reviewed_images=image_verification(layout) if registry else None,
        objects=(
            GivenTargets([*objects, *targets], is_cluster=bool(paths))
            if paths or targets
            else None
        ),
        random_bytes=os.urandom,
        resolve_host=resolve_host,
    )


def _cluster_objects(path: Path) -> list[Json]:
    """Return the objects of a ClusterResource file; raises CommandFailed."""
    # Imported late: rarely needed.
    from kyverno_mp.cli.sources.shapes import CLUSTER_FILE
    from kyverno_mp.cli.sources.strict import objects_of, read_fields

    try:
        documents = objects_of(read_fields(path, CLUSTER_FILE).get("spec", {}))
    except CommandFailed as error:
        message = f"error: failed to load Kubernetes resources: {error.message}"
        raise CommandFailed(message) from error
    objects: list[Json] = []
    for raw in documents:
        # K8S: the object tracker of client-go adds the items of a list, too.
        items = items_of(raw)
        objects.extend([raw] if items is None else [item for _, item in items])
    return objects


def cluster_definitions(paths: Sequence[str], folder: Path) -> list[Json]:
    """Return the CustomResourceDefinitions of ClusterResource files.

    KYVERNO: their paths are relative to the test, not to the file. Raises:
    CommandFailed.
    """
    if not paths:
        return []
    from kyverno_mp.cli.sources.shapes import CLUSTER_FILE, CRD_FILE
    from kyverno_mp.cli.sources.strict import read_fields

    definitions: list[Json] = []
    for path in paths:
        spec = read_fields(Path(path), CLUSTER_FILE).get("spec", {})
        for crd in spec.get("crds", []):
            file = folder / crd
            try:
                definitions.append(read_fields(file, CRD_FILE))
            except CommandFailed as error:
                message = (
                    f"error: failed to load CRDs from path {file}: {error.message}"
                )
                raise CommandFailed(message) from error
    return definitions


def registry_images(layout: str = "") -> Images:
    """Return the registry port, with the credentials of docker's configuration.

    ``layout``: a folder to read instead of registries.
    """
    # PERF: importing TLS takes 20 ms; only runs with --registry need it.
    if layout:
        from kyverno_mp.cli.cluster.image_access import layout_client
        from kyverno_mp.cli.cluster.registry_access import RegistryImages

        return RegistryImages(layout_client(layout))
    from kyverno_mp.cli.cluster.registry_access import RegistryImages, docker_client

    return RegistryImages(docker_client())


def image_verification(
    layout: str = "", key_secrets: ReadNamedSecret | None = None
) -> Callable[[], ReviewedImages]:
    """Return the port of verifyImages rules, with docker's credentials."""
    from kyverno_mp.cli.cluster.image_access import image_reviews

    return image_reviews(uses_docker=True, layout=layout, key_secrets=key_secrets)
