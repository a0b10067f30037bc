"""Pass the resources of the image lane from the main lane to the image lane.

Room: reports. Takes: the resources and rules of each plan. Gives: Handover.
Next: reports/scan/image_lane.py takes them. May touch: a lock.
Source: docs/pools.md 4; docs/reports.md (images).

The image lane may wait for registries while a policy is edited and reverted. Rows may
have been written or removed in between, so the changes of all plans are collected, not
only the difference between the last plan and the one that the lane took.
"""

import threading
from collections.abc import Mapping

from kyverno_mp.reports.feed import Keys
from kyverno_mp.reports.scan.due import Known, changed_keys, known_of
from kyverno_mp.reports.scan.resources import ResourceId, Wanted


class Handover:
    """Keeps the newest resources until they are taken; shared by two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: Wanted | None = None
        self._known: dict[ResourceId, Known] = {}
        self._changed: dict[ResourceId, Keys] = {}
        """Keys of rules that changed since the last ``take``."""

    def put(self, resources: Wanted) -> None:
        """Replace the resources with those of a newer plan."""
        versions = {key: known_of(rules) for key, (_, rules) in resources.items()}
        with self._lock:
            for key, after in versions.items():
                # If a resource was not scanned for a while, its rows were removed.
                changed = changed_keys(self._known.get(key, {}), after)
                changed |= self._changed.get(key, frozenset())
                # The image lane notices removed rules itself.
                in_force = frozenset().union(*(keys for _, keys in after.values()))
                self._changed[key] = changed & in_force
            for key in self._changed.keys() - versions.keys():
                del self._changed[key]
            self._wanted, self._known = resources, versions

    def take(self) -> tuple[Wanted, Mapping[ResourceId, Keys]] | None:
        """Return the resources and the changed rules, or None if nothing is new."""
        with self._lock:
            if self._wanted is None:
                return None
            handed_over = self._wanted, self._changed
            self._wanted, self._changed = None, {}
        return handed_over
