"""Hand the resources of the lane of images from the main lane to it.

Room: reports. Takes: the resources and rules of each plan. Gives: Handover.
Next: reports/scan/image_lane.py takes them. May touch: a lock.
Source: docs/pools.md 4; docs/reports.md (images).

The lane may wait for registries while policies are edited and edited back. Rows of the
edit may have been written or removed meanwhile, so what has changed between two plans
is remembered, not only how the last one differs from what the lane took.
"""

import threading
from collections.abc import Mapping

from kyverno_mp.reports.feed import Keys
from kyverno_mp.reports.scan.due import Known, changed_keys, known_of
from kyverno_mp.reports.scan.resources import ResourceId, Wanted


class Handover:
    """Keeps the newest resources until they are taken; two threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: Wanted | None = None
        self._known: dict[ResourceId, Known] = {}
        self._changed: dict[ResourceId, Keys] = {}
        """Keys of rules that changed since the last ``take``."""

    def put(self, wanted: Wanted) -> None:
        """Replace the resources by those of a newer plan."""
        known = {key: known_of(rules) for key, (_, rules) in wanted.items()}
        with self._lock:
            for key, after in known.items():
                # Rows of a resource that was not scanned for a while were removed.
                changed = changed_keys(self._known.get(key, {}), after)
                changed |= self._changed.get(key, frozenset())
                # What is gone for good, the lane sees by itself.
                in_force = frozenset().union(*(keys for _, keys in after.values()))
                self._changed[key] = changed & in_force
            for key in self._changed.keys() - known.keys():
                del self._changed[key]
            self._wanted, self._known = wanted, known

    def take(self) -> tuple[Wanted, Mapping[ResourceId, Keys]] | None:
        """Return the resources, and the rules that changed; None: nothing is new."""
        with self._lock:
            if self._wanted is None:
                return None
            taken = self._wanted, self._changed
            self._wanted, self._changed = None, {}
        return taken
