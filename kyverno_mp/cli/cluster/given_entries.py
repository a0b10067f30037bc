"""Answer reads of GlobalContextEntries from given data.

Room: cli. Takes: the mocks of a test, or GlobalContextEntries among the objects of
``apply``. Gives: GivenEntries, the port of ``globalContext`` and ``globalReference``.
Next: cli/testing/mocks.py, cli/apply/command.py.
Source: docs/behaviour/v1.19 8; Kyverno
cmd/cli/kubectl-kyverno/commands/apply/global_context.go at v1.19.0.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.plurals import Plurals, known_plurals
from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.policy.documents.global_context_entry import opened_to
from kyverno_mp.program.matching.subject import metadata_of, metadata_text
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.jsonvalue import Json

_KIND: Final = "GlobalContextEntry"
_GROUP: Final = "kyverno.io/"


class Given(NamedTuple):
    """The data of an entry, and its projections by name."""

    data: Json
    projections: Mapping[str, Json]
    opened_to: frozenset[str] = frozenset()
    """The namespaces whose policies may read the entry."""


@dataclass(frozen=True, slots=True)
class GivenEntries:
    """The entries by name."""

    by_name: Mapping[str, Given]

    def reference(self, name: str, projection: str) -> Json:
        """Return the data, None for an unknown entry. Raises: ExpressionFailed."""
        entry = self.by_name.get(name)
        if entry is None:
            return None
        if not projection:
            return entry.data
        if projection not in entry.projections:
            message = f'projection "{projection}" not found in global context entry'
            raise ExpressionFailed("cli.projection", f'{message} "{name}"')
        return entry.projections[projection]

    def opens(self, name: str, namespace: str) -> bool:
        """Return whether policies of the namespace may read the entry."""
        entry = self.by_name.get(name)
        return entry is not None and namespace in entry.opened_to

    def entry(self, name: str) -> Json:
        """Return the data of ``entry`` or ``entry.projection``.

        KYVERNO: an entry with a dot in its name cannot be read, as in a cluster.
        Raises: ExpressionFailed.
        """
        entry, _, rest = name.partition(".")
        if entry not in self.by_name:
            message = f"failed to fetch entry key={entry}"
            raise ExpressionFailed("context.global_entry", message)
        return self.reference(entry, rest.partition(".")[0])


def with_entries(
    objects: Sequence[Json], plurals: Plurals, data: ClusterData
) -> ClusterData:
    """Return the data with the GlobalContextEntries among the objects.

    An entry contains the objects of its kind. KYVERNO: entries that call services have
    no data.
    Raises: CommandFailed.
    """
    by_name: dict[str, Given] = {}
    for raw in objects:
        if raw.get("kind") != _KIND:
            continue
        if not str(raw.get("apiVersion") or "").startswith(_GROUP):
            continue
        spec = raw.get("spec") or {}
        resource = spec.get("kubernetesResource")
        name = metadata_text(raw, "name")
        if type(resource) is dict:
            listed = _listed(objects, known_plurals(plurals), resource)
            by_name[name] = Given(
                listed,
                {
                    str(projection.get("name")): searched(
                        str(projection.get("jmesPath") or ""),
                        listed,
                        f"projection {projection.get('name')} of {_KIND} {name}",
                    )
                    for projection in spec.get("projections") or ()
                },
                frozenset(opened_to(metadata_of(raw).get("annotations") or {})),
            )
    if not by_name:
        return data
    entries = GivenEntries(by_name)
    cel = data.cel._replace(references=entries)
    return replace(data, global_context=entries, cel=cel)


def _listed(objects: Sequence[Json], plurals: Plurals, resource: Json) -> list[Json]:
    group, version = resource.get("group") or "", resource.get("version") or ""
    api_version = f"{group}/{version}" if group else version
    namespace = resource.get("namespace") or ""
    return [
        raw
        for raw in objects
        if raw.get("apiVersion") == api_version
        and plurals.get((group, str(raw.get("kind")))) == resource.get("resource")
        and namespace in ("", metadata_text(raw, "namespace"))
    ]


def searched(query: str, data: Json, source: str) -> Json:
    """Return the result of a JMESPath. Raises: CommandFailed."""
    from kyverno_mp.expr.jmespath.query import search  # rarely needed

    runtime = Runtime(now=_now, monotonic_ns=time.monotonic_ns)
    try:
        return search(query)(runtime, data)
    except (ExpressionFailed, ExpressionInvalid) as error:
        raise CommandFailed(f"{source}: {error.message}") from error


def _now() -> datetime:
    return datetime.now(UTC)
