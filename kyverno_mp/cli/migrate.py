"""``migrate``: rewrite custom resources, so that etcd has the storage version.

Room: cli. Takes: names of CustomResourceDefinitions. Gives: its log, on standard
output. May touch: the API server through kube/: the definitions' objects and status.
Source: docs/behaviour/cli 19; Kubernetes, "Upgrade existing objects to a new stored
version".
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kyverno_mp.cli.apply.options import split
from kyverno_mp.cli.cluster.access import open_cluster
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.errors import KubeConflict, KubeNotFound, KubeRefused
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, keep, list_all
from kyverno_mp.values.jsonvalue import Json

_DEFINITIONS: Final = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)


def migrate(client: Client, names: Sequence[str]) -> None:
    """Migrate the objects of each definition; raises CommandFailed, DependencyError.

    A definition keeps its stored versions if an object could not be written.
    """
    objects = Objects(client)
    for name in names:
        say(f"migrating resource: {name} ...")
        definition = objects.find(_DEFINITIONS, ("", name))
        if definition is None:
            raise CommandFailed(
                f'customresourcedefinitions.apiextensions.k8s.io "{name}" not found'
            )
        version = _storage_version(definition)
        if not version:
            raise CommandFailed("stored version not found")
        say(f"stored version: {version}")
        if _stored_versions(definition) == [version]:
            say("stored version is already up to date, nothing to do")
            continue
        say("migrating resources...")
        _Writer(client, _resource_of(definition, version)).write_all()
        say("patching status...")
        _set_stored_version(objects, name, version)


def _storage_version(definition: Json) -> str:
    versions = definition["spec"]["versions"]
    return next(
        (str(version["name"]) for version in versions if version.get("storage")), ""
    )


def _stored_versions(definition: Json) -> Json:
    return (definition.get("status") or {}).get("storedVersions")


def _resource_of(definition: Json, version: str) -> Resource:
    spec = definition["spec"]
    return Resource(
        group=spec["group"],
        version=version,
        plural=spec["names"]["plural"],
        kind=spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
    )


class _Writer:
    """Writer that replaces every object of a resource by itself, page by page."""

    def __init__(self, client: Client, resource: Resource) -> None:
        self._client = client
        self._objects = Objects(client)
        self._resource = resource
        self._failed = 0

    def write_all(self) -> None:
        """Write all objects; raises CommandFailed if one could not be written."""
        scope = WatchScope(resource=self._resource)
        list_all(self._client, scope, self._write, restart=keep)
        if self._failed:
            raise CommandFailed(
                f"{self._failed} objects of {self._resource.plural} could not be"
                " written: the stored versions stay as they are"
            )

    def _write(self, raw: msgspec.Raw) -> None:
        document = msgspec.json.decode(raw)
        resource = self._resource
        document["apiVersion"], document["kind"] = resource.api_version, resource.kind
        try:
            self._objects.replace(resource, document)
        except (KubeConflict, KubeNotFound):
            # K8S: another client has written the object (in the storage version) or
            # deleted it.
            return
        except KubeRefused as error:
            self._failed += 1
            namespace, name = key_of(document)
            path = f"{namespace}/{name}" if namespace else name
            say(f"not written: {path}: {error.message}", err=True)


def _set_stored_version(objects: Objects, name: str, version: str) -> None:
    def edit(definition: Json) -> Json:
        # Objects may now be stored in a new version, which must stay listed.
        if _storage_version(definition) != version:
            raise CommandFailed(f"{name}: its storage version changed meanwhile")
        definition.setdefault("status", {})["storedVersions"] = [version]
        return definition

    objects.change(_DEFINITIONS, ("", name), edit, "status")


def called(resources: tuple[str, ...], kubeconfig: str, context: str) -> None:
    """Migrate the definitions; without any, there is nothing to do."""
    names = [name.strip() for name in split(resources)]
    if not all(names):
        raise CommandFailed("resource cannot be empty")
    if not names:
        # KYVERNO: the exit code is 0.
        say("nothing to migrate: name definitions with --resource", err=True)
    else:
        with open_cluster(kubeconfig, context) as cluster:
            migrate(cluster.client, names)
