"""Raise the share of policies that are put into force gradually, by their schedules.

Room: controllers. Takes: the stored policies, the ConfigMap with the states, an
Election. Gives: the states to every replica's workers; the lease holder stores them.
Next: leader/rollouts.py publishes them. May touch: one ConfigMap through kube/apply.py,
the clock. Source: docs/gradual-enforcement.md.

A step lasts at least as long as its policy says, also if nobody held the lease.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.compiler.described import build_rollout
from kyverno_mp.controllers.rollout_states import (
    CONFIG_MAPS,
    Stored,
    counts_key,
    state_map,
)
from kyverno_mp.ir.rules import PolicyIR, RolloutIR
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import Election
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import ROLLOUTS_MAX
from kyverno_mp.policy.gradual import PREFIX
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.snapshot.denials import (
    CountedByPolicy,
    Excess,
    fallen_back,
    is_old,
)
from kyverno_mp.snapshot.rollouts import (
    ABORTED,
    COMPLETED,
    FELL_BACK,
    PAUSED,
    PHASES,
    PROGRESSING,
    Phase,
    RolloutState,
    name_of,
)

CONTROLLER: Final = "rollouts-controller"
ALL: Final = "all"
"""The only key."""
_RESYNC_S: Final = 10.0
_ENDED_S: Final = 60
"""Counts are older than their window for this long before another replica removes them.
"""
_BEFORE: Final[Mapping[str, tuple[str, ...]]] = {
    "pause": (PROGRESSING,),
    "resume": (PAUSED, ABORTED, FELL_BACK),
    "abort": (PROGRESSING, PAUSED, COMPLETED, FELL_BACK),
}
"""The phases in which a person can do something."""
_MARK: Final = PREFIX.encode()


class _Metadata(msgspec.Struct):
    name: str
    namespace: str = ""
    annotations: dict[str, str] = {}


class _Policy(msgspec.Struct):
    kind: str
    metadata: _Metadata


_POLICY: Final = msgspec.json.Decoder(_Policy)


def rollouts_in(documents: Iterable[bytes]) -> dict[str, RolloutIR]:
    """Return the rollouts of policies by name; cluster policies come first.

    PERF: of thousands of policies, only those with annotations are decoded.
    """
    rollouts: list[tuple[bool, str, RolloutIR]] = []
    for text in documents:
        if _MARK not in text:
            continue
        policy = _POLICY.decode(text)
        rollout = build_rollout(policy.metadata.annotations)
        if rollout is not None:
            namespace = policy.metadata.namespace
            described = PolicyIR(policy.kind, policy.metadata.name, namespace)
            rollouts.append((bool(namespace), name_of(described), rollout))
    rollouts.sort(key=lambda row: row[:2])
    return {name: rollout for _, name, rollout in rollouts[:ROLLOUTS_MAX]}


def advanced(
    rollout: RolloutIR, state: RolloutState | None, now_s: int
) -> RolloutState | None:
    """Return the state that is due; None for a rollout without a schedule."""
    last = len(rollout.steps) - 1
    if state is None or state.plan != rollout.plan:
        return initial(rollout, now_s) if last else None
    if state.phase != PROGRESSING or now_s - state.since_s < rollout.step_s:
        return state
    step = min(state.step + 1, last)
    phase: Phase = COMPLETED if step == last else PROGRESSING
    return RolloutState(rollout.plan, phase, step, now_s)


def initial(rollout: RolloutIR, now_s: int) -> RolloutState:
    """Return the state of a rollout that begins."""
    phase: Phase = PROGRESSING if len(rollout.steps) > 1 else COMPLETED
    return RolloutState(rollout.plan, phase, 0, now_s)


def changed(
    action: str, rollout: RolloutIR, state: RolloutState | None, now_s: int
) -> RolloutState:
    """Return the state after a person's action: pause, resume or abort.

    Raises: ValueError if the action makes no sense in the state's phase.
    """
    if state is None or state.plan != rollout.plan:
        state = initial(rollout, now_s)
    if state.phase not in _BEFORE[action]:
        raise ValueError(f"its rollout is {state.phase}, nothing to {action}")
    phase: Phase = PAUSED if action == "pause" else ABORTED
    if action == "resume":
        is_last = state.step >= len(rollout.steps) - 1
        phase = COMPLETED if is_last else PROGRESSING
        return RolloutState(rollout.plan, phase, state.step, now_s, state.reason)
    return msgspec.structs.replace(state, phase=phase)


def _counted(
    rollouts: Mapping[str, RolloutIR], states: Mapping[str, RolloutState]
) -> dict[str, int]:
    counts = dict.fromkeys(PHASES, 0)
    for name, rollout in rollouts.items():
        state = states.get(name) or initial(rollout, 0)
        counts[state.phase] = counts.get(state.phase, 0) + 1
    return counts


def _count_nothing() -> None:
    """Count nothing."""


def _tell_nobody(_name: str, _state: RolloutState) -> bool:
    """Say nothing."""
    return True


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the controller reads, and where it publishes."""

    stored: Callable[[], Stored | None]
    """Returns the content of the ConfigMap, None while it is unknown."""
    documents: Callable[[], Iterable[bytes] | None]
    """Returns the policies, None while they are not complete."""
    publish: Callable[[Mapping[str, RolloutState]], None]
    excesses: Callable[[], Mapping[str, Excess]] = dict
    """Returns the budgets that are exceeded."""
    on_fall_back: Callable[[], None] = _count_nothing
    """Called when it is stored that a policy fell back."""
    tell: Callable[[str, RolloutState], bool] = _tell_nobody
    """Says in the status and in an Event of a policy whether it fell back; returns
    whether it did, or must again."""


class RolloutsController:
    """Stores and publishes states; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        objects: Objects,
        election: Election,
        key: Key,
        inputs: Inputs,
        clock: Clock,
    ) -> None:
        """``objects``: writes that only the lease holder may do."""
        self._objects = objects
        self._election = election
        self._key = key
        self._inputs = inputs
        self._clock = clock
        self._last: Mapping[str, RolloutState] = {}
        self._counts = dict.fromkeys(PHASES, 0)
        self._told: set[tuple[str, RolloutState]] = set()
        """The fall-backs that this process has told since it holds the lease."""

    def counts(self) -> Mapping[str, int]:
        """Return the number of rollouts by phase, for metrics; from any thread."""
        return self._counts

    def reconcile(self, _key: str) -> Result:
        """Publish the stored states, and store those that are due."""
        stored = self._inputs.stored()
        if stored is None:
            return Result(retry=True)
        # An object that somebody deleted is written again.
        states = stored.states if stored.version else self._last
        self._last = states
        self._inputs.publish(states)
        if not self._election.holds():
            self._counts = dict.fromkeys(PHASES, 0)
            self._told.clear()
            return Result(after_s=_RESYNC_S)
        documents = self._inputs.documents()
        if documents is None:
            return Result(retry=True)
        rollouts = rollouts_in(documents)
        due = self._due(rollouts, states)
        self._counts = _counted(rollouts, due)
        after = self._cleared(stored.states, due)
        ended = list(_ended(stored.counted, due, self._now_s()))
        if ended or after != stored.states:
            self._write(stored, after, ended)
        self._tell(due)
        return Result(after_s=_RESYNC_S)

    def _due(
        self, rollouts: Mapping[str, RolloutIR], states: Mapping[str, RolloutState]
    ) -> dict[str, RolloutState]:
        now_s = self._now_s()
        due = {}
        in_force = fallen_back(states, self._inputs.excesses())
        for name, state in in_force.items():
            if state is not states[name]:
                in_force[name] = msgspec.structs.replace(state, since_s=now_s)
        states = in_force
        for name, rollout in rollouts.items():
            after = advanced(rollout, states.get(name), now_s)
            if after is not None:
                due[name] = after
        return due

    def _now_s(self) -> int:
        return int(self._clock.now().timestamp())

    def _write(
        self, stored: Stored, due: Mapping[str, RolloutState], ended: Iterable[str]
    ) -> None:
        """Store changed states, without the keys that have ``ended``.

        Raises: KubeConflict if somebody else changed them.
        """
        before = stored.states
        data: dict[str, str | None] = dict.fromkeys(before.keys() - due.keys())
        data.update(dict.fromkeys(ended))
        for name, state in due.items():
            if before.get(name) != state:
                data[name] = msgspec.json.encode(state).decode()
        if stored.version:
            metadata = {"resourceVersion": stored.version}
            patch = {"metadata": metadata, "data": data}
            self._objects.merge(CONFIG_MAPS, self._key, patch)
        else:
            self._objects.create(CONFIG_MAPS, {**state_map(self._key), "data": data})
        for name, state in due.items():
            if state.phase == FELL_BACK and before.get(name) != state:
                self._inputs.on_fall_back()

    def _tell(self, due: Mapping[str, RolloutState]) -> None:
        """Tell each fall-back once, and again in each term. Raises: DependencyError."""
        current = {item for item in due.items() if item[1].phase == FELL_BACK}
        self._told &= current
        for name, state in current - self._told:
            if self._inputs.tell(name, state):
                self._told.add((name, state))

    def _cleared(
        self, stored: Mapping[str, RolloutState], due: Mapping[str, RolloutState]
    ) -> dict[str, RolloutState]:
        """Return what to store: a reason stays until its policy no longer says it.

        So a leader that ends before it could tell leaves this to the next one.
        """
        after = dict(due)
        for name, state in stored.items():
            is_back = name in due and due[name].phase == FELL_BACK
            if not state.reason or is_back:
                continue
            if not self._inputs.tell(name, without_reason(state)):
                after[name] = msgspec.structs.replace(
                    due.get(name, state), reason=state.reason
                )
            elif name in due:
                after[name] = without_reason(due[name])
        return after


def without_reason(state: RolloutState) -> RolloutState:
    """Return the state of a policy whose status need not say that it fell back."""
    return msgspec.structs.replace(state, reason="")


def _ended(
    counted: Mapping[str, CountedByPolicy],
    states: Mapping[str, RolloutState],
    now_s: int,
) -> Iterator[str]:
    """Yield the keys of dead replicas whose counts all ended."""
    runs = {name: state.run for name, state in states.items()}
    for replica, by_policy in counted.items():
        if not any(
            runs.get(name) == one.run and not is_old(one, now_s - _ENDED_S)
            for name, one in by_policy.items()
        ):
            yield counts_key(replica)
