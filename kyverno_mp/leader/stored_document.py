"""Split policy files into documents, and store each as packed bytes.

Room: leader. Takes: the bytes of a file, or of one object of the cluster. Gives:
StoredDocuments, and the keys by which exceptions refer to a policy.
Next: leader/policy_store.py.

Packed bytes take a tenth of the memory of objects; equal digests mean equal documents.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.leader.outline import MARK, size_outlined
from kyverno_mp.limits import POLICY_RULES_MAX, WATCHED_FILE_BYTES_MAX
from kyverno_mp.policy.cel_kinds.served import (
    SERVED_CEL_KINDS,
    authorization_mode,
    is_served,
    judges_payloads,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CEL_EXCEPTION,
    is_cel_exception,
    shown_kind,
)
from kyverno_mp.policy.reading.decode import is_known_kind
from kyverno_mp.policy.reading.load import RawDocument, load
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_GROUP,
    CEL_POLICY_KINDS,
    POLICY_EXCEPTION,
    POLICY_KINDS,
    WITH_RULES,
)

_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_NAME_LENGTH_MAX: Final = 253
Key = tuple[str, str, str]
"""Kind, namespace, name."""
_NAMESPACED: Final = frozenset(
    {POLICY_EXCEPTION.kind, *(row.namespaced.kind for row in POLICY_KINDS)}
)
_OF_POOLS: Final = frozenset(
    name for row in CEL_POLICY_KINDS if not row.segment for name in row.names
)
"""The kinds in CEL that only a pool carries out."""
FROM_CLUSTER = "kube://"
"""Prefix of the names of documents from the API server, each one object as JSON."""
_IN_CEL: Final = f"{CEL_GROUP}/"
_ADMISSION_GROUP: Final = "admissionregistration.k8s.io/"


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """One document as read: its file, its kind, its JSON."""

    key: Key
    known: bool
    place: str
    file: str
    packed: bytes
    digest: bytes
    generation: int
    outline_of: int = 0
    """The size of the document of which it is an outline; 0 = it is whole."""
    authorizes: str = ""
    """The evaluation mode of a policy for an authorizer, HTTP or Envoy; "" = none."""
    judges_payloads: bool = False
    """Whether it is a policy in evaluation mode JSON."""

    def raw(self) -> Json:
        """Return the document's content, without the mark of an outline."""
        content = msgspec.json.decode(self.packed)
        if self.outline_of:
            del content[MARK]
        return content

    def why_unknown(self) -> str:
        """Return why a document of an unknown kind has no effect."""
        raw = self.raw()
        version = str(raw.get("apiVersion")) if isinstance(raw, dict) else ""
        if version.startswith(_IN_CEL) and self.key[0] in _OF_POOLS:
            return f"{self.key[0]}: clean-up runs only in a cluster"
        if version.startswith(_IN_CEL):
            kind = shown_kind(raw) if isinstance(raw, dict) else self.key[0]
            return f"the server does not evaluate {version} {kind}"
        if version.startswith(_ADMISSION_GROUP):
            return f"{self.key[0]}: the API server evaluates it, not this service"
        return f"{self.key[0] or 'document'} is not a policy"

    def is_from_cluster(self) -> bool:
        """Return whether it is from the API server, whose statuses can be trusted."""
        return self.file.startswith(FROM_CLUSTER)

    def file_and_line(self) -> str:
        """Return the document's location, "" for a document from the API server."""
        return "" if self.is_from_cluster() else self.place


def documents_of(name: str, data: bytes) -> list[StoredDocument]:
    """Split a file, or read one object of the cluster. Raises: PolicyInvalid."""
    if len(data) > WATCHED_FILE_BYTES_MAX:
        message = f"has {len(data)} bytes, more than {WATCHED_FILE_BYTES_MAX}"
        raise PolicyInvalid("leader.too_large", message, Where(file=name))
    if name.startswith(FROM_CLUSTER):
        document = RawDocument(msgspec.json.decode(data), name, 0, 1)
        return [_pack(document, data, size_outlined(document.raw))]
    return [_pack(document) for document in load(data, file=name)]


def _key_of(raw: object) -> Key:
    """Return kind, namespace and name; a Policy's default namespace is ``default``."""
    if not isinstance(raw, dict):
        return "", "", ""
    kind = str(raw.get("kind", ""))
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        return kind, "", ""
    namespace = str(metadata.get("namespace", ""))
    is_own = kind in _NAMESPACED
    if kind.startswith("Cluster") or (kind in SERVED_CEL_KINDS and not is_own):
        namespace = ""
    if is_own:
        namespace = namespace or "default"
    if is_cel_exception(raw):
        kind = CEL_EXCEPTION
    return kind, namespace, str(metadata.get("name", ""))


def _generation_of(raw: object) -> int:
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    generation = metadata.get("generation") if isinstance(metadata, dict) else None
    return generation if type(generation) is int else 0


def _pack(
    document: RawDocument, data: bytes = b"", outline_of: int = 0
) -> StoredDocument:
    """``data``: the bytes as others keep them, which are shared if they are equal."""
    location = f"{document.file}, line {document.line}"
    try:
        packed = msgspec.json.encode(document.raw)
    except (UnicodeEncodeError, RecursionError) as error:
        raise PolicyInvalid("leader.unstorable", f"{location}: {error}") from error
    packed = data if data == packed else packed
    return StoredDocument(
        key=_key_of(document.raw),
        known=is_known_kind(document.raw) or is_served(document.raw),
        place=location,
        file=document.file,
        packed=packed,
        digest=digest_of(packed),
        generation=_generation_of(document.raw),
        outline_of=outline_of,
        authorizes=authorization_mode(document.raw),
        judges_payloads=judges_payloads(document.raw),
    )


def digest_of(packed: bytes) -> bytes:
    """Return the digest by which equal content is recognised."""
    return hashlib.blake2b(packed, digest_size=16).digest()


def policy_key(key: Key) -> str:
    """Return the key by which exceptions refer to a policy."""
    kind, namespace, name = key
    if kind in SERVED_CEL_KINDS:
        return f"{kind} {name}"
    return f"{namespace}/{name}" if kind == WITH_RULES.namespaced.kind else name


def refuse_unstorable(raw: Json, key: Key) -> None:
    """Reject documents that an API server would never store, before they cost time."""
    _, namespace, name = key
    for part in filter(None, (namespace, name)):
        if not (len(part) <= _NAME_LENGTH_MAX and _NAME.fullmatch(part)):
            printed = repr(part[:_NAME_LENGTH_MAX])
            raise PolicyInvalid(
                "leader.name",
                f"metadata: {printed} is not a lowercase RFC 1123 subdomain",
                Where(path="metadata.name"),
            )
    spec = raw.get("spec") if isinstance(raw, dict) else None
    rules = spec.get("rules") if isinstance(spec, dict) else None
    if isinstance(rules, list) and len(rules) > POLICY_RULES_MAX:
        raise PolicyInvalid(
            "leader.rules",
            f"spec.rules: more than {POLICY_RULES_MAX} rules",
            Where(path="spec.rules"),
        )
