"""``authors``: list namespaced policies whose author lacks a right, or is unknown.

Room: cli. Takes: a cluster. Gives: rows, as a table or JSON.
May touch: the API server through kube/ and egress/, standard output.
Source: docs/operate.md (the author of a namespaced policy).
"""

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from kyverno_mp.cli.cluster.access import open_cluster
from kyverno_mp.cli.cluster.resources import stored_objects
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.egress.access_reviews import LivePermissions
from kyverno_mp.egress.author_rights import author_of, lacking_rights, needs_rights
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.errors import InputError
from kyverno_mp.kube.policy_resources import resource_of
from kyverno_mp.kube.rest import Client
from kyverno_mp.policy.cel_kinds.served import decode_policy
from kyverno_mp.policy.ports import Authors, Kinds
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS

UNKNOWN: Final = "unknown"
LACKS: Final = "lacks rights"
INVALID: Final = "invalid"
RESOURCES: Final = tuple(resource_of(row.namespaced) for row in POLICY_KINDS)
"""The kinds of namespaced policies."""


class Row(NamedTuple):
    """A policy that an operator should look at."""

    kind: str
    namespace: str
    name: str
    author: str
    state: str
    reason: str


def rows(client: Client, kinds: Kinds, authors: Authors) -> Iterator[Row]:
    """Yield the policies without a known author who has the rights.

    Raises: DependencyError.
    """
    for raw in stored_objects(client, RESOURCES):
        row = _row(raw, kinds, authors)
        if row is not None:
            yield row


def _row(raw: Json, kinds: Kinds, authors: Authors) -> Row | None:
    metadata = raw["metadata"]
    namespace = metadata["namespace"]
    author = author_of(metadata.get("annotations"))
    named = author.name if author is not None else ""
    identity = (raw["kind"], namespace, metadata["name"], named)
    try:
        document = decode_policy(raw)
    except InputError as error:
        return Row(*identity, INVALID, error.message)
    if document is None:
        return Row(*identity, INVALID, "it cannot be read")
    if not needs_rights(document, kinds):
        return None
    if author is None:
        return Row(*identity, UNKNOWN, "")
    reason = lacking_rights(document, namespace, author, kinds, authors)
    return Row(*identity, LACKS, reason) if reason else None


def called(output: str, kubeconfig: str, context: str) -> None:
    """Print the rows; raises CommandFailed if an author lacks a right."""
    with open_cluster(kubeconfig, context) as cluster:
        client = cluster.client
        lacking = list(
            rows(client, LiveKinds(lambda: None, client), LivePermissions(client))
        )
    if output == "json":
        say(json.dumps([row._asdict() for row in lacking]))
    else:
        for row in lacking:
            author = f" (author: {row.author})" if row.author else ""
            line = f"{row.kind} {row.namespace}/{row.name}{author}: {row.state}"
            say(f"{line}: {row.reason}" if row.reason else line)
        if not lacking:
            say("every policy that uses permissions has an author who has them")
    if any(row.state == LACKS for row in lacking):
        raise CommandFailed("authors lack rights that their policies use")
