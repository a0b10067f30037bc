"""Report the health of a pool to the health process through one small file.

Room: pool. Takes: whether the lease is held, problems. Gives: PoolHealth, written
and read. Next: process/roles/health.py. May touch: ``pool-<name>.json`` in the runtime
folder. Source: docs/architecture.md 2.
"""

from pathlib import Path

import msgspec

from kyverno_mp.snapshot.room import replace_record
from kyverno_mp.values.records import UNDECODABLE


class PoolHealth(msgspec.Struct, frozen=True):
    """Health of one pool of this pod. ``reasons``: its problems; empty = healthy."""

    name: str
    holds_lease: bool = False
    reasons: tuple[str, ...] = ()


_DECODER = msgspec.json.Decoder(PoolHealth)


def write_pool_health(directory: Path, health: PoolHealth) -> bool:
    """Replace the file; return False if it stays, because the folder is full."""
    return replace_record(_path(directory, health.name), msgspec.json.encode(health))


def read_pool_health(directory: Path, name: str) -> PoolHealth | None:
    """Return the last record, or None if there is none yet."""
    try:
        return _DECODER.decode(_path(directory, name).read_bytes())
    except (OSError, *UNDECODABLE):
        return None


def _path(directory: Path, name: str) -> Path:
    return directory / f"pool-{name}.json"
