"""``facts``: export the data of a cluster that policies read, for runs without it.

Room: cli. Takes: policy files, or the policies of the cluster. Gives: one file in the
format of leader/cluster_data.py: Namespaces, the ConfigMaps that the policies name, the
data of GlobalContextEntries, PolicyExceptions. Next: cli/replay/facts.py, its reader.
May touch: files named by the user, the API server through kube/ and egress/, only
reading. Source: docs/replay.md (facts).

SAFETY: the file is made for pipelines, so no Secret is in it, whatever a policy names.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from kyverno_mp.cli.cluster.access import Cluster, open_cluster
from kyverno_mp.cli.cluster.live_data import ClusterPorts
from kyverno_mp.cli.cluster.resources import objects_of, stored_objects
from kyverno_mp.cli.output.files import replace_private
from kyverno_mp.cli.output.screen import one_line, say
from kyverno_mp.cli.output.yaml_text import dump
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.policies import sources
from kyverno_mp.egress.paths import normal_path
from kyverno_mp.errors import (
    ExpressionFailed,
    ExpressionInvalid,
    InputError,
    KubeNotFound,
    KubeRefused,
)
from kyverno_mp.expr.cel.nodes import Call, Const, Ident, Node
from kyverno_mp.expr.cel.syntax.parse import parse
from kyverno_mp.expr.template.scan import OPENING
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.policy_resources import CEL_EXCEPTIONS, EXCEPTIONS, resource_of
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.leader.context.cluster import ENTRIES
from kyverno_mp.leader.context.entries import list_path
from kyverno_mp.leader.context.resources import named_resource
from kyverno_mp.leader.context.sources import TOO_LARGE
from kyverno_mp.leader.objects import ANSWER_VERSION, FACTS
from kyverno_mp.limits import GLOBAL_CONTEXT_ENTRY_BYTES_MAX, POLICY_FILE_BYTES_MAX
from kyverno_mp.policy.checks.shared_entries import below, expressions
from kyverno_mp.policy.documents.global_context_entry import (
    ExternalAPICall,
    GlobalContextEntry,
    KubernetesResource,
)
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.policy.reading.load import load
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS

ANY: Final = "*"
"""Instead of a namespace that a policy computes."""
_NAMESPACES: Final = Resource(
    group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False
)
_CONFIG_MAPS: Final = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True
)
_ENTRY: Final = "GlobalContextEntry"
_SECRETS: Final = "Secrets are never exported"
_OTHER_CALLS: Final = "only GET calls of the API server itself are made"
_READS: Final = frozenset({"get", "Get"})
_LOOK_UP: Final = 4
"""Arguments of ``resource.get``: version, resource, namespace, name."""


class Named(NamedTuple):
    """A ConfigMap that policies read; ``namespace`` can be ANY."""

    namespace: str
    name: str


def named_config_maps(raw: Json) -> tuple[set[Named], list[str]]:
    """Return the ConfigMaps that a policy names, and the names that it computes."""
    named: set[Named] = set()
    computed: list[str] = []
    for namespace, name in (*_of_contexts(raw), *_of_expressions(raw)):
        if not name or OPENING in name:
            computed.append(name or "a computed name")
        else:
            named.add(Named(ANY if OPENING in namespace else namespace, name))
    return named, computed


def _of_contexts(raw: Json) -> Iterator[tuple[str, str]]:
    """Yield (namespace, name) of each context entry that reads a ConfigMap."""
    default = str(metadata_of(raw).get("namespace") or "default")
    for entry in _context_entries(raw):
        config_map, call = entry.get("configMap"), entry.get("apiCall")
        if type(config_map) is dict and type(config_map.get("name")) is str:
            yield str(config_map.get("namespace") or default), config_map["name"]
        if type(call) is dict and type(call.get("urlPath")) is str:
            yield from _of_path(call["urlPath"])


def _context_entries(raw: Json) -> Iterator[dict[str, Json]]:
    """Yield the entries of each ``context``; patterns can have ``configMap``, too."""
    waiting: list[Any] = [raw]
    while waiting:
        node = waiting.pop()
        waiting.extend(below(node))
        context = node.get("context") if type(node) is dict else None
        if type(context) is list:
            yield from (entry for entry in context if type(entry) is dict)


def _of_path(path: str) -> Iterator[tuple[str, str]]:
    match path.partition("?")[0].strip("/").split("/"):
        case ["api", "v1", "namespaces", namespace, "configmaps", name]:
            yield namespace, name
        case _:
            pass


def _of_expressions(raw: Json) -> Iterator[tuple[str, str]]:
    for text in expressions(raw):
        if "configmaps" not in text:
            continue
        try:
            waiting: list[Any] = [parse(text)]
        except ExpressionInvalid:
            continue
        while waiting:
            node = waiting.pop()
            waiting.extend(below(node))
            if type(node) is Call and _reads_config_map(node):
                yield _text_of(node.args[2]) or OPENING, _text_of(node.args[3])


def _reads_config_map(node: Call) -> bool:
    return (
        type(node.target) is Ident
        and node.target.name == "resource"
        and node.function in _READS
        and len(node.args) == _LOOK_UP
        and _text_of(node.args[1]) == "configmaps"
    )


def _text_of(node: Node) -> str:
    """Return a literal text, "" for any other expression."""
    return str(node.value) if type(node) is Const and node.kind == "string" else ""


class Export:
    """Reads a cluster; keeps the documents and what is not among them."""

    def __init__(self, cluster: Cluster) -> None:
        self._client: Client = cluster.client
        self._calls = ClusterPorts(cluster, Directory(()))
        self.documents: list[Json] = []
        self.left_out: list[dict[str, str]] = []
        self._is_list: dict[str, bool] = {}
        """Path of an entry -> whether the entry is a list of objects."""
        self._read: set[str] = set()

    def add_namespaces(self) -> None:
        """Add all Namespaces. Raises: DependencyError."""
        self._add(objects_of(self._client, WatchScope(resource=_NAMESPACES)))

    def add_config_maps(self, named: Iterable[Named]) -> None:
        """Add the ConfigMaps that exist. Raises: DependencyError."""
        config_maps: dict[tuple[str, str], Json] = {}
        for query in sorted(named):
            scope = WatchScope(
                resource=_CONFIG_MAPS,
                namespace="" if query.namespace == ANY else query.namespace,
                field_selector=f"metadata.name={query.name}",
            )
            for raw in objects_of(self._client, scope):
                metadata = raw["metadata"]
                config_maps[metadata["namespace"], metadata["name"]] = raw
        self._add(config_maps[key] for key in sorted(config_maps))

    def add_exceptions(self, namespace: str) -> None:
        """Add the PolicyExceptions that the service honours. Raises: DependencyError.

        ``namespace``: that of its setting; ANY: all namespaces, "": none.
        """
        kinds = (EXCEPTIONS, CEL_EXCEPTIONS) if namespace else ()
        self._add(
            raw
            for raw in stored_objects(self._client, kinds)
            if namespace in (ANY, raw["metadata"]["namespace"])
        )

    def add_entries(self, entries: Iterable[Json]) -> None:
        """Add GlobalContextEntries with their data; note those without data."""
        for raw in entries:
            name = raw["metadata"]["name"]
            try:
                entry = decode(raw)
                assert isinstance(entry, GlobalContextEntry)
                self._add(self._data_of(entry))
            except (InputError, ExpressionFailed, KubeRefused, KubeNotFound) as error:
                self.leave_out(_ENTRY, name, error.message)
            else:
                self._add([raw])

    def leave_out(self, kind: str, name: str, reason: str) -> None:
        """Note what a policy names and the file does not have."""
        self.left_out.append({"kind": kind, "name": name, "reason": reason})

    def _add(self, objects: Iterable[Json]) -> None:
        for raw in objects:
            raw["metadata"].pop("managedFields", None)
            self.documents.append(raw)

    def _data_of(self, entry: GlobalContextEntry) -> list[Json]:
        """Return the answer that has an entry's data, once for each path.

        Raises: InputError, ExpressionFailed, DependencyError.
        """
        spec = entry.spec
        read: Callable[[], Json]
        if spec.kubernetes_resource is not None:
            reference = spec.kubernetes_resource
            path, read = list_path(reference), partial(self._listed, reference)
        elif spec.api_call is not None:
            path, read = spec.api_call.url_path, partial(self._called, spec.api_call)
        else:
            raise InputError("cli.facts", "it names no data")
        is_list = spec.kubernetes_resource is not None
        if self._is_list.setdefault(path, is_list) is not is_list:
            # One is a list of whole objects, the other the API server's own answer.
            raise InputError("cli.facts", "another entry reads the same path otherwise")
        if path in self._read:
            return []
        response = read()
        if len(msgspec.json.encode(response)) > GLOBAL_CONTEXT_ENTRY_BYTES_MAX:
            raise InputError("cli.facts", TOO_LARGE)
        self._read.add(path)
        answer = {
            "apiVersion": ANSWER_VERSION,
            "kind": "ApiCallAnswer",
            "metadata": {"name": entry.metadata.name},
            "spec": {"method": "GET", "urlPath": path, "response": response},
        }
        return [answer]

    def _listed(self, reference: KubernetesResource) -> Json:
        if reference.resource.lower().partition("/")[0] == "secrets":
            raise InputError("cli.facts", _SECRETS)
        resource = named_resource(self._client, reference)
        scope = WatchScope(resource=resource, namespace=reference.namespace)
        items = objects_of(self._client, scope)
        for item in items:
            item["metadata"].pop("managedFields", None)
        return {"items": items}

    def _called(self, call: ExternalAPICall) -> Json:
        if call.service is not None or call.method != "GET":
            raise InputError("cli.facts", _OTHER_CALLS)
        parts = normal_path(call.url_path).partition("?")[0].lower().split("/")
        if "secrets" in parts:
            raise InputError("cli.facts", _SECRETS)
        if "proxy" in parts:
            # With the rights of whoever exports, a service could answer anything.
            raise InputError("cli.facts", _OTHER_CALLS)
        response = self._calls.call(ApiRequest("GET", call.url_path), 0)
        if type(response) is dict and str(response.get("kind")).startswith("Secret"):
            raise InputError("cli.facts", _SECRETS)
        return response


def called(
    policies: tuple[str, ...],
    output: str,
    exception_namespace: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Export what the policies read, to a file or standard output."""
    with open_cluster(kubeconfig, context) as cluster:
        export = Export(cluster)
        named: set[Named] = set()
        for raw in _policies(policies, cluster.client):
            in_policy, computed = named_config_maps(raw)
            named |= in_policy
            for name in computed:
                policy = str(metadata_of(raw).get("name", ""))
                reason = f"policy {policy} computes the name"
                export.leave_out(_CONFIG_MAPS.kind, name, reason)
        export.add_namespaces()
        export.add_config_maps(named)
        export.add_entries(stored_objects(cluster.client, (ENTRIES,)))
        export.add_exceptions(exception_namespace)
    head = {
        "apiVersion": ANSWER_VERSION,
        "kind": FACTS,
        "metadata": {"name": "facts"},
        "spec": {
            "exported": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "configMaps": [f"{namespace}/{name}" for namespace, name in sorted(named)],
            "leftOut": export.left_out,
            "documents": len(export.documents),
        },
    }
    text = "---\n".join(map(dump, [head, *export.documents]))
    if len(text.encode()) > POLICY_FILE_BYTES_MAX:
        raise CommandFailed(f"the facts have more than {POLICY_FILE_BYTES_MAX} bytes")
    _write(text, output)
    for missing in export.left_out:
        line = f"left out: {missing['kind']} {missing['name']}: {missing['reason']}"
        say(one_line(line), err=True)


def _policies(paths: Sequence[str], client: Client) -> Iterator[Json]:
    """Yield the documents of the files, or else the cluster's policies."""
    if not paths:
        kinds = [stored for row in POLICY_KINDS for stored in row.stored]
        yield from stored_objects(client, map(resource_of, kinds))
    for path in paths:
        is_empty = True
        try:
            for data, file in sources(path):
                for document in load(data, file=file):
                    if type(document.raw) is dict:
                        is_empty = False
                        yield document.raw
        except OSError as error:
            raise CommandFailed(read_error(error, error.filename or path)) from error
        if is_empty:
            raise CommandFailed(f"no policies in {path}")


def _write(text: str, output: str) -> None:
    """Write the file for its owner alone: ConfigMaps can have anything in them."""
    if not output:
        sys.stdout.write(text)
        return
    try:
        replace_private(Path(output), text)
    except OSError as error:
        raise CommandFailed(read_error(error, output)) from error
