"""Maintain the compiled policies: which are in force, which were rejected and why.

Room: leader. Takes: Changes of a source of policies, which leader/stored_document.py
splits into documents. Gives: PolicySet; new_store. Next: leader/loop.py publishes it.

An invalid policy affects only itself: its last valid version stays in force. So does
the last version of a policy that is too costly to compile (expr/compile_budget.py) or
causes an internal error. A file that does not parse, or is suddenly empty, counts as
partly written: all its policies stay. Only changes are compiled, in time slices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from kyverno_mp.compiler.unlinked import unlinked
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.compile_cache import CompileCache
from kyverno_mp.leader.documents.compiling import clip
from kyverno_mp.leader.documents.in_cel import Modes
from kyverno_mp.leader.documents.linked_memory import Limited, LinkedMemory
from kyverno_mp.leader.documents.outcomes import Helpers, Outcomes, refusal_of
from kyverno_mp.leader.documents.outlined import (
    left_out,
    no_exception,
    without_documents,
)
from kyverno_mp.leader.documents.tenant_room import TenantRoom
from kyverno_mp.leader.documents.without_rights import without_rights
from kyverno_mp.leader.exceptions import (
    EXCEPTIONS,
    AnyException,
    Naming,
    by_policy,
    read_exception,
)
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.status import OVER_SHARE, PolicyStatus
from kyverno_mp.leader.stored_document import (
    Key,
    StoredDocument,
    documents_of,
    policy_key,
)
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.values.kubernetes.policy_kinds import OF_AUTHORIZERS, SEGMENT_OF

_STAYS = "; the last valid version stays in force"
_KUBERNETES = Modes()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A policy: ``digest`` of the text evaluated last, and its version in force.

    ``packed`` is the document from which ``encoded`` was compiled.
    """

    digest: bytes
    status: PolicyStatus
    encoded: EncodedPolicy | None = None
    packed: bytes = b""
    exceptions_digest: bytes = b""
    """Digest of the PolicyExceptions used in its compilation."""


_UNNAMED: Final = Naming()


class PolicyStore:
    """The state between two polls of the source."""

    def __init__(  # noqa: PLR0913 - one record of independent facts, keyword-only
        self,
        allows_exceptions: Callable[[str], bool],
        *,
        force_ignore: bool = False,
        has_background: bool = False,
        modes: Modes = _KUBERNETES,
        on_progress: Callable[[], None] = lambda: None,
        cache: CompileCache | None = None,
        room: TenantRoom | None = None,
    ) -> None:
        """``allows_exceptions`` returns whether a namespace may have PolicyExceptions.

        ``force_ignore``: every policy has failurePolicy Ignore, like its webhook.
        ``has_background``: a background pool executes the tasks of triggers.
        ``modes``: decide which documents are used. ``on_progress`` is called
        repeatedly. ``cache`` contains results of an earlier policy store. ``room`` is
        that of all namespaced policies together.
        """
        self._on_progress = on_progress
        self._allows_exceptions = allows_exceptions
        self._outcomes = Outcomes(
            allows_exceptions,
            force_ignore=force_ignore,
            has_background=has_background,
            on_progress=on_progress,
            cache=cache or CompileCache(),
        )
        self._modes = modes
        self._files: dict[str, list[StoredDocument]] = {}
        self._file_problems: dict[str, str] = {}
        self._entries: dict[Key, _Entry] = {}
        self._memory = LinkedMemory(room)
        self._exceptions: dict[Key, AnyException] = {}
        self._exceptions_read: dict[bytes, AnyException] = {}
        self._naming: dict[str, Naming] = {}
        """The exceptions of each policy. PERF: a pass over all of them for each policy
        would be quadratic."""

    def use_helpers(self, helpers: Helpers) -> None:
        """Let other processes compile the policies of the next update."""
        self._outcomes.helpers = helpers

    def update(
        self,
        changes: Changes,
        out_of_time: Callable[[], bool] = lambda: False,
        lost: Mapping[Key, str] | None = None,
    ) -> PolicySet:
        """Apply changes and return the new policy set.

        ``lost``: the policies that must not be carried out, and why.

        After ``out_of_time`` returns True, the remaining policies wait for the next
        update. Cost: proportional to the changes, plus one pass over all names.
        """
        for name in changes.removed:
            self._files.pop(name, None)
            self._file_problems.pop(name, None)
        self._outcomes.prepare(changes.changed)
        for name, data in changes.changed.items():
            self._read(name, data)
            self._on_progress()
        problems = list(self._file_problems.values())
        policies, exceptions = self._sort(problems)
        self._take_exceptions(exceptions, problems)
        changes_made, waiting = self._compile_due(policies, out_of_time)
        if not waiting:
            self._outcomes.end_preparation()
        ordered = sorted(self._entries.items())
        published = {key: (entry.encoded, entry.status) for key, entry in ordered}
        limited = self._memory.limit(published)
        self._forget_earlier(limited)
        outlines = without_documents(published, policies)
        limited |= outlines | without_rights(published, lost or {})
        published |= {key: limit[:2] for key, limit in limited.items()}
        by_segment: dict[str, dict[Key, EncodedPolicy]] = {}
        for key, (policy, _) in published.items():
            if policy is not None:
                segment = SEGMENT_OF.get(key[0], POLICIES)
                by_segment.setdefault(segment, {})[key] = policy
        broken = {name for name in self._file_problems if not self._files.get(name)}
        unread = self._modes.failing_files(broken.union(changes.unread))
        if unread:
            by_segment.setdefault(OF_AUTHORIZERS.segment, {}).update(unread)
        keys = {segment: tuple(encoded) for segment, encoded in by_segment.items()}
        return PolicySet(
            encoded=tuple(by_segment.pop(POLICIES, {}).values()),
            cel={name: tuple(encoded.values()) for name, encoded in by_segment.items()},
            keys=keys,
            packed={key: entry.packed for key, entry in ordered if entry.packed},
            policies=tuple(status for _, status in published.values()),
            problems=tuple(problems),
            unread=(*self._file_problems.values(), *left_out(outlines)),
            changes=tuple(changes_made),
            waiting=len(waiting),
            awaits_cluster_wide=any(not document.key[1] for document in waiting),
            missed=frozenset(key for key, limit in limited.items() if limit.is_missed),
        )

    def _forget_earlier(self, limited: Mapping[Key, Limited]) -> None:
        """Forget versions in force that rejected ones replace, if there is no room.

        SAFETY: otherwise a tenant could store ever more of them, each behind a small
        rejected version.
        """
        for key, limit in limited.items():
            entry = self._entries[key]
            if limit.status.code == OVER_SHARE and entry.status.in_force:
                self._entries[key] = replace(
                    entry,
                    encoded=entry.encoded and unlinked(entry.encoded, key[0]),
                    status=msgspec.structs.replace(limit.status, in_force=""),
                    packed=b"",
                )

    def costly_outcomes(self) -> dict[bytes, bytes]:
        """Return the compilation results that a later policy store can reuse."""
        return self._outcomes.cache.used()

    @property
    def compiled_count(self) -> int:
        """Policies compiled so far, including rejected ones."""
        return self._outcomes.compiled_count

    def _read(self, name: str, data: bytes) -> None:
        self._file_problems.pop(name, None)
        if not data.strip() and self._files.get(name):
            self._file_problems[name] = (
                f"{name} is now empty; its policies stay in force until it is deleted"
            )
            return
        try:
            self._files[name] = documents_of(name, data)
        except PolicyInvalid as error:
            stays = _STAYS if self._files.get(name) else ""
            reason = f"{clip(error.message)} [{error.code}]"
            self._file_problems[name] = f"{error.where}: {reason}{stays}"

    def _sort(
        self, problems: list[str]
    ) -> tuple[dict[Key, StoredDocument], dict[Key, StoredDocument]]:
        """Return policies and exceptions by key; the last document of a key wins."""
        policies: dict[Key, StoredDocument] = {}
        exceptions: dict[Key, StoredDocument] = {}
        for name in sorted(self._files):
            for document in self._files[name]:
                key, location = document.key, document.place
                if not self._modes.use(document):
                    continue  # another service uses it
                if not (document.known or self._modes.authorizes):
                    problems.append(f"{location}: {document.why_unknown()}")
                    continue
                by_key = exceptions if key[0] in EXCEPTIONS else policies
                if key in by_key:
                    printed_key = "/".join(filter(None, key))
                    problems.append(
                        f"{location}: overrides {printed_key} from {by_key[key].place}"
                    )
                by_key[key] = document
        return policies, exceptions

    def _take_exceptions(
        self, documents: Mapping[Key, StoredDocument], problems: list[str]
    ) -> None:
        """Decode the exceptions; an invalid one keeps its last valid version."""
        exceptions: dict[Key, AnyException] = {}
        before, self._exceptions_read = self._exceptions_read, {}
        for key, document in documents.items():
            if not self._allows_exceptions(key[1]):
                problems.append(
                    f"{document.place}: PolicyException {key[1]}/{key[2]} is"
                    " ignored (KYVERNO_MP_POLICY_EXCEPTIONS,"
                    " KYVERNO_MP_EXCEPTION_NAMESPACE)"
                )
                continue
            if document.outline_of:
                problems.append(no_exception(document))
                continue
            try:
                exception = before.get(document.digest)
                if exception is None:
                    with bounded(CompileBudget(self._on_progress)):
                        exception = read_exception(document)
            except Exception as error:  # noqa: BLE001 - one document affects only itself
                refused = refusal_of(error, key)
                problems.append(f"{refused.where}: {clip(refused.message)}")
                if key in self._exceptions:
                    exceptions[key] = self._exceptions[key]
                continue
            self._exceptions_read[document.digest] = exception
            exceptions[key] = exception
        if exceptions != self._exceptions:
            self._exceptions = exceptions
            self._naming = by_policy(exceptions[key] for key in sorted(exceptions))

    def _compile_due(
        self, documents: Mapping[Key, StoredDocument], out_of_time: Callable[[], bool]
    ) -> tuple[list[tuple[str, PolicyStatus]], list[StoredDocument]]:
        """Compile what changed; return the changes, and what has to wait."""
        removed = [key for key in self._entries if key not in documents]
        changes = [("deleted", self._entries.pop(key).status) for key in removed]
        self._update_locations(documents)
        due = [stored for stored in documents.values() if not self._is_known(stored)]
        # Cluster policies before namespaced ones, small documents first.
        due.sort(key=lambda doc: (doc.key[1] != "", len(doc.packed), doc.key))
        for count, document in enumerate(due):
            if count and out_of_time():
                return changes, due[count:]
            earlier = self._entries.get(document.key)
            entry = self._build(document)
            self._entries[document.key] = entry
            if earlier is None or earlier.digest != document.digest:
                changes.append(("updated" if earlier else "created", entry.status))
            self._on_progress()
        return changes, []

    def _update_locations(self, documents: Mapping[Key, StoredDocument]) -> None:
        """Update the file and line of unchanged documents that moved."""
        for key, entry in self._entries.items():
            document = documents[key]
            file = document.file_and_line()
            if entry.status.file != file and entry.digest == document.digest:
                moved = msgspec.structs.replace(entry.status, file=file)
                self._entries[key] = replace(entry, status=moved)

    def _is_known(self, document: StoredDocument) -> bool:
        entry = self._entries.get(document.key)
        return (
            entry is not None
            and entry.digest == document.digest
            and entry.exceptions_digest == self._naming_of(document).digest
        )

    def _build(self, document: StoredDocument) -> _Entry:
        """Compile one policy, or reuse its earlier outcome."""
        naming = self._naming_of(document)
        outcome = self._outcomes.of(document, naming)
        if outcome.status is None:
            entry = self._refuse(document, outcome.code, outcome.message)
        else:
            # Not cached with the outcome, because the same text can be in another file.
            status = msgspec.structs.replace(
                outcome.status, file=document.file_and_line()
            )
            entry = _Entry(document.digest, status, outcome.encoded, document.packed)
        return replace(entry, exceptions_digest=naming.digest)

    def _naming_of(self, document: StoredDocument) -> Naming:
        return self._naming.get(policy_key(document.key), _UNNAMED)

    def _refuse(self, document: StoredDocument, code: str, message: str) -> _Entry:
        entry = self._entries.get(document.key)
        if entry is None or not entry.packed:
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
                file=document.file_and_line(),
            )
            return _Entry(document.digest, status, self._modes.failing(document))
        status = msgspec.structs.replace(
            entry.status,
            ready=False,
            message=message + _STAYS,
            generation=document.generation,
            code=code,
            file=document.file_and_line(),
            in_force=entry.packed.decode(),
        )
        return _Entry(document.digest, status, entry.encoded, entry.packed)


def exception_filter(settings: Settings) -> Callable[[str], bool]:
    """Return a predicate: whether PolicyExceptions of a namespace apply."""
    honoured = settings.exceptions_in
    return lambda namespace: honoured in ("*", namespace)


def new_store(settings: Settings, **more: Any) -> PolicyStore:
    """Return a store for these settings; ``more``: further arguments of PolicyStore."""
    return PolicyStore(
        exception_filter(settings),
        force_ignore=settings.force_failure_policy_ignore,
        # Only pods with a webhook report that no pool handles a policy.
        has_background=settings.has_background_pool or not settings.runs_webhook,
        modes=Modes(settings.evaluation_mode, settings.json_payloads),
        **more,
    )
