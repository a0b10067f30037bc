"""Continue when the API server refuses a part of the work; raise that at the end.

Room: background. Takes: blocks that may be refused. Gives: Refusals. Next:
background/policy_events.py, background/generate.py, background/lost.py.
May touch: nothing outside its arguments.
Source: docs/background.md (requests).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kyverno_mp.errors import DependencyError, KubeRefused


class Refusals:
    """The refusals of one piece of work; one thread uses it."""

    def __init__(self) -> None:
        self._all: list[KubeRefused] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def texts(self) -> list[str]:
        """What was refused, each once."""
        return list(dict.fromkeys(one.message for one in self._all))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """End a block at a refusal, and go on after it. Other errors pass."""
        try:
            yield
        except KubeRefused as error:
            self._all.append(error)

    def add(self, error: DependencyError) -> None:
        """Keep an error that was caught elsewhere, if it is a refusal."""
        if isinstance(error, KubeRefused):
            self._all.append(error)

    def tell(self) -> None:
        """Raise the first one, if there is one."""
        if self._all:
            raise self._all[0]
