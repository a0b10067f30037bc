"""Raise the share of policies that are put into force gradually, by their schedules.

Room: controllers. Takes: the stored policies, the ConfigMap with the states, an
Election. Gives: the states to every replica's workers; the lease holder stores them.
Next: leader/rollouts.py publishes them. May touch: one ConfigMap through kube/apply.py,
the clock. Source: docs/gradual-enforcement.md.

    data:
      ClusterPolicy_require-team: '{"plan": "5f0c..", "phase": "Progressing", "step": 1,
        "since_s": 1700000000}'

The state is not in the policy, because tools that apply manifests would revert it. A
step lasts at least as long as its policy says, also if nobody held the lease.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.compiler.described import build_rollout
from kyverno_mp.ir.rules import PolicyIR, RolloutIR
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import Election
from kyverno_mp.kube.resource import Key, core
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import ROLLOUTS_MAX
from kyverno_mp.policy.gradual import PREFIX
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.snapshot.rollouts import (
    ABORTED,
    COMPLETED,
    PAUSED,
    PHASES,
    PROGRESSING,
    Phase,
    RolloutState,
    name_of,
)
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
CONTROLLER: Final = "rollouts-controller"
ALL: Final = "all"
"""The only key."""
CONFIG_MAPS: Final = core("configmaps")
NAME: Final = "kyverno-mp-rollouts"
_RESYNC_S: Final = 10.0
_BEFORE: Final[Mapping[str, tuple[str, ...]]] = {
    "pause": (PROGRESSING,),
    "resume": (PAUSED, ABORTED),
    "abort": (PROGRESSING, PAUSED, COMPLETED),
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


class Stored(msgspec.Struct, frozen=True):
    """The content of the ConfigMap; ``version`` is its resource version."""

    version: str = ""
    states: dict[str, RolloutState] = {}


class _ConfigMap(msgspec.Struct):
    metadata: dict[str, object]
    data: dict[str, str] | None = None


_POLICY: Final = msgspec.json.Decoder(_Policy)
_CONFIG_MAP: Final = msgspec.json.Decoder(_ConfigMap)
_STATE: Final = msgspec.json.Decoder(RolloutState)


def scope_of(namespace: str) -> WatchScope:
    """Return the scope to watch; ``stored_in`` is its projection."""
    selector = f"metadata.name={NAME}"
    return WatchScope(
        resource=CONFIG_MAPS, namespace=namespace, field_selector=selector
    )


def stored_in(raw: msgspec.Raw) -> Stored:
    """Read the ConfigMap; a state that is invalid counts as absent."""
    content = _CONFIG_MAP.decode(raw)
    states = {}
    for name, text in (content.data or {}).items():
        try:
            states[name] = _STATE.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            _log.warning("rollouts: the state %s is invalid", name)
    return Stored(str(content.metadata.get("resourceVersion") or ""), states)


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
        return RolloutState(rollout.plan, phase, state.step, now_s)
    return msgspec.structs.replace(state, phase=phase)


def _counted(
    rollouts: Mapping[str, RolloutIR], states: Mapping[str, RolloutState]
) -> dict[str, int]:
    counts = dict.fromkeys(PHASES, 0)
    for name, rollout in rollouts.items():
        state = states.get(name) or initial(rollout, 0)
        counts[state.phase] = counts.get(state.phase, 0) + 1
    return counts


def state_map(key: Key) -> Json:
    """Return the ConfigMap without states."""
    namespace, name = key
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the controller reads, and where it publishes."""

    stored: Callable[[], Stored | None]
    """Returns the content of the ConfigMap, None while it is unknown."""
    documents: Callable[[], Iterable[bytes] | None]
    """Returns the policies, None while they are not complete."""
    publish: Callable[[Mapping[str, RolloutState]], None]


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
            return Result(after_s=_RESYNC_S)
        documents = self._inputs.documents()
        if documents is None:
            return Result(retry=True)
        rollouts = rollouts_in(documents)
        due = self._due(rollouts, states)
        self._counts = _counted(rollouts, due)
        if due == stored.states:
            return Result(after_s=_RESYNC_S)
        self._write(stored, due)
        return Result(after_s=_RESYNC_S)

    def _due(
        self, rollouts: Mapping[str, RolloutIR], states: Mapping[str, RolloutState]
    ) -> dict[str, RolloutState]:
        now_s = int(self._clock.now().timestamp())
        due = {}
        for name, rollout in rollouts.items():
            state = advanced(rollout, states.get(name), now_s)
            if state is not None:
                due[name] = state
        return due

    def _write(self, stored: Stored, due: Mapping[str, RolloutState]) -> None:
        """Store changed states. Raises: KubeConflict if somebody else changed them."""
        data: dict[str, str | None] = dict.fromkeys(stored.states.keys() - due.keys())
        for name, state in due.items():
            if stored.states.get(name) != state:
                data[name] = msgspec.json.encode(state).decode()
        if stored.version:
            metadata = {"resourceVersion": stored.version}
            patch = {"metadata": metadata, "data": data}
            self._objects.merge(CONFIG_MAPS, self._key, patch)
        else:
            self._objects.create(CONFIG_MAPS, {**state_map(self._key), "data": data})
