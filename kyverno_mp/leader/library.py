"""Keep the policies of a folder: what is in force, what was refused and why.

Room: leader. Takes: Changes of the policies folder. Gives: Edition.
Next: leader/loop.py publishes it. May touch: nothing outside its arguments.

One bad policy harms only itself: its last valid version stays in force. A file that
does not parse, or is suddenly empty, is taken for half written: all its policies stay.
Only what changed is compiled, unless PolicyExceptions changed, which touch all.
Documents are kept as packed bytes, a tenth of what they take as objects.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.errors import InputError, PolicyInvalid, Where
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.ir.rules import CompiledPolicy, RuleIR
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.limits import (
    POLICY_RULES_MAX,
    STATUS_TEXT_LENGTH_MAX,
    WATCHED_FILE_BYTES_MAX,
)
from kyverno_mp.policy.check import read
from kyverno_mp.policy.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.decode import is_known_kind
from kyverno_mp.policy.exception import PolicyException
from kyverno_mp.policy.load import RawDocument, load
from kyverno_mp.values.jsonvalue import Json

Key = tuple[str, str, str]
"""Kind, namespace, name."""
_NOT_SERVED = "(evaluated by the CLI only)"
"""Said of rules that can be evaluated, but have no process yet that acts on them."""
FROM_CLUSTER = "kube://"
"""How the name of a document begins that the API server gave: one, as JSON."""
_OTHERS = "; its other rules are in force"
_STAYS = "; the last valid version stays in force"
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_NAME_LENGTH_MAX = 253
_UNSUPPORTED = "leader.unsupported"


@dataclass(frozen=True, slots=True)
class Edition:
    """All policies at one moment. ``changes``: (type, status) of what is new in it."""

    encoded: tuple[EncodedPolicy, ...]
    policies: tuple[PolicyStatus, ...]
    problems: tuple[str, ...]
    changes: tuple[tuple[str, PolicyStatus], ...]


@dataclass(frozen=True, slots=True)
class _Document:
    """One document as read: where it stands, what it is, its JSON."""

    key: Key
    known: bool
    place: str
    file: str
    packed: bytes
    digest: bytes
    generation: int

    def raw(self) -> Json:
        """Return the document's content."""
        return msgspec.json.decode(self.packed)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A policy: ``digest`` of the text judged last, and what is in force of it.

    ``packed``: the document that ``encoded`` was made of.
    """

    digest: bytes
    status: PolicyStatus
    encoded: EncodedPolicy | None = None
    packed: bytes = b""


class Library:
    """The state between two looks at the folder."""

    def __init__(
        self,
        takes_exception: Callable[[str], bool],
        *,
        force_ignore: bool = False,
    ) -> None:
        """Start empty.

        ``takes_exception`` judges a PolicyException's namespace. ``force_ignore``:
        every policy has failurePolicy Ignore, as its webhook has.
        """
        self._takes_exception = takes_exception
        self._force_ignore = force_ignore
        self._files: dict[str, list[_Document]] = {}
        self._file_problems: dict[str, str] = {}
        self._entries: dict[Key, _Entry] = {}
        self._exceptions: dict[Key, PolicyException] = {}
        self._exceptions_digest = b""

    def update(self, changes: Changes) -> Edition:
        """Take changes in and return the new edition.

        Cost: proportional to what changed, plus one pass over all documents' names.
        """
        for name in changes.removed:
            self._files.pop(name, None)
            self._file_problems.pop(name, None)
        for name, data in changes.changed.items():
            self._read(name, data)
        problems = list(self._file_problems.values())
        policies, exceptions = self._sort(problems)
        exceptions_changed = self._take_exceptions(exceptions, problems)
        told = self._judge(policies, renew=exceptions_changed)
        ordered = sorted(self._entries.items())
        return Edition(
            encoded=tuple(e.encoded for _, e in ordered if e.encoded is not None),
            policies=tuple(entry.status for _, entry in ordered),
            problems=tuple(problems),
            changes=tuple(told),
        )

    def _read(self, name: str, data: bytes) -> None:
        self._file_problems.pop(name, None)
        if not data.strip() and self._files.get(name):
            self._file_problems[name] = (
                f"{name}: is empty now; its policies stay in force until it is deleted"
            )
            return
        try:
            self._files[name] = _documents_of(name, data)
        except PolicyInvalid as error:
            stays = _STAYS if self._files.get(name) else ""
            reason = f"{_clip(error.message)} [{error.code}]"
            self._file_problems[name] = f"{error.where}: {reason}{stays}"

    def _sort(
        self, problems: list[str]
    ) -> tuple[dict[Key, _Document], dict[Key, _Document]]:
        """Return policies and exceptions by key; of two with one key the later wins."""
        policies: dict[Key, _Document] = {}
        exceptions: dict[Key, _Document] = {}
        for name in sorted(self._files):
            for document in self._files[name]:
                key, place = document.key, document.place
                if not document.known:
                    problems.append(f"{place}: {key[0] or 'document'} is no policy")
                    continue
                found = exceptions if key[0] == "PolicyException" else policies
                if key in found:
                    shown = "/".join(filter(None, key))
                    problems.append(f"{place}: replaces {shown} of {found[key].place}")
                found[key] = document
        return policies, exceptions

    def _take_exceptions(
        self, documents: Mapping[Key, _Document], problems: list[str]
    ) -> bool:
        """Decode the exceptions; a bad one keeps its last valid version."""
        kept: dict[Key, PolicyException] = {}
        for key, document in documents.items():
            if not self._takes_exception(key[1]):
                problems.append(
                    f"{document.place}: PolicyException {key[1]}/{key[2]} does not"
                    " count (KYVERNO_MP_POLICY_EXCEPTIONS,"
                    " KYVERNO_MP_EXCEPTION_NAMESPACE)"
                )
                continue
            try:
                exception, _ = read(document.raw(), file=document.file)
            except InputError as error:
                problems.append(f"{error.where}: {_clip(error.message)}")
                if key in self._exceptions:
                    kept[key] = self._exceptions[key]
                continue
            assert isinstance(exception, PolicyException)
            kept[key] = exception
        digest = _digest(msgspec.json.encode([kept[key] for key in sorted(kept)]))
        changed = digest != self._exceptions_digest
        self._exceptions, self._exceptions_digest = kept, digest
        return changed

    def _judge(
        self, documents: Mapping[Key, _Document], *, renew: bool
    ) -> list[tuple[str, PolicyStatus]]:
        gone = [key for key in self._entries if key not in documents]
        told = [("deleted", self._entries.pop(key).status) for key in gone]
        exceptions = [self._exceptions[key] for key in sorted(self._exceptions)]
        for key, document in documents.items():
            known = self._entries.get(key)
            same = known is not None and known.digest == document.digest
            if same and not renew:
                continue
            entry = self._build(document, exceptions)
            self._entries[key] = entry
            if not same:
                told.append(("updated" if known else "created", entry.status))
        return told

    def _build(
        self, document: _Document, exceptions: Sequence[PolicyException]
    ) -> _Entry:
        try:
            raw = document.raw()
            refuse_unbounded(raw, document.key)
            decoded, warnings = read(raw, file=document.file)
            if not isinstance(decoded, ClusterPolicy | Policy):
                raise PolicyInvalid(
                    "leader.unsupported_kind",
                    f"{document.key[0]} is not supported by this version",
                )
            compiled = compile_policy(decoded, exceptions)
            compiled, lacking = _servable(compiled)
            if self._force_ignore:
                ignoring = msgspec.structs.replace(
                    compiled.policy, failure_policy="Ignore"
                )
                compiled = msgspec.structs.replace(compiled, policy=ignoring)
            encoded = encode_policy(compiled)
        except InputError as error:
            return self._refuse(document, error)
        status = _status_of(document, decoded, compiled, warnings)
        if lacking:
            status = msgspec.structs.replace(
                status, ready=False, message=_clip(lacking), code=_UNSUPPORTED
            )
        return _Entry(document.digest, status, encoded, document.packed)

    def _refuse(self, document: _Document, error: InputError) -> _Entry:
        known = self._entries.get(document.key)
        message = _clip(error.message)
        if known is None or known.encoded is None:
            kind, namespace, name = document.key
            status = PolicyStatus(
                kind,
                namespace,
                name,
                ready=False,
                message=message,
                rule_count=0,
                generation=document.generation,
                code=error.code,
            )
            return _Entry(document.digest, status)
        status = msgspec.structs.replace(
            known.status,
            ready=False,
            message=message + _STAYS,
            generation=document.generation,
            code=error.code,
            in_force=known.packed.decode(),
        )
        return _Entry(document.digest, status, known.encoded, known.packed)


def _documents_of(name: str, data: bytes) -> list[_Document]:
    if len(data) > WATCHED_FILE_BYTES_MAX:
        message = f"has {len(data)} bytes, more than {WATCHED_FILE_BYTES_MAX}"
        raise PolicyInvalid("leader.too_large", message, Where(file=name))
    if name.startswith(FROM_CLUSTER):
        return [_pack(RawDocument(msgspec.json.decode(data), name, 0, 1))]
    return [_pack(document) for document in load(data, file=name)]


def refuse_unbounded(raw: Json, key: Key) -> None:
    """Refuse what an API server would never have stored, before it costs anything."""
    _, namespace, name = key
    for text in filter(None, (namespace, name)):
        if not (len(text) <= _NAME_LENGTH_MAX and _NAME.fullmatch(text)):
            raise PolicyInvalid(
                "leader.name",
                f"metadata: {_clip(text)!r} is no lowercase RFC 1123 subdomain",
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


def _clip(text: str) -> str:
    if len(text) <= STATUS_TEXT_LENGTH_MAX:
        return text
    return text[:STATUS_TEXT_LENGTH_MAX] + "..."


def _servable(compiled: CompiledPolicy) -> tuple[CompiledPolicy, str]:
    """Leave out the rules that this version cannot judge or act on; say which.

    The others are in force: to leave them out, too, would let pass what they forbid.
    Raises: PolicyInvalid when there are none, or when one that is left out might have
    ended the evaluation before them (applyRules One).
    """
    missing = {rule.name: _missing(rule) for rule in compiled.rules}
    lacking = [f"rule {name} needs {what}" for name, what in missing.items() if what]
    if not lacking:
        return compiled, ""
    text = "not supported by this version: " + ", ".join(lacking)
    rules = tuple(rule for rule in compiled.rules if not missing[rule.name])
    if not rules or compiled.policy.apply_rules == "One":
        raise PolicyInvalid(_UNSUPPORTED, text)
    return msgspec.structs.replace(compiled, rules=rules), text + _OTHERS


def _missing(rule: RuleIR) -> str:
    """Name what the rule needs that this version has not, "" when it has all."""
    if rule.unsupported:
        return rule.unsupported
    if rule.rule_type == "generate":
        return f"generate {_NOT_SERVED}"
    if rule.mutate is not None and rule.mutate.targets is not None:
        return f"mutate existing {_NOT_SERVED}"
    return ""


def _status_of(
    source: _Document,
    document: ClusterPolicy | Policy,
    compiled: CompiledPolicy,
    warnings: Sequence[str],
) -> PolicyStatus:
    policy = compiled.policy
    actions = [policy.action, *(rule.action for rule in compiled.rules)]
    enforces = any(
        action.action == "Enforce"
        or any(override.action == "Enforce" for override in action.overrides)
        for action in actions
    )
    kind, namespace, name = source.key
    return PolicyStatus(
        kind=kind,
        namespace=namespace,
        name=name,
        ready=True,
        message="; ".join(("Ready", *warnings)),
        rule_count=len(document.spec.rules),
        mode="enforce" if enforces else "audit",
        background=policy.background,
        rules=tuple(RuleStatus(rule.name, rule.rule_type) for rule in compiled.rules),
        generation=source.generation,
    )


def _key_of(raw: object) -> Key:
    """Return kind, namespace and name; a Policy without namespace is of ``default``."""
    if not isinstance(raw, dict):
        return "", "", ""
    kind = str(raw.get("kind", ""))
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        return kind, "", ""
    namespace = "" if kind.startswith("Cluster") else str(metadata.get("namespace", ""))
    if kind in ("Policy", "PolicyException", "CleanupPolicy"):
        namespace = namespace or "default"
    return kind, namespace, str(metadata.get("name", ""))


def _generation_of(raw: object) -> int:
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    found = metadata.get("generation") if isinstance(metadata, dict) else None
    return found if type(found) is int else 0


def _pack(document: RawDocument) -> _Document:
    place = f"{document.file}, line {document.line}"
    try:
        packed = msgspec.json.encode(document.raw)
    except (UnicodeEncodeError, RecursionError) as error:
        raise PolicyInvalid("leader.unstorable", f"{place}: {error}") from error
    return _Document(
        key=_key_of(document.raw),
        known=is_known_kind(document.raw),
        place=place,
        file=document.file,
        packed=packed,
        digest=_digest(packed),
        generation=_generation_of(document.raw),
    )


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
