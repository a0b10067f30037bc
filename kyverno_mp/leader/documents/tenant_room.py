"""Share the room of this pod among the namespaces that have policies.

Room: leader. Takes: the size of the runtime folder, the memory limit of the pod. Gives:
TenantRoom, fair_share, linking_processes. Next: leader/documents/linked_memory.py.
May touch: the file system's facts about the runtime folder; the memory limit through
settings/machine.py.
Source: docs/architecture.md 1 (promise 4).

A budget for each namespace is no bound for a hundred of them, so all share a total. A
namespace that needs less than an equal part loses nothing, whatever others store.
"""

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import NamedTuple

from kyverno_mp.limits import (
    COMPILED_KEPT_BYTES_MAX,
    COMPILED_KEPT_DIVISOR,
    POLICIES_MEMORY_DIVISOR,
    PUBLISHED_SHARE_DIVISOR,
    TENANTS_MEMORY_DIVISOR,
    TENANTS_PUBLISHED_DIVISOR,
)
from kyverno_mp.settings.machine import memory_limit
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.room import FolderRoom


class TenantRoom(NamedTuple):
    """The totals of one pod. Unit: bytes."""

    published: int
    """Compiled policies, of administrators and tenants."""
    linked: int
    """The memory of the linked namespaced policies in one process."""
    kept: int
    """Compiled policies stored for the next leader."""

    @classmethod
    def of(cls, folder: FolderRoom, memory: int, processes: int) -> "TenantRoom":
        """Derive the totals. ``processes``: those that link policies."""
        size = min(folder.size, memory // POLICIES_MEMORY_DIVISOR)
        return cls(
            published=size // PUBLISHED_SHARE_DIVISOR,
            linked=memory // TENANTS_MEMORY_DIVISOR // max(1, processes),
            kept=min(COMPILED_KEPT_BYTES_MAX, size // COMPILED_KEPT_DIVISOR),
        )

    @classmethod
    def measured(cls, runtime_dir: Path, processes: int) -> "TenantRoom":
        """Return the totals of this pod. Raises: OSError without the folder."""
        return cls.of(FolderRoom.of(runtime_dir), memory_limit(), processes)

    def of_tenants(self, administrators: int) -> int:
        """Return how much tenants may publish beside the administrators' policies."""
        least = self.published // TENANTS_PUBLISHED_DIVISOR
        return max(least, self.published - administrators)


def fair_share(demands: Iterable[int], total: int) -> float:
    """Return the most that each may take so that all together fit into the total.

    Those below it get all that they demand, and what they leave goes to the others.
    """
    remaining = total
    ordered = sorted(demands)
    for index, demand in enumerate(ordered):
        share = remaining // (len(ordered) - index)
        if demand > share:
            return share
        remaining -= demand
    return inf


def linking_processes(settings: Settings) -> int:
    """Return how many processes of this pod link policies."""
    pool = min(1, settings.background_workers)
    return settings.webhook_workers + pool + settings.reports_workers
