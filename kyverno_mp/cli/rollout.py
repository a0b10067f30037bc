"""``rollout``: show the gradual enforcement of policies, and pause, resume or abort it.

Room: cli. Takes: a cluster. Gives: rows, as a table or JSON; a changed state.
May touch: the API server through kube/, with the caller's permissions; standard output.
Source: docs/gradual-enforcement.md.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from kyverno_mp.cli.cluster.access import open_cluster
from kyverno_mp.cli.cluster.resources import stored_objects
from kyverno_mp.cli.output.screen import one_line, say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.controllers.rollout_states import (
    CONFIG_MAPS,
    NAME,
    Stored,
    state_map,
    stored_in,
)
from kyverno_mp.controllers.rollouts import changed, initial, rollouts_in
from kyverno_mp.ir.rules import RolloutIR
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.policy_resources import resource_of
from kyverno_mp.kube.rest import Client
from kyverno_mp.snapshot.denials import number_in, together
from kyverno_mp.snapshot.rollouts import PROGRESSING, RolloutState
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS

RESOURCES: Final = tuple(
    resource_of(stored) for row in POLICY_KINDS if row.segment for stored in row.stored
)
"""The kinds of policies that reviews evaluate."""


class Row(NamedTuple):
    """The rollout of one policy; ``next``: when the next step is due, "" if never.

    ``denials``: how many count against the ``budget``, 0 without one.
    """

    policy: str
    phase: str
    percent: int
    steps: tuple[int, ...]
    next: str
    denials: int
    budget: int
    reason: str


def status(output: str, kyverno_namespace: str, kubeconfig: str, context: str) -> None:
    """Print the rollouts of all policies."""
    with open_cluster(kubeconfig, context) as cluster:
        rollouts = _rollouts(cluster.client)
        stored = _stored(Objects(cluster.client), kyverno_namespace)
    rows = [
        _row(name, rollout, stored, datetime.now(UTC))
        for name, rollout in rollouts.items()
    ]
    if output == "json":
        say(json.dumps([row._asdict() for row in rows]))
    elif rows:
        _print(rows)
    else:
        say("no policy is enforced gradually")


def change(
    action: str, policy: str, kyverno_namespace: str, kubeconfig: str, context: str
) -> None:
    """Pause, resume or abort the rollout of ``Kind/name`` or ``Kind/namespace/name``.

    Raises: CommandFailed, DependencyError.
    """
    name = policy.replace("/", "_")
    with open_cluster(kubeconfig, context) as cluster:
        rollout = _rollouts(cluster.client).get(name)
        if rollout is None:
            raise CommandFailed(f"{policy} is not enforced gradually")
        objects = Objects(cluster.client)
        state = _write(objects, kyverno_namespace, name, rollout, action)
    say(f"{policy}: {state.phase}, enforced for {state.percent(rollout)} %")


def _rollouts(client: Client) -> Mapping[str, RolloutIR]:
    """Return the rollouts of the stored policies by name. Raises: DependencyError."""
    return rollouts_in(map(msgspec.json.encode, stored_objects(client, RESOURCES)))


def _stored(objects: Objects, namespace: str) -> Stored:
    raw = objects.find(CONFIG_MAPS, (namespace, NAME))
    return Stored() if raw is None else stored_in(msgspec.Raw(msgspec.json.encode(raw)))


def _write(
    objects: Objects, namespace: str, name: str, rollout: RolloutIR, action: str
) -> RolloutState:
    """Store the changed state, and return it. Raises: CommandFailed, KubeConflict."""
    now_s = int(datetime.now(UTC).timestamp())
    result: list[RolloutState] = []

    def edited(raw: Json) -> Json:
        stored = stored_in(msgspec.Raw(msgspec.json.encode(raw)))
        try:
            state = changed(action, rollout, stored.states.get(name), now_s)
        except ValueError as error:
            raise CommandFailed(f"{name.replace('_', '/')}: {error}") from error
        result[:] = [state]
        data = {**(raw.get("data") or {}), name: msgspec.json.encode(state).decode()}
        return {**raw, "data": data}

    key = (namespace, NAME)
    if objects.change(CONFIG_MAPS, key, edited) is None:
        objects.create(CONFIG_MAPS, edited(state_map(key)))
    return result[0]


def _row(name: str, rollout: RolloutIR, stored: Stored, now: datetime) -> Row:
    state = stored.states.get(name)
    reason = "its stored state is invalid" if name in stored.invalid else ""
    if state is None or state.plan != rollout.plan:
        state = initial(rollout, 0)
    due = ""
    if state.phase == PROGRESSING and state.since_s:
        when = datetime.fromtimestamp(state.since_s + rollout.step_s, UTC)
        due = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    counted, budget = 0, rollout.budget
    if budget is not None and state.run:
        replicas = stored.counted.values()
        parts = together(replicas, {name: state.run}).get(name, ())
        counted = number_in(parts, budget, int(now.timestamp()))
    return Row(
        name.replace("_", "/"),
        state.phase,
        state.percent(rollout),
        rollout.steps,
        due,
        counted,
        0 if budget is None else budget.denials,
        state.reason or reason,
    )


def _print(rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("policy", "phase", "in force", "steps", "next step", "denials"):
        table.add_column(title, overflow="fold")
    for row in rows:
        steps = " -> ".join(map(str, row.steps))
        used = f"{row.denials} of {row.budget}" if row.budget else ""
        cells = (row.policy, row.phase, f"{row.percent} %", steps, row.next, used)
        table.add_row(*map(one_line, cells))
    Console().print(table, markup=False, highlight=False)
    for row in rows:
        if row.reason:
            say(one_line(f"{row.policy}: {row.reason}"))
