"""Write each GlobalContextEntry's readiness and refresh time into its status.

Room: controllers. Takes: this pod's state of each entry. Gives: the Ready
condition, lastRefreshTime. Next: the API server; global_context_controller.py calls
it. May touch: the API server through kube/apply.py.
Source: docs/behaviour/controllers 1.5, 11.3.

If the status of one entry cannot be written, the others are still written.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
State = tuple[bool, str, datetime | None]
"""Whether an entry can be read, why not, and when it was last refreshed."""
RESOURCE: Final = Resource(
    group="kyverno.io",
    version="v2beta1",
    plural="globalcontextentries",
    namespaced=False,
)
_MESSAGE_CHARACTERS_MAX: Final = 1024


class GlobalContextStatuses:
    """Writes the statuses; remembers them, so that each state is written once."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._written: dict[str, State] = {}

    def forget(self) -> None:
        """Check every entry again, after another replica held the lease."""
        self._written.clear()

    def write(self, states: Mapping[str, State], now: datetime) -> None:
        """Write changed statuses. Raises: LeaseLost."""
        for name in self._written.keys() - states.keys():
            del self._written[name]
        for name, state in states.items():
            if self._written.get(name) == state:
                continue
            try:
                self._write_one(name, state, now)
            except DependencyError as error:
                _log.warning("status of a global context entry: %s", error.message)
                continue
            self._written[name] = state

    def _write_one(self, name: str, state: State, now: datetime) -> None:
        def edit(raw: Json) -> Json | None:
            before = raw.get("status") or {}
            after = status_of(state, before, now)
            return None if after == before else {**raw, "status": after}

        self._objects.change(RESOURCE, ("", name), edit, "status")


def status_of(state: State, before: Json, now: datetime) -> Json:
    """Return the whole status; keep the fields of other writers.

    The deprecated ``ready`` of older versions is not written
    (docs/behaviour/controllers 1.5).
    """
    ready, message, refreshed = state
    status: Json = {**before, "conditions": _conditions(ready, message, before, now)}
    status.pop("ready", None)
    if refreshed is not None:
        status["lastRefreshTime"] = _time(refreshed)
    return status


def _conditions(
    ready: bool,  # noqa: FBT001 - the first part of a State
    message: str,
    before: Json,
    now: datetime,
) -> list[Json]:
    others: list[Json] = []
    value, since = "True" if ready else "False", _time(now)
    for condition in before.get("conditions") or ():
        if condition.get("type") != "Ready":
            others.append(condition)
        elif condition.get("status") == value:
            since = condition.get("lastTransitionTime") or since
    text = "Ready" if ready else message[:_MESSAGE_CHARACTERS_MAX] or "Not Ready"
    return [
        *others,
        {
            "type": "Ready",
            "status": value,
            "reason": "Succeeded" if ready else "Failed",
            "message": text,
            "lastTransitionTime": since,
        },
    ]


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
