"""Define the objects of one run of ``apply``, from files or a cluster.

Room: cli. Takes: loaded objects and their locations. Gives: Given (a Protocol), Loaded.
Next: command. May touch: nothing outside its arguments; cli/cluster/spool has the other
kind of Given.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from kyverno_mp.cli.sources.resources import Location
from kyverno_mp.values.jsonvalue import Json


class Given(Protocol):
    """Objects by position; forked processes can read them, too."""

    def __len__(self) -> int:
        """Return the number of objects."""

    @property
    def total(self) -> int:
        """The number of objects of the whole run, of which these can be a shard."""

    def object(self, position: int) -> dict[str, Json]:
        """Return the whole object."""

    def identity(self, position: int) -> dict[str, Json]:
        """Return the parts of the object that the output needs, e.g. its name."""

    def location(self, position: int) -> Location:
        """Return the location of the object: its file and position."""

    def exceptions(self) -> Iterable[dict[str, Json]]:
        """Return the objects among which the run's PolicyExceptions are."""


class Loaded(msgspec.Struct, frozen=True):
    """Objects from files, all in memory."""

    objects: Sequence[dict[str, Json]]
    locations: Sequence[Location]

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.objects)

    @property
    def total(self) -> int:
        """The number of objects."""
        return len(self.objects)

    def object(self, position: int) -> dict[str, Json]:
        """Return the object itself."""
        return self.objects[position]

    def identity(self, position: int) -> dict[str, Json]:
        """Return the object itself."""
        return self.objects[position]

    def location(self, position: int) -> Location:
        """Return the location of the object in its file."""
        return self.locations[position]

    def exceptions(self) -> Sequence[dict[str, Json]]:
        """Return all objects."""
        return self.objects
