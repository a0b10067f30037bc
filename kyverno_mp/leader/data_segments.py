"""Publish the segments of data: cluster data and settings.

Room: leader. Takes: the values of each segment. Gives: segments.
Next: leader/loop.py calls it. May touch: the snapshot directory through
snapshot/publish, the log.
Source: docs/architecture.md 3 (shared data segments).
"""

import logging
from collections.abc import Collection, Mapping
from functools import partial

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.snapshot.data import encode_data
from kyverno_mp.snapshot.publish import Publisher
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)


class DataSegments:
    """The segments, and the values that were published last."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._published: dict[str, Mapping[str, bytes]] = {}
        self.unpublished: dict[str, str] = {}
        """The segments whose newest values could not be written, and why."""

    def publish_changed(
        self, segments: Mapping[str, Mapping[str, bytes]], corrupt: Collection[str]
    ) -> None:
        """Publish those that are new, changed (not the same object) or corrupt."""
        for name, values in segments.items():
            if self._published.get(name) is not values or name in corrupt:
                self.publish(name, values)

    def publish(self, name: str, values: Mapping[str, bytes]) -> None:
        """Publish a segment; if there is no room, its last version stays in force."""
        try:
            self._publisher.publish(name, partial(_encode_data, name, values))
        except SnapshotUnusable as error:
            if name not in self.unpublished:
                _log.error(
                    "segment not published, its last version stays in force",
                    extra=fields(segment=name, code=error.code, reason=error.message),
                )
            self.unpublished[name] = error.message
            return
        self.unpublished.pop(name, None)
        self._published[name] = values


def _encode_data(
    name: str, values: Mapping[str, bytes], generation: int, salt: bytes
) -> bytearray:
    return encode_data(name, values, generation=generation, salt=salt)
