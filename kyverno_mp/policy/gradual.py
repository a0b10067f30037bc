"""Read the annotations that put a policy into force gradually.

Room: policy. Takes: the annotations of a policy. Gives: Rollout, or why the annotations
are invalid. Next: compiler/described.py (IR), policy/checks/spec.py and
compiler/cel_kinds/review.py (refusals).
Source: docs/gradual-enforcement.md; upstream has no such annotations and enforces
fully.

An invalid annotation rejects the policy; without a review of it, the policy is enforced
fully.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from kyverno_mp.limits import (
    ROLLOUT_DENIALS_MAX,
    ROLLOUT_PATTERNS_MAX,
    ROLLOUT_STEP_NS_MAX,
    ROLLOUT_STEP_NS_MIN,
    ROLLOUT_STEPS_MAX,
    ROLLOUT_TEXT_CHARACTERS_MAX,
    ROLLOUT_WINDOW_NS_MAX,
)
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.go.goquote import quote

PREFIX: Final = "kyverno-mp.io/enforce-"
PERCENT: Final = f"{PREFIX}percent"
SCHEDULE: Final = f"{PREFIX}schedule"
BY: Final = f"{PREFIX}by"
RINGS: Final = f"{PREFIX}rings"
DENIALS: Final = f"{PREFIX}denials"
NAMESPACE: Final = "namespace"
OWNER: Final = "owner"
FULLY: Final = 100
CAN_DENY: Final = "only a policy that can deny requests is enforced gradually"
_NUMBER: Final = re.compile(r"[0-9]{1,4}", re.ASCII)
_CAPPED: Final = ("namespace", "user")
_STEPS_WITH_BUDGET: Final = 2
"""The last step is completed when it begins, and never falls back."""
_PATTERN: Final = re.compile(r"[a-z0-9*?-]{1,63}", re.ASCII)


class Budget(NamedTuple):
    """How many denials within a window a step may add before the policy falls back.

    ``per_namespace`` and ``per_user``: how many of them count at most.
    """

    denials: int
    window_ns: int
    per_namespace: int
    per_user: int


class Rollout(NamedTuple):
    """The shares of a policy in force, one after another, in percent.

    ``step_ns``: how long each step lasts, 0 if there is only one. ``rings``: patterns
    of namespaces; without rings, a hash of the subject decides.
    """

    steps: tuple[int, ...]
    step_ns: int = 0
    by_owner: bool = False
    rings: tuple[tuple[str, ...], ...] = ()
    budget: Budget | None = None


class _Invalid(Exception):
    """Why the value of an annotation is invalid."""


def rollout_of(annotations: Mapping[str, str]) -> Rollout | None:
    """Return the rollout; None if the policy is enforced fully."""
    rollout, problems = _read(annotations)
    is_full = rollout is not None and rollout.steps == (FULLY,)
    return None if problems or is_full else rollout


def rollout_problems(
    annotations: Mapping[str, str], *, can_deny: bool = True
) -> Iterator[Problem]:
    """Yield why annotations are invalid; ``can_deny``: the policy can deny requests."""
    rollout, problems = _read(annotations)
    if rollout is not None and not can_deny:
        problems[PERCENT if PERCENT in annotations else SCHEDULE] = CAN_DENY
    for name, reason in problems.items():
        path = f"metadata.annotations[{name}]"
        value = quote(annotations.get(name, ""))
        upstream = f"{path}: Invalid value: {value}: {reason}"
        yield Problem("policy.rollout", path, "", reason, upstream)


def _read(annotations: Mapping[str, str]) -> tuple[Rollout | None, dict[str, str]]:
    """Return the rollout, None without one, and the problem of each annotation."""
    names = [name for name in annotations if name.startswith(PREFIX)]
    if not names:
        return None, {}
    problems: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name in names:
        try:
            values[name] = _value(name, annotations[name])
        except _Invalid as error:
            problems[name] = str(error)
    if problems:
        return None, problems
    problems = _conflicts(annotations, values)
    if problems:
        return None, problems
    steps, step_ns = values.get(SCHEDULE) or ((values[PERCENT],), 0)
    return (
        Rollout(
            steps,
            step_ns,
            values.get(BY) == OWNER,
            values.get(RINGS, ()),
            values.get(DENIALS),
        ),
        {},
    )


def _conflicts(
    annotations: Mapping[str, str], values: Mapping[str, Any]
) -> dict[str, str]:
    if PERCENT in values and SCHEDULE in values:
        return {PERCENT: f"set either this or {SCHEDULE}"}
    if PERCENT not in values and SCHEDULE not in values:
        name = next(name for name in annotations if name.startswith(PREFIX))
        return {name: f"needs {PERCENT} or {SCHEDULE}"}
    if RINGS in values and values.get(BY) == OWNER:
        return {RINGS: f"rings are of namespaces, but {BY} is {OWNER}"}
    steps, _ = values.get(SCHEDULE) or ((), 0)
    if DENIALS in values and len(steps) < _STEPS_WITH_BUDGET:
        return {DENIALS: f"needs {SCHEDULE} with at least two steps"}
    return {}


def _value(name: str, text: str) -> object:
    read = _READERS.get(name)
    if read is None:
        raise _Invalid(f"no such annotation; there are {', '.join(sorted(_READERS))}")
    if len(text) > ROLLOUT_TEXT_CHARACTERS_MAX:
        raise _Invalid(f"at most {ROLLOUT_TEXT_CHARACTERS_MAX} characters")
    return read(text)


def _number(text: str, least: int, most: int, what: str) -> int:
    text = text.strip()
    if _NUMBER.fullmatch(text) and least <= int(text) <= most:
        return int(text)
    raise _Invalid(f"expected {what} from {least} to {most}")


def _percent(text: str) -> int:
    return _number(text, 0, FULLY, "a number")


def _schedule(text: str) -> tuple[tuple[int, ...], int]:
    listed, _, every = text.partition(" every ")
    steps = tuple(
        _number(step, 1, FULLY, "steps such as 10 -> 50 -> 100, numbers")
        for step in listed.split("->")
    )
    if len(steps) > ROLLOUT_STEPS_MAX:
        raise _Invalid(f"at most {ROLLOUT_STEPS_MAX} steps")
    if any(later <= step for step, later in pairwise(steps)):
        raise _Invalid("each step must be larger than the one before")
    return steps, _lasting(every, "steps such as 10 -> 50 -> 100 every 24h")


def _lasting(
    text: str, expected: str, most_ns: int = ROLLOUT_STEP_NS_MAX, most: str = "8760h"
) -> int:
    duration_ns = parse_duration(text.strip())
    if duration_ns is None or not ROLLOUT_STEP_NS_MIN <= duration_ns <= most_ns:
        raise _Invalid(f"expected {expected}, with a duration from 1m to {most}")
    return duration_ns


def _denials(text: str) -> Budget:
    listed, *caps = text.split(",")
    number, _, window = listed.partition(" per ")
    expected = "a budget such as 20 per 1h, 5 per namespace, 10 per user"
    denials = _number(number, 1, ROLLOUT_DENIALS_MAX, f"{expected}, numbers")
    window_ns = _lasting(window, expected, ROLLOUT_WINDOW_NS_MAX, "168h")
    most: dict[str, int] = {}
    for cap in caps:
        number, _, whose = (word.strip() for word in cap.partition(" per "))
        if whose not in _CAPPED or whose in most:
            raise _Invalid(f"expected {expected}")
        most[whose] = _number(number, 1, ROLLOUT_DENIALS_MAX + 1, f"{expected}, caps")
    # No more than the budget, so that nobody alone exceeds it.
    half = (denials + 1) // 2
    return Budget(denials, window_ns, *(most.get(whose, half) for whose in _CAPPED))


def _by(text: str) -> str:
    if text not in (NAMESPACE, OWNER):
        raise _Invalid(f"expected {NAMESPACE} or {OWNER}")
    return text


def _rings(text: str) -> tuple[tuple[str, ...], ...]:
    rings = tuple(
        tuple(pattern.strip() for pattern in ring.split(","))
        for ring in text.split(";")
    )
    patterns = [pattern for ring in rings for pattern in ring]
    if len(rings) > ROLLOUT_STEPS_MAX or len(patterns) > ROLLOUT_PATTERNS_MAX:
        raise _Invalid(
            f"at most {ROLLOUT_STEPS_MAX} rings and {ROLLOUT_PATTERNS_MAX} patterns"
        )
    if not all(map(_PATTERN.fullmatch, patterns)):
        raise _Invalid("expected rings of namespaces such as dev-*, test; staging-*; *")
    return rings


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    PERCENT: _percent,
    SCHEDULE: _schedule,
    BY: _by,
    RINGS: _rings,
    DENIALS: _denials,
}
"""All annotations, each with what reads its value."""
