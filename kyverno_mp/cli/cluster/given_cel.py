"""Simulate a cluster and registries for policies in CEL, from given objects.

Room: cli. Takes: a Context file, or the objects of a simulated cluster. Gives: the
ports of CEL. Next: data.py.
Source: docs/behaviour/cel 12 (fake context); docs/behaviour/cli 6 (Context), 15.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.plurals import Plurals, known_plurals
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.matching.subject import metadata_of, metadata_text
from kyverno_mp.program.ports import CelPorts, Images
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN
from kyverno_mp.values.kubernetes.selector import labels_of

if TYPE_CHECKING:
    from kyverno_mp.cli.sources.payloads import ContextFile
    from kyverno_mp.expr.cel.outside import HttpPort, HttpRequest, ImagePort

_Key = tuple[str, str]
_OF_STORED = (
    "uid",
    "managedFields",
    "annotations",
    "resourceVersion",
    "creationTimestamp",
)
CLUSTER_SCOPED = frozenset(
    (built_in.api_version, built_in.kind)
    for built_in in BUILT_IN
    if not built_in.is_namespaced
)


class GivenResources:
    """Objects by apiVersion and plural name; the port of ``resource``.

    ``is_cluster``: answer like a real cluster, otherwise like upstream's context.
    """

    def __init__(
        self, objects: Sequence[Json], plurals: Plurals | None, *, is_cluster: bool
    ) -> None:
        self._plurals = known_plurals(plurals)
        self._is_cluster = is_cluster
        self._objects: dict[_Key, list[Json]] = {}
        self._add(objects)

    def _add(self, objects: Sequence[Json]) -> None:
        for raw in objects:
            api_version = str(raw.get("apiVersion", ""))
            plural = self._plural_of(api_version, str(raw.get("kind", "")))
            if plural:
                self._objects.setdefault((api_version, plural), []).append(raw)
            elif not self._is_cluster:
                kind = raw.get("kind", "")
                message = f'no matches for kind "{kind}" in version "{api_version}"'
                raise CommandFailed(message)

    def with_objects(self, objects: Sequence[Json]) -> "GivenResources":
        """Return a copy with more objects; objects of unknown kinds are skipped."""
        given_resources = GivenResources((), self._plurals, is_cluster=self._is_cluster)
        added = [
            raw
            for raw in objects
            if self._plural_of(str(raw.get("apiVersion", "")), str(raw.get("kind", "")))
        ]
        for listed in (*self._objects.values(), added):
            given_resources._add(listed)
        return given_resources

    def _plural_of(self, api_version: str, kind: str) -> str:
        return self._plurals.get((api_version.rpartition("/")[0], kind), "")

    def get(
        self, api_version: str, plural: str, key: tuple[str, str], _deadline_ns: int
    ) -> Json | None:
        """Return the object, None if there is none."""
        resource = plural.partition("/")[0]
        # Of several objects with the same name, the last one counts.
        for raw in reversed(self._objects.get((api_version, resource), [])):
            if (metadata_text(raw, "namespace"), metadata_text(raw, "name")) == key:
                return raw
        return None

    def list(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        _deadline_ns: int,
    ) -> Json:
        """Return the objects.

        KYVERNO: a context ignores labels, does not treat namespace "" as all
        namespaces, and fails for an unknown resource (docs/behaviour/cel 12).
        """
        listed = self._objects.get((api_version, plural))
        if self._is_cluster:
            items = [
                raw
                for raw in listed or ()
                if namespace in ("", metadata_text(raw, "namespace"))
                and labels.items() <= labels_of(metadata_of(raw).get("labels")).items()
            ]
            kind = {"apiVersion": api_version, "kind": "List", "metadata": {}}
            return {**kind, "items": items}
        if listed is None:
            group = api_version.rpartition("/")[0]
            name = f"{plural}.{group}" if group else plural
            raise ExpressionFailed("cli.unknown_resource", f"{name} resource not found")
        return {
            "items": [
                raw for raw in listed if metadata_text(raw, "namespace") == namespace
            ]
        }

    def post(
        self,
        _api_version: str,
        plural: str,
        _namespace: str,
        _body: Json,
        _deadline_ns: int,
    ) -> Json:
        """Raise ExpressionFailed: a simulated cluster creates nothing."""
        raise ExpressionFailed("cli.no_cluster", f"{plural}: there is no cluster here")

    def plural(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind. Raises: ExpressionFailed."""
        plural = self._plural_of(api_version, kind)
        if not plural:
            message = f'no matches for kind "{kind}" in version "{api_version}"'
            raise ExpressionFailed("resource.kind", message)
        return plural


class GivenImages:
    """The image data of a Context file, by the name in the expression."""

    def __init__(self, images: Mapping[str, Json]) -> None:
        self._images = images

    def metadata(self, image: str, _deadline_ns: int) -> Json:
        """Return the data. Raises: ExpressionFailed."""
        metadata = self._images.get(image)
        if metadata is None:
            message = f"image data for {image} not found in the context"
            raise ExpressionFailed("cli.image", message)
        return metadata


class GeneratedObjects:
    """The objects that policies generate; they are kept and not created.

    ``is_cluster``: behave like a real cluster, otherwise like upstream's context.
    """

    def __init__(self, *, is_cluster: bool) -> None:
        self._is_cluster = is_cluster
        self._objects: list[dict[str, Json]] = []

    def generate(
        self, namespace: str, objects: Sequence[dict[str, Json]], _deadline_ns: int
    ) -> None:
        """Store the objects, and the items of lists. Raises: ExpressionFailed."""
        for raw in objects:
            items = raw.get("items")
            for item in items if type(items) is list else [raw]:
                self._objects.append(self._placed(item, namespace))

    def take(self) -> list[dict[str, Json]]:
        """Return the stored objects, and clear the list."""
        objects, self._objects = self._objects, []
        return objects

    def _placed(self, raw: dict[str, Json], namespace: str) -> dict[str, Json]:
        """Return a copy of the object in the namespace, whatever its kind's scope."""
        metadata = dict(metadata_of(raw))
        if self._is_cluster:
            key = (str(raw.get("apiVersion", "")), str(raw.get("kind", "")))
            if key in CLUSTER_SCOPED and namespace:
                raise ExpressionFailed(
                    "generate.scope",
                    "cross-scope generation denied: a policy scoped to namespace"
                    f' "{namespace}" cannot generate cluster-scoped resource'
                    f" {key[0]}/{key[1]}",
                )
            for name in _OF_STORED:
                metadata.pop(name, None)
        metadata.pop("namespace", None)
        if namespace:
            metadata["namespace"] = namespace
        return {**raw, "metadata": metadata}


class LateServices:
    """Services by URL, opened at the first call; closed by default, as in the service.

    PERF: importing HTTP and TLS takes 20 ms; only policies that call services need it.
    """

    def __init__(self) -> None:
        self._services: HttpPort | None = None

    def exchange(self, request: "HttpRequest", deadline_ns: int) -> tuple[int, bytes]:
        """Return status and body. Raises: ExpressionFailed, DeadlinePassed."""
        if self._services is None:
            from kyverno_mp.cli.cluster.access import USER_AGENT
            from kyverno_mp.egress.addresses import read_rules
            from kyverno_mp.egress.hosts import resolve_host
            from kyverno_mp.egress.services import ServiceRules, Services
            from kyverno_mp.settings.settings import Settings

            defaults = Settings()
            rules = read_rules(
                defaults.http_allowlist,
                defaults.http_blocklist,
                for_namespaced=defaults.http_in_namespaced_policies,
            )
            self._services = Services(
                ServiceRules(urls=rules), resolve_host, USER_AGENT
            )
        return self._services.exchange(request, deadline_ns)


def context_ports(
    context: "ContextFile | None", plurals: Plurals | None = None
) -> CelPorts:
    """Return the ports of a run without a cluster. Raises: CommandFailed."""
    resources = () if context is None else context.resources
    images = {} if context is None else context.images
    return CelPorts(
        resources=GivenResources(resources, plurals, is_cluster=False),
        images=GivenImages(images),
        services=LateServices(),
    )


def simulated_ports(
    objects: Sequence[Json], plurals: Plurals, images: Images | None
) -> CelPorts:
    """Return the ports of a run with a simulated cluster."""
    metadata: ImagePort | None = None
    if images is not None:
        # Imported late: only runs that read registries need these.
        from kyverno_mp.images.metadata import RegistryMetadata

        metadata = RegistryMetadata(images)
    return CelPorts(
        resources=GivenResources(objects, plurals, is_cluster=True),
        images=metadata,
        services=LateServices(),
    )
