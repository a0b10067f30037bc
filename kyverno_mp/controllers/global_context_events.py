"""Report each GlobalContextEntry that cannot be read, once per reason.

Room: controllers. Takes: this pod's state of each entry. Gives: EventInfos.
Next: global_context_controller.py calls it. May touch: the API server through
kube/apply.py, one read for each report.
Source: docs/behaviour/controllers 9.1 (gctx); Kyverno pkg/globalcontext/event.

Every replica reports its own entries, because each reads the cluster data itself.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kyverno_mp.controllers.global_context_status import RESOURCE, State
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventInfo, Reference

CONTROLLER: Final = "globalcontext-controller"
_REASON: Final = "PolicyError"
_ACTION: Final = "Retrying"
_KIND: Final = "GlobalContextEntry"


class GlobalContextEvents:
    """The failures that were already reported."""

    def __init__(self, objects: Objects, submit: Callable[[EventInfo], bool]) -> None:
        self._objects = objects
        self._submit = submit
        self._reported: dict[str, str] = {}

    def report(self, states: Mapping[str, State]) -> None:
        """Report entries that failed, or failed for a new reason, since last time."""
        for name in self._reported.keys() - states.keys():
            del self._reported[name]
        for name, (ready, message, _refreshed) in states.items():
            if ready:
                self._reported.pop(name, None)
            elif self._reported.get(name) != message and self._report(name, message):
                self._reported[name] = message

    def _report(self, name: str, message: str) -> bool:
        """Report a failure; return False if the report must be retried."""
        try:
            found = self._objects.find(RESOURCE, ("", name))
        except DependencyError:
            return False
        if found is not None:
            uid = str(found["metadata"].get("uid") or "")
            regarding = Reference(RESOURCE.api_version, _KIND, name, uid=uid)
            self._submit(
                EventInfo(
                    regarding=regarding,
                    reason=_REASON,
                    action=_ACTION,
                    note=message or "Not Ready",
                    controller=CONTROLLER,
                )
            )
        return True
