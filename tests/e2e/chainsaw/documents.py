"""Describe a test of the chainsaw format.

Takes: nothing. Gives: Test, Step, Operation. Next: read.py fills them, run.py runs
them.
May touch: nothing.
Source: chainsaw.kyverno.io/v1alpha1 (Test, StepTemplate), v1alpha2 (Configuration).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DEFAULT_TIMEOUTS_S: Final[Mapping[str, float]] = {
    "apply": 30.0,
    "assert": 30.0,
    "cleanup": 30.0,
    "delete": 30.0,
    "error": 30.0,
    "exec": 30.0,
}
"""A Configuration, a test, a step or an operation can override it.

Chainsaw itself uses 5 s for some of them; here a whole control plane shares two cores.
"""

TIMEOUT_OF: Final[Mapping[str, str]] = {
    "apply": "apply",
    "create": "apply",
    "patch": "apply",
    "update": "apply",
    "assert": "assert",
    "error": "error",
    "delete": "delete",
}
"""Operation -> its timeout; all others use ``exec``."""


@dataclass(frozen=True)
class Binding:
    """A name for a value, which can contain expressions."""

    name: str
    value: Any


@dataclass(frozen=True)
class Expectation:
    """The expected outcome of an operation; ``match`` None = for every object."""

    check: Any
    match: Any = None


@dataclass(frozen=True)
class Operation:
    """One action: ``name`` is apply, assert, script, ...; ``fields`` are its fields."""

    name: str
    fields: Mapping[str, Any]
    place: str
    """Its position, for messages: ``create the pod/apply:2``."""
    timeout_s: float
    is_templated: bool = True
    bindings: tuple[Binding, ...] = ()
    outputs: tuple[Binding, ...] = ()
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True)
class Step:
    """Operations in order, and operations that run on failure or always."""

    name: str
    tries: tuple[Operation, ...]
    catches: tuple[Operation, ...] = ()
    finals: tuple[Operation, ...] = ()
    cleanups: tuple[Operation, ...] = ()
    bindings: tuple[Binding, ...] = ()


@dataclass(frozen=True)
class Test:
    """One test file; ``namespace`` "" = a separate namespace, created and deleted."""

    __test__ = False

    name: str
    folder: Path
    steps: tuple[Step, ...]
    namespace: str = ""
    bindings: tuple[Binding, ...] = ()
    catches: tuple[Operation, ...] = ()
    is_skipped: bool = False
    timeouts_s: Mapping[str, float] = field(default_factory=dict)

    def operations(self) -> tuple[Operation, ...]:
        """Return every operation in order, including those of templates."""
        return tuple(
            operation
            for step in self.steps
            for part in (step.tries, step.catches, step.finals, step.cleanups)
            for operation in part
        )


class Failed(AssertionError):
    """The result of a step differs from the test's expectation."""
