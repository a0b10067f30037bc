"""Preview the effect of policies on a cluster, for ``cleanup`` and ``generate``.

Room: cli. Takes: policy files or names of stored policies, a cluster, the functions of
one command. Gives: a table or JSON on standard output, the exit code.
Next: cli/cleanup.py, cli/generate.py. May touch: the API server through kube/, only
reading; files named by the user.
Source: docs/cleanup.md (preview), docs/background.md (preview).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import click
import msgspec

from kyverno_mp.cli.cluster.access import Cluster, open_cluster
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.reading import read_file, read_standard_input
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json

P = TypeVar("P")
V = TypeVar("V")


class PreviewOptions(NamedTuple):
    """Namespaces of the installation, which affect a preview."""

    kyverno: str
    """Kyverno's namespace."""
    exceptions: str = ""
    """Namespace whose PolicyExceptions apply to policies in CEL; "*" = all, "" =
    none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCommand(Generic[P, V]):
    """The functions of one command: read a policy, preview policies, show previews."""

    cluster_wide: Sequence[Resource]
    namespaced: Sequence[Resource]
    policy: str
    """Name of the policies in messages, e.g. ``clean-up policy``."""
    object: str
    """Name of the objects in messages, e.g. ``objects to delete``."""
    read: Callable[[Resource, Json, str], P | None]
    """Decode a document with this location; return None if it has no such rules.

    Raises: CommandFailed, PolicyInvalid.
    """
    preview: Callable[[Cluster, Sequence[P], PreviewOptions], Sequence[V]]
    """Preview the policies. Raises: DependencyError, InputError."""
    record: Callable[[V], Json]
    """Return the record of ``--output json``."""
    show: Callable[[Sequence[V]], None]
    """Print the table."""
    problems: Callable[[V], Sequence[str]]
    """Return a text for each undecided part."""

    def run(  # noqa: PLR0913 - the flags
        self,
        policies: tuple[str, ...],
        *,
        is_cluster: bool,
        output: str,
        kubeconfig: str,
        context: str,
        kyverno_namespace: str,
        exception_namespace: str = "",
    ) -> int:
        """Show the previews; exit with 1 if a part could not be decided."""
        if not is_cluster:
            raise CommandFailed(f"give --cluster: only a cluster has {self.object}")
        with open_cluster(kubeconfig, context) as cluster:
            chosen = list(self._policies(cluster, policies))
            if not chosen:
                raise CommandFailed(f"no {self.policy} in {', '.join(policies)}")
            options = PreviewOptions(kyverno_namespace, exception_namespace)
            previews = self.preview(cluster, chosen, options)
        if output == "json":
            records = [self.record(preview) for preview in previews]
            body = msgspec.json.encode({"policies": records})
            click.echo(msgspec.json.format(body).decode())
        else:
            self.show(previews)
        problems = [
            problem for preview in previews for problem in self.problems(preview)
        ]
        if output == "table":
            for problem in problems:
                say(f"not decided: {problem}", err=True)
        return 1 if problems else 0

    def _policies(self, cluster: Cluster, names: Sequence[str]) -> Iterator[P]:
        """Read policies from files, or from the cluster if no such file exists."""
        for name in names:
            if name == "-" or Path(name).exists():
                yield from self._of_file(name)
            else:
                yield from self._of_cluster(cluster, name)

    def _of_file(self, path: str) -> Iterator[P]:
        kinds = {
            resource.kind: resource
            for resource in (*self.cluster_wide, *self.namespaced)
        }
        is_input = path == "-"
        data = read_standard_input() if is_input else read_file(path, is_argument=True)
        documents = load(data, file=path)
        for document in documents:
            raw = document.raw
            resource = kinds.get(raw.get("kind", "")) if isinstance(raw, dict) else None
            policy = None if resource is None else self.read(resource, raw, path)
            if policy is not None:
                yield policy

    def _of_cluster(self, cluster: Cluster, name: str) -> Iterator[P]:
        """Read the stored policies with the name, at most one of each kind."""
        namespace, _, base_name = name.rpartition("/")
        resources = self.namespaced if namespace else self.cluster_wide
        objects = Objects(cluster.client)
        lookups = [
            (resource, objects.find(resource, (namespace, base_name)))
            for resource in resources
        ]
        stored = [(resource, raw) for resource, raw in lookups if raw is not None]
        if not stored:
            kinds = " or ".join(resource.kind for resource in reversed(resources))
            raise CommandFailed(f"{kinds} {name}: no such file, and not in the cluster")
        read = [self.read(resource, raw, name) for resource, raw in stored]
        if not any(policy is not None for policy in read):
            raise CommandFailed(f"{name}: not a {self.policy}")
        yield from (policy for policy in read if policy is not None)


def print_columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns below their headers; nothing without rows."""
    if not rows:
        return
    lines = [headers, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        say("   ".join(cell.ljust(width) for cell, width in cells).rstrip())
