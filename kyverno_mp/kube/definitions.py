"""Distinguish a kind that does not exist from one that is not served at the moment.

Room: kube. Takes: a Client, a Resource of a CustomResourceDefinition. Gives:
check_undefined, find_defined. Next: background/mutate/cel_policies.py,
cleanup/exceptions.py. May touch: the API server through kube/rest.py.
Source: Kubernetes API concepts; docs/behaviour/controllers 14.

K8S: the server answers 404 in both cases, e.g. while a definition is being replaced or
stops serving a version. When a definition is deleted, its objects are deleted with it.
So only a missing definition or an empty list proves that no objects exist.
"""

from typing import Final

from kyverno_mp.errors import KubeNotFound, KubeUnavailable
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.jsonvalue import Json

_DEFINITIONS: Final = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)


def check_undefined(client: Client, resource: Resource) -> None:
    """Raise if the kind has a definition; without a definition, no objects exist.

    Raises: KubeUnavailable if the kind is defined but not served; DependencyError.
    """
    name = f"{resource.plural}.{resource.group}"
    try:
        client.get(_DEFINITIONS.object(("", name)))
    except KubeNotFound:
        return
    message = f"{name} is defined, but {resource.api_version} is not served"
    raise KubeUnavailable("kube.not_served", message)


def find_defined(client: Client, resource: Resource, key: Key) -> Json | None:
    """Return an object; None if the object or its kind's definition does not exist.

    Raises: KubeUnavailable if the kind is not served; DependencyError.
    """
    try:
        return client.get(resource.object(key))
    except KubeNotFound:
        pass
    namespace, name = key
    query = [("fieldSelector", f"metadata.name={name}")]
    try:
        listing = client.get(resource.collection(namespace), query)
    except KubeNotFound:
        check_undefined(client, resource)
        return None
    for item in listing.get("items") or ():
        if item["metadata"].get("name") == name:
            return item
    return None
