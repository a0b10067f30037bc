"""Publish a segment: next generation, rename the file, announce it, ring the bells.

Room: snapshot. Takes: a function that builds the content. Gives: the generation.
Next: the workers' followers. May touch: the snapshot directory.
Source: docs/architecture.md 3.
"""

import os
from collections.abc import Callable
from pathlib import Path

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.snapshot.bell import ring_workers
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.layout import SALT_BYTES
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.write import remove_leftovers, write_file


class Publisher:
    """The pod's only writer of segments."""

    def __init__(self, directory: Path) -> None:
        self._page = ControlPage.create(directory)
        self._directory = directory
        self._last: dict[str, int] = {}
        self._written: dict[str, tuple[int, int, int]] = {}
        # One salt for all files of this process, so that builders can keep hashes. A
        # file with this salt is always ours.
        self._salt = os.urandom(SALT_BYTES)
        remove_leftovers(directory)

    def publish(
        self, name: str, build: Callable[[int, bytes], bytes | bytearray]
    ) -> int:
        """Publish the content from ``build(generation, salt)``; return the generation.

        Shape: ``publish("policies", lambda generation, salt: encode_policies(encoded,
        generation=generation, salt=salt))``.

        Raises: SnapshotUnusable if the file cannot be written. Then nothing is
        announced, and the generation in force stays.
        """
        if name not in self._last:
            self._last[name] = self._last_generation(name)
        # The page may contain a generation that another process wrote.
        generation = max(self._last[name], self._page.generation(name)) + 1
        content = build(generation, self._salt)
        path = write_file(self._directory, segment_file(name), content)
        self._written[name] = _identity(path)
        self._last[name] = generation
        self._page.set_generation(name, generation)
        ring_workers(self._directory)
        return generation

    def corrupt_segments(self) -> list[str]:
        """Return the segments whose file is not the one written last.

        Running workers keep their attached segment, but new workers could not attach.
        """
        return [
            name
            for name, written in self._written.items()
            if _identity(self._directory / segment_file(name)) != written
        ]

    def generation(self, name: str) -> int:
        """Return the generation in force, 0 before the first."""
        return self._page.generation(name)

    def _last_generation(self, name: str) -> int:
        # A writer that was killed between rename and announcement leaves a file that is
        # one generation ahead of the page.
        announced = self._page.generation(name)
        try:
            stored = Segment.attach(
                self._directory / segment_file(name), name
            ).generation
        except SnapshotUnusable:
            return announced
        return max(announced, stored)


def _identity(path: Path) -> tuple[int, int, int]:
    try:
        facts = path.stat()
    except OSError:
        return (0, 0, 0)
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns)


def segment_file(name: str) -> str:
    """Return the file name of a segment."""
    return f"{name}.segment"
