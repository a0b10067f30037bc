"""Maintain the compiled policies: which are in force, which were refused and why.

Room: leader. Takes: Changes of the policies folder. Gives: PolicySet.
Next: leader/loop.py publishes it. May touch: nothing outside its arguments.

One bad policy affects only itself: its last valid version stays in force. The same
holds for a policy that takes too many steps to compile (expr/compile_budget.py) or
triggers a defect. A file that does not parse, or is suddenly empty, counts as partly
written: all its policies stay. Only changed policies are compiled, and those that a
changed PolicyException names; in slices of time, so that finished policies need not
wait for slow ones. Documents are stored as packed bytes, a tenth of their size as
objects.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.errors import InputError, PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.ir.rules import CompiledPolicy, RuleIR
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.kept import Kept, Made
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
"""Message for rules that can be evaluated, but that no process acts on yet."""
FROM_CLUSTER = "kube://"
"""Prefix of the name of a document from the API server: one object, as JSON."""
_OTHERS = "; its other rules are in force"
_STAYS = "; the last valid version stays in force"
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_NAME_LENGTH_MAX = 253
_UNSUPPORTED = "leader.unsupported"
_DEFECT = "leader.defect"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies at one moment. ``changes``: (type, status) of each change in it."""

    encoded: tuple[EncodedPolicy, ...]
    policies: tuple[PolicyStatus, ...]
    problems: tuple[str, ...]
    changes: tuple[tuple[str, PolicyStatus], ...]
    waiting: int = 0
    """Policies that wait for compilation in the next update."""


@dataclass(frozen=True, slots=True)
class _Document:
    """One document as read: its file, its kind, its JSON."""

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
    """A policy: ``digest`` of the text evaluated last, and its version in force.

    ``packed``: the document from which ``encoded`` was compiled.
    """

    digest: bytes
    status: PolicyStatus
    encoded: EncodedPolicy | None = None
    packed: bytes = b""
    named_by: bytes = b""
    """Digest of the PolicyExceptions used in its compilation."""


def _never() -> bool:
    """Return False: there is time left."""
    return False


def _nothing() -> None:
    """Check nothing."""


class PolicyStore:
    """The state between two polls of the folder."""

    def __init__(
        self,
        takes_exception: Callable[[str], bool],
        *,
        force_ignore: bool = False,
        look: Callable[[], None] = _nothing,
        kept: Kept | None = None,
    ) -> None:
        """Start empty.

        ``takes_exception`` tells whether a namespace may have PolicyExceptions.
        ``force_ignore``: every policy has failurePolicy Ignore, as its webhook has.
        ``look``: called now and then during compilation. ``kept``: what an earlier
        policy store compiled.
        """
        self._look = look
        self._kept = kept or Kept()
        self.compiled_count = 0
        """Policies compiled so far, refused ones included."""
        self._takes_exception = takes_exception
        self._force_ignore = force_ignore
        self._files: dict[str, list[_Document]] = {}
        self._file_problems: dict[str, str] = {}
        self._entries: dict[Key, _Entry] = {}
        self._exceptions: dict[Key, PolicyException] = {}
        self._exceptions_read: dict[bytes, PolicyException] = {}
        self._named_by: dict[str, bytes] = {}

    def update(
        self, changes: Changes, is_late: Callable[[], bool] = _never
    ) -> PolicySet:
        """Apply changes and return the new policy set.

        After ``is_late`` returns True, the rest waits for the next update; small
        policies are compiled first, and cluster policies before namespaced ones. Cost:
        proportional to the changes, plus one pass over all documents' names.
        """
        for name in changes.removed:
            self._files.pop(name, None)
            self._file_problems.pop(name, None)
        for name, data in changes.changed.items():
            self._read(name, data)
        problems = list(self._file_problems.values())
        policies, exceptions = self._sort(problems)
        self._take_exceptions(exceptions, problems)
        told, waiting = self._judge(policies, is_late)
        ordered = sorted(self._entries.items())
        return PolicySet(
            encoded=tuple(e.encoded for _, e in ordered if e.encoded is not None),
            policies=tuple(entry.status for _, entry in ordered),
            problems=tuple(problems),
            changes=tuple(told),
            waiting=waiting,
        )

    def kept(self) -> dict[bytes, bytes]:
        """Return the outcomes worth keeping for a later policy store."""
        return self._kept.used()

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
        """Return policies and exceptions by key; for the same key, the later wins."""
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
    ) -> None:
        """Decode the exceptions; a bad one keeps its last valid version."""
        kept: dict[Key, PolicyException] = {}
        before, self._exceptions_read = self._exceptions_read, {}
        for key, document in documents.items():
            if not self._takes_exception(key[1]):
                problems.append(
                    f"{document.place}: PolicyException {key[1]}/{key[2]} does not"
                    " count (KYVERNO_MP_POLICY_EXCEPTIONS,"
                    " KYVERNO_MP_EXCEPTION_NAMESPACE)"
                )
                continue
            try:
                exception = before.get(document.digest)
                if exception is None:
                    with bounded(CompileBudget(self._look)):
                        found, _ = read(document.raw(), file=document.file)
                    assert isinstance(found, PolicyException)
                    exception = found
            except Exception as error:  # noqa: BLE001 - one document affects only itself
                refused = _refusal_of(error, key)
                problems.append(f"{refused.where}: {_clip(refused.message)}")
                if key in self._exceptions:
                    kept[key] = self._exceptions[key]
                continue
            self._exceptions_read[document.digest] = exception
            kept[key] = exception
        if kept != self._exceptions:
            self._exceptions = kept
            self._named_by = _digests_by_policy([kept[key] for key in sorted(kept)])

    def _judge(
        self, documents: Mapping[Key, _Document], is_late: Callable[[], bool]
    ) -> tuple[list[tuple[str, PolicyStatus]], int]:
        gone = [key for key in self._entries if key not in documents]
        told = [("deleted", self._entries.pop(key).status) for key in gone]
        due = [one for one in documents.values() if not self._is_known(one)]
        # By the size of the document, and cluster policies before namespaced ones.
        due.sort(key=lambda one: (one.key[1] != "", len(one.packed), one.key))
        for count, document in enumerate(due):
            if count and is_late():
                return told, len(due) - count
            known = self._entries.get(document.key)
            entry = self._build(document)
            self._entries[document.key] = entry
            if known is None or known.digest != document.digest:
                told.append(("updated" if known else "created", entry.status))
            self._look()
        return told, 0

    def _is_known(self, document: _Document) -> bool:
        known = self._entries.get(document.key)
        return (
            known is not None
            and known.digest == document.digest
            and known.named_by == self._named_by.get(_policy_key(document.key), b"")
        )

    def _build(self, document: _Document) -> _Entry:
        """Compile one policy, or reuse its earlier outcome.

        Any error, in the policy or in our code, affects only this policy.
        """
        named_by = self._named_by.get(_policy_key(document.key), b"")
        identity = _digest(
            b"".join((document.digest, named_by, b"%d" % self._force_ignore))
        )
        made = self._kept.take(identity, document.generation)
        if made is None:
            self.compiled_count += 1
            budget = CompileBudget(self._look)
            try:
                with bounded(budget):
                    made = self._compile(document)
            except Exception as error:  # noqa: BLE001 - reported in the policy's status
                refused = _refusal_of(error, document.key)
                made = Made(code=refused.code, message=_clip(refused.message))
            if made.code != _DEFECT:
                self._kept.keep(identity, made, budget.steps)
        if made.status is None:
            entry = self._refuse(document, made.code, made.message)
        else:
            entry = _Entry(document.digest, made.status, made.encoded, document.packed)
        return replace(entry, named_by=named_by)

    def _compile(self, document: _Document) -> Made:
        """Read, check, compile and encode one policy. Raises: InputError."""
        exceptions = [self._exceptions[key] for key in sorted(self._exceptions)]
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
            ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
            compiled = msgspec.structs.replace(compiled, policy=ignoring)
        encoded = encode_policy(compiled)
        status = _status_of(document, decoded, compiled, warnings)
        if lacking:
            status = msgspec.structs.replace(
                status, ready=False, message=_clip(lacking), code=_UNSUPPORTED
            )
        return Made(status, encoded)

    def _refuse(self, document: _Document, code: str, message: str) -> _Entry:
        known = self._entries.get(document.key)
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
                code=code,
            )
            return _Entry(document.digest, status)
        status = msgspec.structs.replace(
            known.status,
            ready=False,
            message=message + _STAYS,
            generation=document.generation,
            code=code,
            in_force=known.packed.decode(),
        )
        return _Entry(document.digest, status, known.encoded, known.packed)


def _refusal_of(error: Exception, key: Key) -> InputError:
    """Return why a document is refused; a defect of ours is also a reason."""
    if isinstance(error, InputError):
        return error
    _log.error("defect in reading %s", "/".join(key), exc_info=error)
    text = f"cannot be read or compiled: {type(error).__name__}"
    return PolicyInvalid(_DEFECT, text, Where(policy=_policy_key(key)))


def _policy_key(key: Key) -> str:
    """Return the key by which exceptions name a policy."""
    kind, namespace, name = key
    return f"{namespace}/{name}" if kind == "Policy" else name


def _digests_by_policy(exceptions: Sequence[PolicyException]) -> dict[str, bytes]:
    """Return, for each policy named in exceptions, a digest of those exceptions."""
    texts: dict[str, list[bytes]] = {}
    for exception in exceptions:
        text = msgspec.json.encode(exception)
        for name in {one.policy_name for one in exception.spec.exceptions}:
            texts.setdefault(name, []).append(text)
    return {name: _digest(b"\0".join(found)) for name, found in texts.items()}


def _documents_of(name: str, data: bytes) -> list[_Document]:
    if len(data) > WATCHED_FILE_BYTES_MAX:
        message = f"has {len(data)} bytes, more than {WATCHED_FILE_BYTES_MAX}"
        raise PolicyInvalid("leader.too_large", message, Where(file=name))
    if name.startswith(FROM_CLUSTER):
        return [_pack(RawDocument(msgspec.json.decode(data), name, 0, 1))]
    return [_pack(document) for document in load(data, file=name)]


def refuse_unbounded(raw: Json, key: Key) -> None:
    """Refuse what an API server would never store, before it costs anything."""
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
    """Leave out the rules that this version cannot evaluate or apply; name them.

    The others are in force: without them, requests that they deny would be allowed.
    Raises: PolicyInvalid when none remain, or when a rule that is left out might have
    ended the evaluation before the others (applyRules One).
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
    """Name the feature of the rule that this version lacks, "" if there is none."""
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
    """Return kind, namespace and name; a Policy's default namespace is ``default``."""
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
