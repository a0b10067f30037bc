"""Answer reads of the cluster from a file of ``facts``; other reads stay unknown.

Room: cli. Takes: a file or folder in the format of leader/cluster_data.py. Gives:
ClusterFacts, and its ports in place of those of unrecorded.py. Next: verdicts.
May touch: files named by the user. Source: docs/replay.md (facts).

What the file does not have is unknown, unless its head says that it was looked for:
only then it does not exist. The rest is the service's own code.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from kyverno_mp.cli.replay.unrecorded import (
    Known,
    Note,
    Unrecorded,
    UnrecordedCel,
)
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.policies import sources, stored_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.errors import InputError
from kyverno_mp.leader.cluster_data import segments_of, values_of
from kyverno_mp.leader.context.entries import list_path
from kyverno_mp.leader.objects import ANSWER_VERSION, FACTS, name_of
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.documents.global_context_entry import GlobalContextEntry
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.policy.reading.load import load
from kyverno_mp.program.matching.subject import metadata_of, metadata_text
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.snapshot.data import DataSegment, encode_data
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_POLICY_EXCEPTION,
    POLICY_EXCEPTION,
)
from kyverno_mp.values.kubernetes.selector import labels_of
from kyverno_mp.webhook.shared import SharedClusterData

_SALT: Final = bytes(16)
_ENTRY: Final = "GlobalContextEntry"
_PLURALS: Final = {"ConfigMap": "configmaps", "Namespace": "namespaces"}
_EXCEPTIONS: Final = frozenset(
    (api_version, kind.kind)
    for kind in (POLICY_EXCEPTION, CEL_POLICY_EXCEPTION)
    for api_version in kind.api_versions
)


class ClusterFacts:
    """The objects of a file, and what it has in full.

    ``manifests``: Namespaces and ConfigMaps that replace those of the file.
    """

    def __init__(
        self,
        objects: Sequence[dict[str, Json]],
        manifests: Sequence[dict[str, Json]] = (),
    ) -> None:
        self.has_all_namespaces = any(map(_is_namespace, objects))
        later = {_identity(raw) for raw in manifests}
        objects = [raw for raw in objects if _identity(raw) not in later]
        objects += manifests
        values = values_of([raw for raw in objects if not _is_exception(raw)])
        # Objects are no answers to calls: their lists may be incomplete.
        values["apicalls"] = values_of([r for r in objects if _is_answer(r)])[
            "apicalls"
        ]
        # A list of objects for an entry is not what the API server answers to a rule.
        lists = {f"GET {path}" for raw in objects for path in _list_paths(raw)}
        self._calls = frozenset(values["apicalls"]) - lists
        self.shared = SharedClusterData(
            {
                name: partial(_same, _segment(name, encoded))
                for name, encoded in segments_of(values).items()
            }
        )
        heads = [raw["spec"] for raw in objects if _is_head(raw)]
        self.namespaces: Mapping[str, Json] = values["namespaces"]
        self.config_maps: Mapping[str, Json] = values["configmaps"]
        """By "namespace/name"."""
        self._looked_for = {
            name for head in heads for name in head.get("configMaps") or ()
        }
        unknown = {
            missing.get("name")
            for head in heads
            for missing in head.get("leftOut") or ()
            if missing.get("kind") == _ENTRY
        }
        self._entries = {name_of(raw) for raw in objects if raw.get("kind") == _ENTRY}
        self._unknown_entries = unknown if heads else None
        self._exceptions = stored_policies(filter(_is_exception, objects))
        for name, reason in self._exceptions.failed_paths:
            raise CommandFailed(f"{name}: {reason}")

    def add_exceptions(self, policy_set: PolicySet) -> None:
        """Add the cluster's PolicyExceptions that the files do not have, too."""
        for name in ("exceptions", "cel_exceptions"):
            own = getattr(policy_set, name)
            keys = {_key(exception) for exception in own}
            stored = getattr(self._exceptions, name)
            own += [raw for raw in stored if _key(raw) not in keys]

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Return the labels of a Namespace, None if it is not known."""
        namespace = self.namespaces.get(f"{name}/")
        if namespace is None:
            return None
        return labels_of(metadata_of(namespace).get("labels"))

    def looked_for(self, namespace: str, name: str) -> bool:
        """Return whether the ConfigMap was looked for when the facts were exported."""
        return not self._looked_for.isdisjoint((f"{namespace}/{name}", f"*/{name}"))

    def has_call(self, key: str) -> bool:
        """Return whether the file has the answer of a call, e.g. "GET /version"."""
        return key in self._calls

    def has_entry(self, name: str) -> bool:
        """Return whether it is known what a read of the entry gives."""
        if name in self._entries:
            return True
        return self._unknown_entries is not None and name not in self._unknown_entries


def _list_paths(raw: dict[str, Json]) -> Iterator[str]:
    """Yield the path of the list whose objects are an entry's data."""
    if raw.get("kind") == _ENTRY:
        entry = decode(raw)
        if isinstance(entry, GlobalContextEntry) and entry.spec.kubernetes_resource:
            yield list_path(entry.spec.kubernetes_resource)


def _is_answer(raw: dict[str, Json]) -> bool:
    return raw.get("apiVersion") == ANSWER_VERSION and not _is_head(raw)


def _is_head(raw: dict[str, Json]) -> bool:
    kind = (raw.get("apiVersion"), raw.get("kind"))
    return kind == (ANSWER_VERSION, FACTS) and isinstance(raw.get("spec"), dict)


def _is_namespace(raw: dict[str, Json]) -> bool:
    return (raw.get("apiVersion"), raw.get("kind")) == ("v1", "Namespace")


def _identity(raw: dict[str, Json]) -> tuple[Json, Json, str, str]:
    namespace, name = metadata_text(raw, "namespace"), metadata_text(raw, "name")
    return raw.get("apiVersion"), raw.get("kind"), namespace, name


def _is_exception(raw: dict[str, Json]) -> bool:
    return (raw.get("apiVersion"), raw.get("kind")) in _EXCEPTIONS


def _key(exception: PolicyException | CelPolicyException) -> tuple[str, str]:
    return exception.metadata.namespace, exception.metadata.name


def _segment(name: str, values: Mapping[str, bytes]) -> DataSegment:
    content = encode_data(name, values, generation=1, salt=_SALT)
    return DataSegment(Segment.from_bytes(content, name))


def _same(segment: DataSegment) -> DataSegment:
    return segment


def facts_of(path: str) -> ClusterFacts:
    """Read facts. Raises: CommandFailed."""
    return clustered(path, fact_objects(path))


def fact_objects(path: str) -> list[dict[str, Json]]:
    """Return the documents of a file or folder of facts. Raises: CommandFailed."""
    objects: list[dict[str, Json]] = []
    try:
        for data, file in sources(path):
            documents = [document.raw for document in load(data, file=file)]
            _check(documents, file)
            objects += documents
    except OSError as error:
        raise CommandFailed(read_error(error, error.filename or path)) from error
    except InputError as error:
        raise CommandFailed(f"{path}: {error.where}: {error.message}") from error
    if not objects:
        raise CommandFailed(f"no facts in {path}")
    return objects


def clustered(
    path: str,
    objects: Sequence[dict[str, Json]],
    manifests: Sequence[dict[str, Json]] = (),
) -> ClusterFacts:
    """Return the facts in the documents of ``path``. Raises: CommandFailed."""
    try:
        return ClusterFacts(objects, manifests)
    except InputError as error:
        raise CommandFailed(f"{path}: {error.where}: {error.message}") from error


def _is_sound(head: dict[str, Json]) -> bool:
    """Return whether the lists of a head are as ``facts`` writes them."""
    names, left_out = head.get("configMaps", []), head.get("leftOut", [])
    return (
        isinstance(names, list)
        and all(type(name) is str for name in names)
        and isinstance(left_out, list)
        and all(
            isinstance(each, dict) and type(each.get("name")) is str
            for each in left_out
        )
    )


def _check(documents: Sequence[Json], file: str) -> None:
    """Raise CommandFailed for what is no object, and for a file that ends early."""
    heads = 0
    for raw in documents:
        metadata = raw.get("metadata") if isinstance(raw, dict) else None
        if not isinstance(metadata, dict) or type(metadata.get("name")) is not str:
            raise CommandFailed(f"{file}: a document has no metadata.name")
        heads += _is_head(raw)
        if _is_head(raw) and not _is_sound(raw["spec"]):
            raise CommandFailed(f"{file}: the head of the facts cannot be read")
    counts = [raw["spec"].get("documents") for raw in documents if _is_head(raw)]
    # What a file lacks that ends early would seem not to exist.
    if counts and counts != [len(documents) - heads]:
        raise CommandFailed(f"{file}: not complete, export the facts again")


class _Ports(Unrecorded):
    """The ports with the facts; what is not known is noted and fails."""

    def __init__(self, note: Note, facts: ClusterFacts) -> None:
        super().__init__(note)
        self._facts = facts
        self._shared = facts.shared

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Return a ConfigMap. Raises: ExpressionFailed if it does not exist."""
        is_known = f"{namespace}/{name}" in self._facts.config_maps
        if is_known or self._facts.looked_for(namespace, name):
            return self._shared.config_map(namespace, name, deadline_ns)
        return super().config_map(namespace, name, deadline_ns)

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Return the answer of a call that the facts have."""
        key = f"{request.method} {request.path or request.url}"
        if self._facts.has_call(key):
            return self._shared.call(request, deadline_ns)
        match request.path.split("/") if request.method == "GET" else ():
            case ["", "api", "v1", "namespaces", name]:
                found = self.namespace(name, deadline_ns)
            case ["", "api", "v1", "namespaces", namespace, "configmaps", name]:
                found = self._facts.config_maps.get(f"{namespace}/{name}")
            case _:
                found = None
        return super().call(request, deadline_ns) if found is None else found

    def entry(self, name: str) -> Json:
        """Return the data of an entry. Raises: ExpressionFailed if it has none."""
        if self._facts.has_entry(name.partition(".")[0]):
            return self._shared.entry(name)
        return super().entry(name)

    def reference(self, name: str, projection: str) -> Json:
        """Return the data of an entry for CEL, None if it does not exist."""
        if self._facts.has_entry(name):
            return self._shared.reference(name, projection)
        return self._lacks(f"{_ENTRY} {name}")

    def opens(self, name: str, namespace: str) -> bool:
        """Return whether policies of the namespace may read the entry."""
        if self._facts.has_entry(name):
            return self._shared.opens(name, namespace)
        return super().opens(name, namespace)

    def namespace(self, name: str, deadline_ns: int) -> Json:
        """Return a Namespace, None if it does not exist."""
        namespace = self._facts.namespaces.get(f"{name}/")
        if namespace is None and not self._facts.has_all_namespaces:
            return super().namespace(name, deadline_ns)
        return namespace


class _Resources(UnrecordedCel):
    """Reads of single objects in CEL; all other calls are noted and fail."""

    def __init__(self, note: Note, facts: ClusterFacts) -> None:
        super().__init__(note, "resource")
        self._facts = facts

    def get(
        self, api_version: str, plural: str, key: tuple[str, str], deadline_ns: int
    ) -> Json | None:
        """Return the object, None if it does not exist."""
        facts, (namespace, name) = self._facts, key
        if (api_version, plural) == ("v1", "namespaces"):
            known = facts.namespaces.get(f"{name}/")
            if known is not None or facts.has_all_namespaces:
                return known
        if (api_version, plural) == ("v1", "configmaps"):
            config_map = facts.config_maps.get(f"{namespace}/{name}")
            if config_map is not None or facts.looked_for(namespace, name):
                return config_map
        return self.noted("get")(api_version, plural, *key, deadline_ns)

    def plural(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind whose objects the facts can have."""
        if api_version == "v1" and kind in _PLURALS:
            return _PLURALS[kind]
        return self.noted("plural")(api_version, kind)


def known_ports(note: Note, facts: ClusterFacts) -> Known:
    """Return the ports with the facts."""
    ports = _Ports(note, facts)
    return Known(ports, _Resources(note, facts), ports, facts.namespaces)
