"""Record the denials that a step of a gradually enforced policy adds.

Room: webhook. Takes: the policies that deny a request. Gives: DenialRecords.
Next: leader/denials.py counts those of all workers and replicas.
May touch: the journal of this process, the wall clock; counts.
Source: docs/gradual-enforcement.md.

The record is in the journal before the answer is sent, so a kill -9 loses none. PERF:
an owner that is denied again costs two hashes and no record.
"""

import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.gradual import Standings, owner, position, space
from kyverno_mp.program.request import Request
from kyverno_mp.queues.journal import Journal
from kyverno_mp.snapshot.denials import (
    Denial,
    DenialCounts,
    DenialRecord,
    encode_denial,
)
from kyverno_mp.snapshot.rollouts import name_of
from kyverno_mp.webhook.ports import Records

DENIALS_FULL: Final = "webhook.denials_full"
_CONTROLLERS: Final = (
    "system:serviceaccount:kube-system:",
    "system:kube-controller-manager",
)
"""K8S: the users of Kubernetes' own controllers, which act for everybody."""
_HASH_BYTES: Final = 6


class DenialSink:
    """Appends records to this worker's journal; thread-safe."""

    def __init__(
        self,
        journal: Journal,
        standing: Standings,
        records: Records,
        now_s: Callable[[], float],
    ) -> None:
        """``now_s`` returns the wall-clock time."""
        self._journal = journal
        self._standing = standing
        self._records = records
        self._now_s = now_s
        self._lock = threading.Lock()
        self._counts = DenialCounts()

    def denied(self, policies: Sequence[PolicyIR], request: Request) -> None:
        """Record a denial by ``policies`` if their last steps would have allowed it."""
        added: list[tuple[PolicyIR, str]] = []
        for policy in policies:
            if policy.rollout is None:
                return
            standing = self._standing(policy)
            if position(policy, request) < standing.completed:
                return
            if policy.rollout.budget is not None and standing.run:
                added.append((policy, standing.run))
        for policy, run in added:
            self._record(policy, run, request)

    def _record(self, policy: PolicyIR, run: str, request: Request) -> None:
        assert policy.rollout is not None
        assert policy.rollout.budget is not None
        denial = _denial(policy, request, int(self._now_s()))
        record = DenialRecord(name_of(policy), run, policy.rollout.budget, denial)
        with self._lock:
            before = self._counts.counted.get(record.name)
            if not self._counts.add(record):
                return
            if self._journal.append(encode_denial(record), policy.namespace or None):
                return
            # The next denial of this owner is another attempt.
            if before is None:
                del self._counts.counted[record.name]
            else:
                self._counts.counted[record.name] = before
        self._records.error(DENIALS_FULL)


def _denial(policy: PolicyIR, request: Request, at_s: int) -> Denial:
    """Return what is counted.

    A namespaced policy sees one namespace only, which is not capped: there, each user
    is, and otherwise whoever does not act for everybody.
    """
    acts_for_all = request.username.startswith(_CONTROLLERS)
    is_capped = bool(policy.namespace) or not acts_for_all
    return Denial(
        _hash(owner(request)),
        "" if policy.namespace else _hash(space(request)),
        _hash(request.username) if is_capped else "",
        at_s,
    )


def _hash(value: str) -> str:
    raw = value.encode("utf-8", "surrogatepass")
    return blake2b(raw, digest_size=_HASH_BYTES).hexdigest()
