"""The paths that a worker shares with other processes.

Room: webhook. Takes: nothing. Gives: Places. Next: webhook/start.py.
Source: docs/architecture.md 2.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of the files and folders that a worker shares with other processes."""

    snapshot: Path
    pages: Path
    cert: Path
    key: Path
    journals: Path | None = None
    """None if there is no cluster for events."""
    triggers: Path | None = None
    """None if no background pool runs generate and mutate-existing rules."""
    lost: Path | None = None
    """Set if ``triggers`` is."""
    results: Path | None = None
    """None if no reports pool runs."""
    denials: Path | None = None
    """None if there is no cluster that stores how far a policy has come."""
    images: Path | None = None
    """None if results of image verification are not cached."""
