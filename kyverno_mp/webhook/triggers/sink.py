"""Record the rules that a review triggers, before its answer is sent.

Room: webhook. Takes: a Request and its Triggered rules. Gives: nothing; TriggerSink
appends. Next: leader/triggers/writer.py creates UpdateRequests.
May touch: the journal of this process; counts.
Source: docs/behaviour/controllers 5.2; docs/pools.md 3.

The record is in the journal when ``triggered`` returns, so a kill -9 after the answer
loses nothing. Objects are recorded only if they cannot be read later, and they are
never logged.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from kyverno_mp.limits import TRIGGER_RECORD_BYTES_MAX
from kyverno_mp.program.changes import SOURCE, Change
from kyverno_mp.program.generate.triggers import (
    CEL_GENERATE,
    CEL_MUTATE,
    GENERATE,
    Triggered,
)
from kyverno_mp.program.request import Request
from kyverno_mp.queues.journal import Journal
from kyverno_mp.queues.triggers import (
    LEFT_ROLE,
    UNPROVED_ROLE,
    TriggerObject,
    TriggerRecord,
    Wanted,
    encode_trigger,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same
from kyverno_mp.webhook.audit.records import space_of
from kyverno_mp.webhook.ports import Records
from kyverno_mp.webhook.triggers.lost import LostPolicies

JOURNAL_FULL: Final = "webhook.triggers_full"
TOO_LARGE: Final = "webhook.trigger_too_large"
TRIGGER_UNPROVED: Final = "webhook.trigger_unproved"
_OF_CEL: Final = frozenset({CEL_GENERATE, CEL_MUTATE})
_MANAGED: Final = "managedFields"
_LEFT_OUT: Final = frozenset({"object", "oldObject", "options"})
_GENERATING: Final = frozenset({GENERATE, CEL_GENERATE})
_WRITES: Final = frozenset({"CREATE", "UPDATE"})
_GOING: Final = frozenset({"DELETE", "CONNECT"})


class TriggerSink:
    """Appends records to this worker's journal; thread-safe."""

    def __init__(
        self,
        journal: Journal,
        records: Records,
        now_ns: Callable[[], int],
        lost: LostPolicies,
    ) -> None:
        """``now_ns`` returns the wall-clock time."""
        self._journal = journal
        self._lost_policies = lost
        self._records = records
        self._now_ns = now_ns

    def triggered(self, request: Request, found: Sequence[Triggered]) -> None:
        """Record the rules that an allowed request triggers, in one append."""
        record = record_of(request, found, self._now_ns())
        content = encode_trigger(record)
        if len(content) > TRIGGER_RECORD_BYTES_MAX:
            self._lost(TOO_LARGE, record.wanted)
        elif not self._journal.append(content, space_of(request)):
            self._lost(JOURNAL_FULL, record.wanted)

    def changed(self, request: Request, change: Change) -> None:
        """Record that an allowed request changes a source or a generated object."""
        record = change_record(request, change, self._now_ns())
        if not self._journal.append(encode_trigger(record), space_of(request)):
            self._lost(JOURNAL_FULL, record.wanted)

    def without_proof(self, knows: Callable[[str], bool]) -> "UnprovedTriggers":
        """Return the sink of reviews that anyone could have sent.

        ``knows`` returns whether a policy of kyverno.io exists, by its key.
        """
        return UnprovedTriggers(self._lost_policies, self._records, knows)

    def _lost(self, code: str, wanted: Sequence[Wanted]) -> None:
        self._records.error(code)
        self._lost_policies.add(
            sorted({(lost_type(one), one.policy) for one in wanted})
        )


class UnprovedTriggers:
    """Lets the pool find the triggers itself; nothing of a review is recorded.

    SAFETY: generating is safe to repeat, and the pool reads the triggers live. What it
    cannot read starts nothing: users, old objects, subresources, and deleted triggers
    of rules that list DELETE. Nor does changing existing objects, which a repetition
    can change twice.
    """

    def __init__(
        self, lost: LostPolicies, records: Records, knows: Callable[[str], bool]
    ) -> None:
        self._lost_policies = lost
        self._records = records
        self._knows = knows

    def triggered(self, request: Request, found: Sequence[Triggered]) -> None:
        """Record the policies, which are few, so that anyone may repeat a review."""
        is_alive = request.operation in _WRITES
        readable: list[tuple[str, str]] = []
        left: list[tuple[str, str]] = []
        for one in found:
            is_generated = one.type in _GENERATING and not request.subresource
            runs = is_generated and (is_alive or one.deletes)
            (readable if runs else left).append((lost_type(one), one.policy))
        # The pool lists their triggers, and leaves out the rules that need a review.
        noted = [(lost_type(one), one.policy) for one in found if one.needs_review]
        self._lost_policies.add(sorted(set(noted)), LEFT_ROLE)
        self._add(readable, left)

    def changed(self, request: Request, change: Change) -> None:
        """Record the policy of a generated object, or all policies for a source."""
        del request
        policy = "" if change.origin is None else change.origin.policy
        is_known = not policy or self._knows(policy)
        if is_known:
            self._add([(GENERATE, policy)], [])
        else:
            self._records.error(TRIGGER_UNPROVED)

    def _add(
        self, policies: Iterable[tuple[str, str]], left: Sequence[tuple[str, str]]
    ) -> None:
        """Record the policies to sync, and those that are not carried out."""
        if left:
            self._records.error(TRIGGER_UNPROVED)
            self._lost_policies.add(sorted(set(left)), LEFT_ROLE)
        self._lost_policies.add(sorted(set(policies)), UNPROVED_ROLE)


def lost_type(wanted: Wanted | Triggered) -> str:
    """Return the type by which policies that lost a trigger are recorded."""
    return wanted.type if wanted.type in _OF_CEL else GENERATE


def record_of(
    request: Request, found: Sequence[Triggered], now_ns: int
) -> TriggerRecord:
    """Return the record of the rules that one review triggers."""
    trigger = trigger_of(request)
    # K8S: a mutating webhook receives neither the name nor the uid of an object with
    # generateName.
    is_unreadable = (
        request.operation in _GOING or bool(request.subresource) or trigger.is_nameless
    )
    wanted = tuple(
        Wanted(
            one.type,
            one.policy,
            one.rules,
            one.deletes,
            one.synchronize,
            with_objects=not one.deletes and (is_unreadable or one.reads_old),
            unchecked=one.unchecked,
        )
        for one in found
    )
    raw = request.review_request or {}
    review = {key: value for key, value in raw.items() if key not in _LEFT_OUT}
    carries = any(one.with_objects for one in wanted)
    return TriggerRecord(
        now_ns,
        wanted,
        trigger,
        request.operation,
        request.roles,
        request.cluster_roles,
        msgspec.json.encode(review),
        _objects(request, is_unreadable=is_unreadable) if carries else b"",
    )


def change_record(request: Request, change: Change, now_ns: int) -> TriggerRecord:
    """Return the record of a changed clone source or generated object.

    It needs no review, because generated objects depend only on the trigger.
    """
    changed = trigger_of(request)
    origin, trigger = change.origin, change.trigger
    is_gone = change.role == SOURCE and request.operation == "DELETE"
    wanted = Wanted(
        GENERATE,
        "" if origin is None else origin.policy,
        ("" if origin is None else origin.rule,),
        deletes=is_gone,
        synchronize=True,
    )
    return TriggerRecord(
        *(now_ns, (wanted,), changed if trigger is None else TriggerObject(*trigger)),
        request.operation,
        role=change.role,
        changed=changed,
    )


def _objects(request: Request, *, is_unreadable: bool) -> bytes:
    """Encode the objects, except an object with a name, which is read live."""
    objects: dict[str, Json] = {}
    if request.old_object:
        objects["oldObject"] = request.old_object
    if request.object and is_unreadable:
        objects["object"] = request.object
    return msgspec.json.encode(objects)


def trigger_of(request: Request) -> TriggerObject:
    """Return the object that the rules matched, as named in the review."""
    resource = request.object or request.old_object
    metadata = resource.get("metadata")
    if type(metadata) is not dict:
        metadata = {}
    own = f"{request.group}/{request.version}" if request.group else request.version
    namespace = "" if request.kind == "Namespace" else request.namespace
    return TriggerObject(
        _text(resource.get("apiVersion")) or own,
        _text(resource.get("kind")) or request.kind,
        _text(metadata.get("namespace")) or namespace,
        _text(metadata.get("name")) or request.name,
        _text(metadata.get("uid")),
        _version_before(request),
    )


def _version_before(request: Request) -> str:
    """Return the version that an update replaces, "" if no new version follows.

    K8S: an update without changes keeps the version; changes of managedFields alone do
    not count.
    """
    if request.operation != "UPDATE":
        return ""
    old = request.old_object.get("metadata")
    if type(old) is not dict or _is_same(request.object, request.old_object):
        return ""
    return _text(old.get("resourceVersion"))


def _is_same(new: dict[str, Json], old: dict[str, Json]) -> bool:
    metadata, before = new.get("metadata"), old.get("metadata")
    if type(metadata) is not dict or type(before) is not dict:
        return False
    metadata = {name: one for name, one in metadata.items() if name != _MANAGED}
    before = {name: one for name, one in before.items() if name != _MANAGED}
    return same(metadata, before) and same(
        {**new, "metadata": None}, {**old, "metadata": None}
    )


def _text(value: object) -> str:
    return value if type(value) is str else ""
