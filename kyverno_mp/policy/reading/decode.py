"""Decode one raw document into the typed document of its kind.

Room: policy. Takes: raw JSON (from load.py, or an object of the API server). Gives: a
frozen document, or every structural problem at once. Next: policy/check.py.
Source: docs/behaviour/controllers 1.1 to 1.5; docs/behaviour/cli 4 (accepted kinds).
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from kyverno_mp.errors import Where
from kyverno_mp.limits import JSON_DEPTH_MAX
from kyverno_mp.policy.documents.cleanup_policy import (
    CleanupPolicy,
    ClusterCleanupPolicy,
)
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, ClusterPolicy, Policy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.documents.global_context_entry import GlobalContextEntry
from kyverno_mp.policy.fields.image_verification import ImageVerification
from kyverno_mp.policy.fields.match import EmptyMatch, MatchResources
from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.policy.fields.validation import Validation
from kyverno_mp.policy.problems import DocumentInvalid, Problem, rule_name
from kyverno_mp.policy.reading.free_form import Read, as_go_reads
from kyverno_mp.policy.reading.shape import Removed, Walk, shape_of
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    CLEANUP_POLICY,
    CLUSTER_POLICY,
    POLICY_EXCEPTION,
)
from kyverno_mp.values.records import RecordType

Document = (
    ClusterPolicy
    | Policy
    | PolicyException
    | CleanupPolicy
    | ClusterCleanupPolicy
    | GlobalContextEntry
)

POLICIES: Final = CLUSTER_POLICY.names
BETA: Final = "kyverno.io/v2beta1"
"""The version of ClusterPolicy and Policy without deprecated fields."""
KINDS: Final[Mapping[str, tuple[RecordType[Document], tuple[str, ...]]]] = {
    CLUSTER_POLICY.cluster.kind: (
        RecordType(ClusterPolicy),
        CLUSTER_POLICY.cluster.api_versions,
    ),
    CLUSTER_POLICY.namespaced.kind: (
        RecordType(Policy),
        CLUSTER_POLICY.namespaced.api_versions,
    ),
    POLICY_EXCEPTION.kind: (
        RecordType(PolicyException),
        POLICY_EXCEPTION.api_versions,
    ),
    CLEANUP_POLICY.namespaced.kind: (
        RecordType(CleanupPolicy),
        CLEANUP_POLICY.namespaced.api_versions,
    ),
    CLEANUP_POLICY.cluster.kind: (
        RecordType(ClusterCleanupPolicy),
        CLEANUP_POLICY.cluster.api_versions,
    ),
    "GlobalContextEntry": (
        RecordType(GlobalContextEntry),
        ("kyverno.io/v2", BETA, "kyverno.io/v2alpha1"),
    ),
}
"""Kind -> (record, versions), for every kind of this module."""

_NOTHING: Final = MatchResources()
_NOTHING_REMOVED: Final[Removed] = {}
REMOVED_IN_BETA: Final[Removed] = {
    MatchResources: frozenset({"roles", "clusterRoles", "subjects", "resources"}),
    Validation: frozenset({"allowExistingViolations"}),
    ImageVerification: frozenset(
        {
            "image",
            "issuer",
            "key",
            "roots",
            "subject",
            "additionalExtensions",
            "annotations",
            "cosignOCI11",
        }
    ),
}
"""Fields that are missing in v2beta1 of ClusterPolicy and Policy."""


class Decoded(msgspec.Struct, frozen=True):
    """The document (None if it cannot be decoded) and its problems."""

    document: Document | None
    problems: tuple[Problem, ...]
    ignored: tuple[Problem, ...] = ()
    """Names in free-form blocks that upstream accepts and never reads."""


_Record = TypeVar("_Record", bound=Fields)


def is_known_kind(raw: Json) -> bool:
    """Return whether ``raw`` has a kind and version that ``decode`` accepts."""
    return type(raw) is dict and raw.get("apiVersion") in _versions(raw.get("kind"))


def decode(raw: Json, *, file: str = "") -> Document:
    """Decode a document. Raises: DocumentInvalid with all structural problems."""
    decoded = examine(raw)
    if decoded.document is None or decoded.problems:
        raise DocumentInvalid(decoded.problems, where_of(raw, file))
    return decoded.document


def examine(raw: Json) -> Decoded:
    """Decode as much as possible, so that checks can run despite structural problems.

    PERF: compile 1,000 policies: msgspec decodes a valid document in 20 microseconds.
    The walk that reports each problem runs only for invalid documents.
    """
    if is_too_deep(raw):
        reason = f"nested deeper than {JSON_DEPTH_MAX} levels"
        return Decoded(None, (Problem("policy.too_deep", "", "", reason),))
    if type(raw) is not dict:
        reason = "a document must be an object"
        return Decoded(None, (Problem("policy.wrong_type", "", "", reason),))
    kind, version = raw.get("kind"), raw.get("apiVersion")
    if type(kind) is not str or version not in _versions(kind):
        reason = f"policy type not supported {version or ''}, Kind={kind or ''}"
        return Decoded(None, (Problem("policy.unknown_kind", "kind", "", reason),))
    read = as_go_reads(raw) if kind in POLICIES else Read(raw)
    decoded = _examined(read.raw, KINDS[kind][0])
    if read.ignored:
        return structs.replace(decoded, ignored=read.ignored)
    return decoded


def _examined(raw: dict[str, Json], record: RecordType[Document]) -> Decoded:
    if raw["apiVersion"] != BETA:
        try:
            document = record.convert(raw)
            return Decoded(_with_excludes(document, raw), _name_problems(raw))
        except (msgspec.ValidationError, RecursionError):
            pass
    return _examine_slowly(raw, record)


def _with_excludes(document: Document, raw: dict[str, Json]) -> Document:
    """Mark excludes with only empty lists, which msgspec decodes like empty ones."""
    if not isinstance(document, AnyPolicy):
        return document
    rules = document.spec.rules
    if not any(rule.exclude == _NOTHING for rule in rules):
        return document
    marked = tuple(
        structs.replace(rule, exclude=EmptyMatch())
        if rule.exclude == _NOTHING and _is_given(written.get("exclude"))
        else rule
        for rule, written in zip(rules, raw["spec"]["rules"], strict=True)
    )
    return structs.replace(document, spec=structs.replace(document.spec, rules=marked))


def _is_given(exclude: dict[str, Json]) -> bool:
    """Return whether Go's struct for the block would differ from the zero value."""
    return any(
        value is not None
        if name != "resources"
        else any(each is not None for each in (value or {}).values())
        for name, value in exclude.items()
    )


def _examine_slowly(raw: dict[str, Json], record: RecordType[Document]) -> Decoded:
    removed = REMOVED_IN_BETA if raw["apiVersion"] == BETA else _NOTHING_REMOVED
    walk = Walk(lambda path: rule_name(raw, path), removed)
    problems: tuple[Problem, ...] = ()
    try:
        cleaned = shape_of(record.type).walk(_with_texts(raw), "", walk)
        problems = (*walk.problems, *_name_problems(raw))
        document = record.convert(cleaned)
        return Decoded(
            document if problems else _with_excludes(document, cleaned), problems
        )
    except RecursionError:
        reason = "records are nested too deeply"
        return Decoded(None, (Problem("policy.too_deep", "", "", reason),))
    except msgspec.ValidationError as error:
        if not problems:
            problems = (Problem("policy.wrong_type", "", "", str(error)),)
        return Decoded(None, problems)


def _with_texts(raw: dict[str, Json]) -> dict[str, Json]:
    """Return the document with "" instead of null in labels and annotations.

    K8S: metadata is decoded into a Go struct, whose maps contain strings. Nulls in maps
    of the spec are dropped.
    """
    metadata = raw.get("metadata")
    if type(metadata) is not dict:
        return raw
    maps = {
        name: {key: "" if value is None else value for key, value in labels.items()}
        for name in ("labels", "annotations")
        if type(labels := metadata.get(name)) is dict
    }
    return {**raw, "metadata": {**metadata, **maps}}


def _name_problems(raw: dict[str, Json]) -> tuple[Problem, ...]:
    meta = raw.get("metadata")
    if type(meta) is not dict or meta.get("name") or meta.get("generateName"):
        return ()
    reason = "Required value: name or generateName is required"
    return (Problem("policy.required", "metadata.name", "", reason),)


def _versions(kind: Json) -> tuple[str, ...]:
    if type(kind) is not str or kind not in KINDS:
        return ()
    return KINDS[kind][1]


def is_too_deep(raw: Json, levels: int = JSON_DEPTH_MAX) -> bool:
    """Return whether ``raw`` is nested too deeply for a recursive walk."""
    level: list[Json] = [raw]
    for _ in range(levels):
        below: list[Json] = []
        for value in level:
            if type(value) is dict:
                below.extend(value.values())
            elif type(value) is list:
                below.extend(value)
        if not below:
            return False
        level = below
    return True


def converted(
    raw: dict[str, Json], record: RecordType[_Record], *, file: str
) -> _Record:
    """Convert a document whose kind and version are known.

    Raises: DocumentInvalid with all structural problems.
    """
    location = where_of(raw, file)
    if is_too_deep(raw):
        reason = f"nested deeper than {JSON_DEPTH_MAX} levels"
        raise DocumentInvalid([Problem("policy.too_deep", "", "", reason)], location)
    walk = Walk(lambda _path: "", {})
    cleaned = shape_of(record.type).walk(raw, "", walk)
    if walk.problems:
        raise DocumentInvalid(walk.problems, location)
    try:
        document = record.convert(cleaned)
    except msgspec.ValidationError as error:
        problem = Problem("policy.wrong_type", "", "", str(error))
        raise DocumentInvalid([problem], location) from error
    if not cleaned["metadata"].get("name"):
        reason = "Required value: name is required"
        problem = Problem("policy.required", "metadata.name", "", reason)
        raise DocumentInvalid([problem], location)
    return document


def where_of(raw: Json, file: str) -> Where:
    """Return the position: the file, and the policy's name if it is known."""
    meta = raw.get("metadata") if type(raw) is dict else None
    if type(meta) is not dict:
        return Where(file=file)
    name, namespace = meta.get("name", ""), meta.get("namespace", "")
    policy = f"{namespace}/{name}" if namespace else f"{name}"
    return Where(policy=policy, file=file)
