"""Bound the documents that the leader keeps of all namespaces together.

Room: leader. Takes: the size of each document, in the threads of the informers. Gives:
SourceRoom: which documents to keep. Next: leader/cluster.py.
Source: docs/operate.md (room for policies); docs/architecture.md 1 (promise 4).

Administrators' documents are always kept. The namespaces share the rest of a total by
max-min fairness (leader/documents/tenant_room.py); of a namespace, the smallest
documents are kept. At every moment, what is kept fits.
"""

import threading
from math import inf
from typing import Final, NamedTuple

from kyverno_mp.leader.documents.tenant_room import fair_share
from kyverno_mp.leader.stored_document import Key
from kyverno_mp.limits import TENANTS_SOURCES_DIVISOR

_NO_KEYS: Final[frozenset[Key]] = frozenset()


class Balance(NamedTuple):
    """``drop``: kept documents over their share. ``read``: those that fit again."""

    drop: frozenset[Key] = _NO_KEYS
    read: frozenset[Key] = _NO_KEYS


class SourceRoom:
    """The sizes of all documents, and which are kept; threads share it."""

    def __init__(self, total: float = inf) -> None:
        """``total``: for administrators and tenants. Unit: bytes."""
        self._total = total
        self._lock = threading.Lock()
        self._sizes: dict[Key, int] = {}
        self._kept: dict[Key, int] = {}
        self._kept_size = 0
        self._administrators: dict[Key, int] = {}
        self._administrators_size = 0
        self._left_out: frozenset[Key] = _NO_KEYS
        """What did not fit into the shares when they were last computed."""
        self._is_dirty = False

    def takes(self, key: Key, size: int) -> bool:
        """Note the size of a document; return whether to keep its content."""
        with self._lock:
            is_short = len(self._kept) < len(self._sizes)
            if not key[1]:
                self._administrators_size += size - self._administrators.get(key, 0)
                self._administrators[key] = size
                is_short = is_short or self._kept_size > self._of_tenants()
                self._is_dirty = self._is_dirty or is_short
                return True
            is_new = self._sizes.get(key) != size
            self._is_dirty = self._is_dirty or (is_short and is_new)
            self._sizes[key] = size
            before = self._kept.pop(key, 0)
            self._kept_size -= before
            if key in self._left_out and not is_new:
                return False
            if self._kept_size + size > self._of_tenants():
                self._is_dirty = True
                return False
            self._kept[key] = size
            self._kept_size += size
            return True

    def keeps(self, key: Key) -> bool:
        """Return whether a tenant's document counts as kept."""
        return key in self._kept

    def forget(self, key: Key) -> None:
        """Note that a document was deleted."""
        with self._lock:
            self._administrators_size -= self._administrators.pop(key, 0)
            is_short = len(self._kept) < len(self._sizes)
            self._sizes.pop(key, None)
            self._kept_size -= self._kept.pop(key, 0)
            self._is_dirty = self._is_dirty or is_short

    def balance(self) -> Balance:
        """Share the room anew, if anything changed that may matter.

        The documents of ``drop`` are no longer kept; those of ``read`` are, if they
        still fit when they arrive.
        """
        with self._lock:
            if not self._is_dirty:
                return Balance()
            self._is_dirty = False
            fitting = self._fitting()
            self._left_out = frozenset(self._sizes.keys() - fitting)
            drop = self._kept.keys() - fitting
            for key in drop:
                self._kept_size -= self._kept.pop(key)
            return Balance(frozenset(drop), frozenset(fitting - self._kept.keys()))

    def _of_tenants(self) -> float:
        least = self._total // TENANTS_SOURCES_DIVISOR
        return max(least, self._total - self._administrators_size)

    def _fitting(self) -> set[Key]:
        """Return the documents that fit into the shares of their namespaces."""
        by_namespace: dict[str, list[tuple[int, Key]]] = {}
        for key, size in self._sizes.items():
            by_namespace.setdefault(key[1], []).append((size, key))
        demands = [_size_of(documents) for documents in by_namespace.values()]
        share = _share(demands, self._of_tenants())
        fitting: set[Key] = set()
        for documents in by_namespace.values():
            bytes_left = share
            for size, key in sorted(documents):
                if size > bytes_left:
                    break
                bytes_left -= size
                fitting.add(key)
        return fitting


def _size_of(documents: list[tuple[int, Key]]) -> int:
    return sum(size for size, _ in documents)


def _share(demands: list[int], total: float) -> float:
    return inf if total == inf else fair_share(demands, int(total))
