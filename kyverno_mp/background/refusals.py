"""Continue when the API server refuses a part of the work; raise the error at the end.

Room: background. Takes: blocks that may be refused. Gives: Refusals. Next:
background/generate/policy_events.py, background/generate/generator.py,
background/generate/lost.py. May touch: nothing outside its arguments.
Source: docs/background.md (requests).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kyverno_mp.errors import DependencyError, KubeNotFound, KubeRefused


class Refusals:
    """The refusals of one piece of work; not thread-safe."""

    def __init__(self) -> None:
        self._all: list[KubeRefused | KubeNotFound] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def texts(self) -> list[str]:
        """The messages of the refusals, without duplicates."""
        return list(dict.fromkeys(one.message for one in self._all))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Suppress a refusal or a missing namespace in the block."""
        try:
            yield
        except (KubeRefused, KubeNotFound) as error:
            self._all.append(error)

    def add(self, error: DependencyError) -> None:
        """Record an error that was caught elsewhere, if it is a refusal."""
        if isinstance(error, KubeRefused):
            self._all.append(error)

    def tell(self) -> None:
        """Raise the first refusal, if any."""
        if self._all:
            raise self._all[0]
