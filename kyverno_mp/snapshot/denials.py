"""Count the denials that a step of a gradually enforced policy adds.

Room: snapshot. Takes: DenialRecords of workers. Gives: Counted, what one replica stores
for the others; the number that counts against a policy's budget.
Next: webhook/review/denials.py records, leader/denials.py counts.
Source: docs/gradual-enforcement.md.

A denial counts once for each owner of objects, and not all of one namespace and one
user count: nobody can push a policy out of force by retrying.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kyverno_mp.errors import StateError
from kyverno_mp.ir.rules import BudgetIR
from kyverno_mp.limits import (
    ROLLOUT_DENIALS_KEPT_MAX,
    ROLLOUT_TENANT_KEPT_MAX,
    ROLLOUT_TENANTS_KEPT_MAX,
)
from kyverno_mp.snapshot.rollouts import FELL_BACK, RolloutState
from kyverno_mp.values.records import UNDECODABLE


class Denial(msgspec.Struct, frozen=True, array_like=True):
    """A denial. ``owner``, ``namespace`` and ``user`` are hashes; "": not capped.

    ``at_s``: seconds since the Unix epoch.
    """

    owner: str
    namespace: str
    user: str
    at_s: int


class DenialRecord(msgspec.Struct, frozen=True, array_like=True):
    """A denial by the policy ``name`` (as in snapshot/rollouts.py) in one ``run``."""

    name: str
    run: str
    budget: BudgetIR
    denial: Denial


class Counted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one replica has counted for one policy since its step began.

    ``is_exceeded`` outlives the window.
    """

    run: str
    budget: BudgetIR
    denials: tuple[Denial, ...] = ()
    is_exceeded: bool = False


CountedByPolicy = dict[str, Counted]
"""By the name of the policy; the value of one replica in the stored object."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(DenialRecord)
_STORED: Final = msgspec.json.Decoder(CountedByPolicy)
_PARTS_OF_TENANT: Final = 2


def encode_denial(record: DenialRecord) -> bytes:
    """Encode a record for a journal."""
    return _ENCODER.encode(record)


def decode_denial(record: bytes) -> DenialRecord:
    """Decode a record. Raises: StateError if the bytes are not a record."""
    try:
        return _DECODER.decode(record)
    except UNDECODABLE as error:
        raise StateError("queues.record", f"not a record: {error}") from error


def decode_counted(value: str) -> CountedByPolicy:
    """Decode what a replica stored. Raises: msgspec.DecodeError, UnicodeEncodeError."""
    return _STORED.decode(value)


def number_of(budget: BudgetIR, denials: Iterable[Denial], end_s: int) -> int:
    """Return how many denials count in the window that ends at ``end_s``."""
    owners: set[str] = set()
    namespaces: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for denial in sorted(denials, key=_by_time):
        if not end_s - budget.window_s < denial.at_s <= end_s:
            continue
        if denial.owner in owners:
            continue
        if denial.namespace and namespaces[denial.namespace] >= budget.per_namespace:
            continue
        if denial.user and users[denial.user] >= budget.per_user:
            continue
        owners.add(denial.owner)
        namespaces[denial.namespace] += 1
        users[denial.user] += 1
    return len(owners)


def _by_time(denial: Denial) -> tuple[int, str]:
    return denial.at_s, denial.owner


class DenialCounts:
    """The denials that one process has counted; bounded."""

    def __init__(self, counted: Mapping[str, Counted] | None = None) -> None:
        """``counted``: what an earlier process has counted."""
        self.counted: CountedByPolicy = dict(counted or {})

    def add(self, record: DenialRecord) -> bool:
        """Count a denial; return False if it does not count, or not again."""
        budget, end_s = record.budget, record.denial.at_s
        counted = self.counted.get(record.name)
        if counted is None or counted.run != record.run:
            counted = Counted(record.run, budget)
        recent = tuple(
            each for each in counted.denials if each.at_s > end_s - budget.window_s
        )
        # What exceeds the budget needs no more denials.
        if counted.is_exceeded or len(recent) > budget.denials:
            return False
        if not _adds(record.denial, recent, budget):
            return False
        if not self._has_room(record.name):
            self.forget_old(end_s)
            if not self._has_room(record.name):
                return False
        denials = (*recent, record.denial)
        self.counted[record.name] = Counted(record.run, budget, denials)
        return True

    def keep(self, runs: Mapping[str, str]) -> None:
        """Forget the denials of other steps than those in progress."""
        for name, counted in list(self.counted.items()):
            if runs.get(name) != counted.run:
                del self.counted[name]

    def exceed(self, name: str) -> None:
        """Keep that the budget of a policy is exceeded, also after the window."""
        counted = self.counted[name]
        self.counted[name] = msgspec.structs.replace(counted, is_exceeded=True)

    def forget_old(self, now_s: int) -> None:
        """Forget the policies whose denials are all older than the window."""
        for name, counted in list(self.counted.items()):
            if is_old(counted, now_s):
                del self.counted[name]

    def _has_room(self, name: str) -> bool:
        """Return whether there is room for another denial by the policy."""
        sizes = {each: len(one.denials) for each, one in self.counted.items()}
        if sum(sizes.values()) >= ROLLOUT_DENIALS_KEPT_MAX:
            return False
        tenant = _tenant_of(name)
        if not tenant:
            return True
        tenants: Counter[str] = Counter()
        for each, size in sizes.items():
            tenants[_tenant_of(each)] += size
        of_all = tenants.total() - tenants[""]
        return of_all < ROLLOUT_TENANTS_KEPT_MAX and (
            tenants[tenant] < ROLLOUT_TENANT_KEPT_MAX
        )


def _adds(denial: Denial, counted: Iterable[Denial], budget: BudgetIR) -> bool:
    """Return whether a denial counts beside those that count already.

    PERF: retries come here.
    """
    in_namespace = by_user = 0
    for other in counted:
        if other.owner == denial.owner:
            return False
        in_namespace += other.namespace == denial.namespace != ""
        by_user += other.user == denial.user != ""
    return in_namespace < budget.per_namespace and by_user < budget.per_user


def _tenant_of(name: str) -> str:
    """Return the namespace of a policy, "" of one of the whole cluster."""
    parts = name.split("_")
    return parts[1] if len(parts) > _PARTS_OF_TENANT else ""


class Excess(msgspec.Struct, frozen=True):
    """A budget that was exceeded: in which ``run``, and what a person is told."""

    run: str
    reason: str


def is_old(counted: Counted, now_s: int) -> bool:
    """Return whether nothing of it counts any more."""
    newest_s = max((denial.at_s for denial in counted.denials), default=0)
    return not counted.is_exceeded and newest_s <= now_s - counted.budget.window_s


def fallen_back(
    states: Mapping[str, RolloutState], excesses: Mapping[str, Excess]
) -> dict[str, RolloutState]:
    """Return the states of policies in force after budgets were exceeded."""
    in_force = dict(states)
    for name, excess in excesses.items():
        state = states.get(name)
        if state is not None and state.run == excess.run:
            in_force[name] = msgspec.structs.replace(
                state, phase=FELL_BACK, reason=excess.reason
            )
    return in_force


def together(
    replicas: Iterable[Mapping[str, Counted]], runs: Mapping[str, str]
) -> dict[str, list[Counted]]:
    """Return what all replicas have counted for the steps in progress, by policy."""
    merged: dict[str, list[Counted]] = {}
    for replica in replicas:
        for name, counted in replica.items():
            if counted.run and runs.get(name) == counted.run:
                merged.setdefault(name, []).append(counted)
    return merged


def excess_of(parts: list[Counted], now_s: int) -> Excess | None:
    """Return whether the replicas together exceed the budget."""
    budget = parts[0].budget
    number = number_in(parts, budget, now_s)
    if number <= budget.denials and not any(part.is_exceeded for part in parts):
        return None
    return Excess(
        parts[0].run,
        f"more than {budget.denials} owners of objects were denied within"
        f" {budget.window_s} s that the last completed step would have let pass",
    )


def number_in(parts: Iterable[Counted], budget: BudgetIR, now_s: int) -> int:
    """Return how many denials of all replicas count now.

    A clock that is ahead does not keep a denial longer than the window.
    """
    denials = (
        msgspec.structs.replace(denial, at_s=min(denial.at_s, now_s))
        for part in parts
        for denial in part.denials
    )
    return number_of(budget, denials, now_s)
