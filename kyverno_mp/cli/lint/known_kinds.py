"""Read the kinds that ``lint`` knows besides the built-in ones.

Room: cli. Takes: the flags of lint. Gives: KnownKinds. Next: command.
May touch: the files of ``--crd-paths``, the API server with ``--cluster``.
Source: docs/behaviour/cli 5 (REST mapper).
"""

from collections.abc import Iterator, Sequence

from kyverno_mp.cli.apply.options import split
from kyverno_mp.cli.lint.kinds import KnownKinds
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.plurals import load_definitions
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import ApiResource


def known_kinds(
    crd_paths: Sequence[str], *, cluster: bool, kubeconfig: str, context: str
) -> KnownKinds:
    """Return the known kinds. Raises: CommandFailed, DependencyError."""
    if (kubeconfig or context) and not cluster:
        raise CommandFailed("--kubeconfig and --context need --cluster")
    defined = [
        resource
        for raw in load_definitions(split(crd_paths))
        for resource in _resources(raw["spec"])
    ]
    if cluster:
        return KnownKinds([*defined, *_served(kubeconfig, context)], is_cluster=True)
    return KnownKinds(defined)


def _resources(spec: dict[str, Json]) -> Iterator[ApiResource]:
    """Yield the kind of a CustomResourceDefinition, once for each version."""
    names = spec["names"]
    versions = spec.get("versions")
    for version in versions if type(versions) is list else ():
        yield ApiResource(
            str(spec.get("group", "")),
            str(version.get("name", "")) if type(version) is dict else "",
            str(names.get("kind", "")),
            str(names.get("plural", "")),
            spec.get("scope") == "Namespaced",
        )


def _served(kubeconfig: str, context: str) -> list[ApiResource]:
    """Return the kinds of a cluster in all their versions."""
    # Imported late: the client takes 60 ms, and only --cluster needs it.
    from kyverno_mp.cli.cluster.access import open_cluster
    from kyverno_mp.kube.discovery import Discovery

    with open_cluster(kubeconfig, context) as cluster:
        discovery = Discovery(cluster.client)
        discovery.refresh()
        return [
            ApiResource(
                resource.group,
                resource.version,
                resource.kind,
                resource.plural,
                resource.namespaced,
            )
            for resource in discovery.directory.resources
            if not resource.subresource
        ]
