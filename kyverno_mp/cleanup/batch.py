"""Read, evaluate and delete the candidates of a run, in the version that was read.

Room: cleanup. Takes: candidates, an Evaluator. Gives: Batch: the numbers of deletions
and failures. Next: cleanup/runner.py. May touch: the API server through
cleanup/deletion.py, threads that end with the batch.
Source: docs/behaviour/controllers 7 (Delete with propagationPolicy; Events);
docs/architecture.md 3 (leases do not fence).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

from kyverno_mp.cleanup.deletion import Deleter, Preconditions
from kyverno_mp.cleanup.evaluator import Evaluator, Verdict
from kyverno_mp.cleanup.scan import Candidate
from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    KubeConflict,
    KubeNotFound,
    KubeRefused,
    KubeUnavailable,
)
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import CLEANUP_SHOWN_MAX
from kyverno_mp.program.secrecy import reason_for
from kyverno_mp.values.jsonvalue import Json

_THREADS: Final = 4
_CONFLICTS_MAX: Final = 5
_UNREACHABLE: Final = (KubeUnavailable, DeadlinePassed)


class DeletionRecorder(Protocol):
    """Records each deletion; any thread may call it."""

    def deleted(self, candidate: Candidate) -> None:
        """Record the deletion of an object."""

    def failed(self, candidate: Candidate, reason: str) -> None:
        """Record that an object could not be deleted."""


@dataclass(slots=True)
class Batch:
    """The outcome of a batch."""

    deleted: int = 0
    failed: int = 0
    skipped: int = 0
    """Number of objects that were gone, replaced or no longer selected when they were
    read again."""
    forbidden: set[str] = field(default_factory=set)
    """Kinds whose deletion the API server rejected."""
    reasons: dict[str, None] = field(default_factory=dict)
    """Other failures, up to a limit; Events and the log contain all of them."""

    def add(self, batch: "Batch") -> None:
        """Add the outcome of another batch of the same run."""
        self.deleted += batch.deleted
        self.failed += batch.failed
        self.skipped += batch.skipped
        self.forbidden |= batch.forbidden
        self.reasons |= batch.reasons


@dataclass(frozen=True, slots=True)
class Rules:
    """The checks of a batch before it writes.

    ``check_continue`` raises when the run has to stop. ``may_delete`` returns whether
    the account has the permission; it may call the API server.
    """

    check_continue: Callable[[], None]
    may_delete: Callable[[Candidate], bool]


class Batcher:
    """Deletes candidates in a few threads; an unreachable API server stops them all."""

    def __init__(
        self,
        client: Client,
        deleter: Deleter,
        evaluator: Evaluator,
        recorder: DeletionRecorder,
        rules: "Rules",
    ) -> None:
        self._client = client
        self._deleter = deleter
        self._evaluator = evaluator
        self._recorder = recorder
        self._check_continue = rules.check_continue
        self._may_delete = rules.may_delete
        self._lock = threading.Lock()
        self._stopped: BaseException | None = None
        self.batch = Batch()

    def run(self, candidates: Sequence[Candidate], propagation: str) -> Batch:
        """Delete the candidates. Raises: KubeUnavailable, DeadlinePassed, LeaseLost."""
        work = iter(candidates)
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            for _ in range(_THREADS):
                pool.submit(self._work, work, propagation)
        if self._stopped is not None:
            raise self._stopped
        return self.batch

    def _work(self, candidates: Iterator[Candidate], propagation: str) -> None:
        while True:
            with self._lock:
                if self._stopped is not None:
                    return
                candidate = next(candidates, None)
            if candidate is None:
                return
            try:
                self._remove(candidate, propagation)
            except BaseException as error:  # noqa: BLE001 - raised again in run()
                self._stop(error)
                return

    def _stop(self, error: BaseException) -> None:
        with self._lock:
            if self._stopped is None:
                self._stopped = error

    def _remove(self, candidate: Candidate, propagation: str) -> None:
        if not self._may_delete(candidate):
            self._forbid(candidate, "it may not be deleted by the clean-up account")
            return
        try:
            is_deleted = self._delete_selected(candidate, propagation)
        except _UNREACHABLE:
            raise
        except DependencyError as error:
            self._fail(candidate, error)
            return
        with self._lock:
            self.batch.deleted += is_deleted
            self.batch.skipped += not is_deleted
        if is_deleted:
            self._recorder.deleted(candidate)

    def _delete_selected(self, candidate: Candidate, propagation: str) -> bool:
        """Delete the object in a version that the policy selects, or return False."""
        attempts = 0
        while True:
            self._check_continue()
            preconditions = self._recheck(candidate)
            if preconditions is None:
                return False
            self._check_continue()
            try:
                return self._deleter.delete(
                    candidate.resource, candidate.key, preconditions, propagation
                )
            except KubeConflict:
                # The object has changed since it was read, so the new version is
                # evaluated.
                attempts += 1
                if attempts == _CONFLICTS_MAX:
                    raise

    def _recheck(self, candidate: Candidate) -> Preconditions | None:
        """Return the preconditions of the deletion, or None to keep the object."""
        raw = self._read(candidate)
        if raw is None or raw["metadata"].get("uid") != candidate.uid:
            return None
        verdict, _ = self._evaluator.evaluate(candidate.resource, raw, is_final=True)
        if verdict is not Verdict.DELETED:
            return None
        return Preconditions(candidate.uid, str(raw["metadata"]["resourceVersion"]))

    def _read(self, candidate: Candidate) -> Json | None:
        """Read the object; without permission to get it, list by its name."""
        resource, (namespace, name) = candidate.resource, candidate.key
        try:
            return self._client.get(resource.object(candidate.key))
        except KubeNotFound:
            return None
        except KubeRefused as error:
            if error.code != "kube.forbidden":
                raise
        query = [("fieldSelector", f"metadata.name={name}")]
        try:
            listed = self._client.get(resource.collection(namespace), query)
        except KubeNotFound:
            # K8S: the kind was removed together with its objects.
            return None
        for item in listed.get("items") or ():
            if item["metadata"].get("name") == name:
                return item
        return None

    def _fail(self, candidate: Candidate, error: DependencyError) -> None:
        # The message of a webhook that rejects the deletion may quote the object.
        reason = reason_for(candidate.resource.kind, error)
        if error.code == "kube.forbidden":
            self._forbid(candidate, reason)
            return
        with self._lock:
            self.batch.failed += 1
            if len(self.batch.reasons) < CLEANUP_SHOWN_MAX:
                self.batch.reasons[f"{candidate.shown}: {reason}"] = None
        self._recorder.failed(candidate, reason)

    def _forbid(self, candidate: Candidate, reason: str) -> None:
        with self._lock:
            self.batch.failed += 1
            self.batch.forbidden.add(candidate.resource.kind)
        self._recorder.failed(candidate, reason)
