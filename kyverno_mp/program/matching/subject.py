"""Read the fields that matching needs: the object's kind, name and namespace.

Room: program. Takes: a Request and one of its objects. Gives: strings, "" if absent.
Next: program/matching/filter, program/matching/filters, program/matching/candidates,
which must use the same values.
Source: docs/behaviour/engine 1.3, 1.4; Kyverno pkg/utils/admission/resource.go.
"""

from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

_NO_METADATA: dict[str, Json] = {}


def metadata_of(resource: dict[str, Json]) -> dict[str, Json]:
    """Return the object's metadata, {} if it has none."""
    metadata = resource.get("metadata")
    return metadata if type(metadata) is dict else _NO_METADATA


def metadata_text(resource: dict[str, Json], key: str) -> str:
    """Return a string field of the object's metadata, "" for any other type.

    KYVERNO: a number, possible in a file, is not a name (docs/behaviour/cli 5).
    """
    value = metadata_of(resource).get(key)
    return value if type(value) is str else ""


def resource_kind(request: Request, resource: dict[str, Json]) -> str:
    """Return the object's own kind (for a subresource, e.g. PodExecOptions)."""
    kind = resource.get("kind")
    return kind if type(kind) is str and kind else request.kind


def resource_name(resource: dict[str, Json]) -> str:
    """Return metadata.name, or metadata.generateName if the name is empty."""
    metadata = metadata_of(resource)
    name = metadata.get("name") or metadata.get("generateName")
    return name if type(name) is str else ""


def object_name(resource: dict[str, Json]) -> str:
    """Return metadata.name only: in CEL a generateName is not a name."""
    name = metadata_of(resource).get("name")
    return name if type(name) is str else ""


def resource_namespace(request: Request, resource: dict[str, Json]) -> str:
    """Return the namespace of the object.

    KYVERNO: the request's namespace is written into the object. A Namespace has no
    namespace, although the API server sets its request's namespace.
    """
    if resource_kind(request, resource) == "Namespace":
        return ""
    if request.namespace:
        return request.namespace
    namespace = metadata_of(resource).get("namespace")
    return namespace if type(namespace) is str else ""


def criterion_namespace(request: Request, resource: dict[str, Json]) -> str:
    """Return the text to compare with ``namespaces``; for a Namespace, its own name."""
    if resource_kind(request, resource) == "Namespace":
        name = metadata_of(resource).get("name")
        return name if type(name) is str else ""
    return resource_namespace(request, resource)
