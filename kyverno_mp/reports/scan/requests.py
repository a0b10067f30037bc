"""Build requests from scanned objects.

Room: reports. Takes: the JSON of an object. Gives: Requests, exclusions_of. Next:
reports/scan/evaluator.py, reports/scan/images.py.
May touch: the labels of namespaces, through program/ports.py.
Source: docs/behaviour/controllers 6.4; docs/behaviour/engine 8.5.

An object is evaluated as if an unknown user created it.
"""

from collections.abc import Callable

from kyverno_mp.kube.resource import Resource
from kyverno_mp.program.ports import Namespaces
from kyverno_mp.program.request import Request
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json


class Requests:
    """Builds requests; not thread-safe."""

    def __init__(self, namespaces: Namespaces | None) -> None:
        self._namespaces = namespaces

    def of(self, resource: Resource, raw: Json) -> Request:
        """Return a CREATE request for an object. Raises: DependencyError."""
        # K8S: the items of a list contain neither kind nor apiVersion.
        raw = {"apiVersion": resource.api_version, "kind": resource.kind, **raw}
        metadata = raw.get("metadata") or {}
        # K8S: managedFields name the writer of each field. No review contains them, and
        # they are half the object.
        metadata.pop("managedFields", None)
        namespace = str(metadata.get("namespace") or "")
        labels, is_known = self._labels(resource, namespace, metadata)
        return Request(
            group=resource.group,
            version=resource.version,
            kind=resource.kind,
            name=str(metadata.get("name") or ""),
            namespace=namespace,
            object=raw,
            namespace_labels=labels,
            namespace_known=is_known,
        )

    def _labels(
        self, resource: Resource, namespace: str, metadata: Json
    ) -> tuple[dict[str, str], bool]:
        if resource.kind == "Namespace" and not resource.group:
            return dict(metadata.get("labels") or {}), True
        if not namespace or self._namespaces is None:
            return {}, True
        labels = self._namespaces.labels(namespace)
        return dict(labels or {}), labels is not None


def exclusions_of(
    settings: Settings, is_filtered: Callable[[Request], bool]
) -> Callable[[Request], bool]:
    """Return whether an object is not scanned. ``is_filtered``: by resourceFilters."""
    if settings.reports_scan_ignores_filters:
        return lambda _request: False
    return is_filtered
