"""Read rendered manifests, and build the review of each object's creation.

Room: cli. Takes: files and folders, CustomResourceDefinitions. Gives: Manifest records.
Next: sides. May touch: files named by the user, standard error.
Source: docs/preview.md; Kubernetes admission.k8s.io/v1.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cli.output.screen import one_line, say
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.plurals import known_plurals, load_definitions, plurals_of
from kyverno_mp.cli.sources.policies import sources
from kyverno_mp.cli.sources.user_info import UserInfo
from kyverno_mp.errors import InputError
from kyverno_mp.policy.reading.load import load
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN
from kyverno_mp.webhook.recording.format import Answer, Line

_DEFAULT: Final = "default"
_DEFINITION: Final = "CustomResourceDefinition"
_NO_ANSWER: Final = Answer(allowed=True)
_SHARED: Final = frozenset({("v1", "Namespace"), ("v1", "ConfigMap")})
"""Kinds that policies read from the cluster, so a change brings its own."""

Key = tuple[str, str, str, str]
"""(group, kind, namespace, name)."""


class Manifest(NamedTuple):
    """One object of a side, as the API server would get it."""

    raw: dict[str, Json]
    group: str
    version: str
    kind: str
    namespace: str
    name: str
    plural: str
    """"" for a kind whose resource name nothing tells."""

    @property
    def key(self) -> Key:
        """What the API server knows as one object."""
        return self.group, self.kind, self.namespace, self.name

    @property
    def path(self) -> str:
        """``Deployment apps/web``."""
        return f"{self.kind} {'/'.join(filter(None, (self.namespace, self.name)))}"

    @property
    def review_namespace(self) -> str:
        """The namespace of a review; that of a Namespace is the Namespace itself."""
        is_namespace = (self.group, self.kind) == ("", "Namespace")
        return self.name if is_namespace else self.namespace

    def review(
        self, raw: Json, user: UserInfo, labels: Mapping[str, str] | None, time_ms: int
    ) -> tuple[Line, bytes]:
        """Return the review of the creation of ``raw``, and its bytes."""
        kind = {"group": self.group, "version": self.version, "kind": self.kind}
        plural = self.plural or f"{self.kind.lower()}s"
        resource = {"group": self.group, "version": self.version, "resource": plural}
        request: dict[str, Json] = {
            "uid": "",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": metadata_text(self.raw, "name"),
            "namespace": self.review_namespace,
            "operation": "CREATE",
            "userInfo": user.raw,
            "object": raw,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        }
        line = Line(
            time_ms=time_ms,
            path="",
            kind=(self.group, self.version, self.kind),
            request=request,
            answer=_NO_ANSWER,
            namespace_labels=None if labels is None else dict(labels),
            roles=list(user.roles),
            cluster_roles=list(user.cluster_roles),
        )
        return line, msgspec.json.encode({"request": request})


def manifests_of(
    paths: Sequence[str], definitions: Sequence[str] = ()
) -> dict[Key, Manifest]:
    """Return the objects of files and folders. Raises: CommandFailed.

    ``definitions``: files with CustomResourceDefinitions, in addition to those among
    the objects. Of two objects with one name, the last one counts.
    """
    documents: list[tuple[dict[str, Json], str]] = []
    for path in paths:
        documents += _documents(path)
    defined = [raw for raw, _ in documents if raw.get("kind") == _DEFINITION]
    kinds = _Kinds([*load_definitions(definitions), *defined])
    manifests: dict[Key, Manifest] = {}
    for raw, file in documents:
        manifest = kinds.manifest(raw)
        if manifest.key in manifests:
            say(one_line(f"{file}: {manifest.path} occurs twice"), err=True)
        manifests[manifest.key] = manifest
    return manifests


def shared_objects(manifests: Iterable[Manifest]) -> list[dict[str, Json]]:
    """Return the objects that policies can read from the cluster."""
    shared = []
    for manifest in manifests:
        raw = manifest.raw
        if (raw.get("apiVersion"), raw.get("kind")) not in _SHARED:
            continue
        if manifest.kind == "Namespace":
            # K8S: the API server sets this label.
            labels = {"kubernetes.io/metadata.name": manifest.name}
            given = raw["metadata"].get("labels")
            labels = {**(given if type(given) is dict else {}), **labels}
            raw = {**raw, "metadata": {**raw["metadata"], "labels": labels}}
        shared.append(raw)
    return shared


def _documents(path: str) -> list[tuple[dict[str, Json], str]]:
    documents = []
    try:
        for data, file in sources(path):
            for document in load(data, file=file):
                raw, where = document.raw, f"{file}, document {document.index + 1}"
                _check(raw, where)
                documents.append((raw, where))
    except OSError as error:
        raise CommandFailed(read_error(error, error.filename or path)) from error
    except InputError as error:
        raise CommandFailed(f"{path}: {error.where}: {error.message}") from error
    return documents


def _check(raw: Json, where: str) -> None:
    """Raise CommandFailed for a document that is not an object with a name."""
    is_object = type(raw) is dict and type(raw.get("metadata")) is dict
    for field in ("apiVersion", "kind"):
        if not is_object or type(raw.get(field)) is not str or not raw[field]:
            raise CommandFailed(f"{where}: not an object with {field} and metadata")
    if not (metadata_text(raw, "name") or metadata_text(raw, "generateName")):
        raise CommandFailed(f"{where}: {raw['kind']} without metadata.name")


class _Kinds:
    """The resource names and scopes of the built-in and the defined kinds."""

    def __init__(self, definitions: Sequence[Json]) -> None:
        self._plurals = known_plurals(plurals_of(definitions))
        self._scopes = {
            (built_in.group, built_in.kind): built_in.is_namespaced
            for built_in in BUILT_IN
        }
        for raw in definitions:
            spec = raw["spec"]
            kind = (str(spec.get("group")), str(spec["names"].get("kind")))
            self._scopes[kind] = spec.get("scope") != "Cluster"

    def manifest(self, raw: dict[str, Json]) -> Manifest:
        """Return the object; a namespaced one without a namespace is in the default."""
        group, _, version = raw["apiVersion"].rpartition("/")
        kind, namespace = raw["kind"], metadata_text(raw, "namespace")
        # A kind that nothing defines is namespaced if the object names a namespace.
        is_namespaced = self._scopes.get((group, kind), bool(namespace))
        if is_namespaced and not namespace:
            namespace = _DEFAULT
            raw = {**raw, "metadata": {**raw["metadata"], "namespace": namespace}}
        return Manifest(
            raw=raw,
            group=group,
            version=version,
            kind=kind,
            namespace=namespace if is_namespaced else "",
            name=metadata_text(raw, "name") or f"{metadata_text(raw, 'generateName')}*",
            plural=self._plurals.get((group, kind), ""),
        )
