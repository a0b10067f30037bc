"""Decide whether the matchConstraints of a CEL policy match a request.

Room: program. Takes: ConstraintsIR, a Request. Gives: whether they match, their cost,
and their dependencies. Next: evaluate.py.
Source: docs/behaviour/cel 3, 6.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.match import SelectorIR
from kyverno_mp.limits import HEAVY_STEPS
from kyverno_mp.program.admission_policy.match import has_namespace, matches
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request, unread_labels
from kyverno_mp.values.jsonvalue import Json

_ENTRIES_PER_STEP: Final = 8
"""Entries of lists (names, resources, values of a selector) per step."""
_LABELS_PER_STEP: Final = 16
_RULE_STEPS: Final = 4
_TERM_STEPS: Final = 2


def fault_or_match(constraints: ConstraintsIR, request: Request) -> tuple[bool, str]:
    """Return whether the constraints match, and the error of an invalid selector.

    KYVERNO: an invalid selector is an error only if everything else matches; the
    selector of namespaces is not read for objects without a namespace. SAFETY: so is a
    selector of labels that nobody can read.
    """
    spaces = constraints.namespace_selector
    if spaces is not None and _lacks_labels(request):
        unreadable = f"Internal error occurred: {unread_labels(request.namespace)}"
        without = msgspec.structs.replace(constraints, namespace_selector=None)
        is_match, fault = fault_or_match(without, request)
        return False, fault or (unreadable if is_match else "")
    if spaces is not None and spaces.error and not has_namespace(request):
        spaces = None
    faults = [
        f"Internal error occurred: {selector.error}"
        for selector in (spaces, constraints.object_selector)
        if selector is not None and selector.error
    ]
    if not faults:
        return matches(constraints, request), ""
    if not matches(_without_faults(constraints), request):
        return False, ""
    return False, faults[0]


def _lacks_labels(request: Request) -> bool:
    """Return whether nobody can read the labels; a Namespace has its own."""
    return (
        not request.labels_known
        and request.kind != "Namespace"
        and has_namespace(request)
    )


class MatchingCost:
    """The steps of matching the constraints of one policy.

    They are charged to the policy, because each entry is compared with each request,
    and users who can write policies in one namespace can write thousands of entries.
    """

    __slots__ = ("_reads_labels", "_steps", "is_free")

    def __init__(self, constraints: Iterable[ConstraintsIR | None]) -> None:
        present = [each for each in constraints if each is not None]
        self._steps = sum(map(_steps_of, present))
        self._reads_labels = sum(each.object_selector is not None for each in present)
        self.is_free = not self._steps
        """Whether there is nothing to match."""

    def steps(self, request: Request) -> int:
        """Return the steps for a request."""
        if not self._reads_labels:
            return self._steps
        labels = _labels_in(request.object) + _labels_in(request.old_object)
        return self._steps + self._reads_labels * labels // _LABELS_PER_STEP


def make_room(costs: Iterable[MatchingCost], request: Request, pace: Pace) -> None:
    """Leave the event loop before expensive matching. Raises: Preempted."""
    steps = 0
    for cost in costs:
        steps += cost.steps(request)
        if steps > HEAVY_STEPS:
            pace.make_room()
            return


def _labels_in(resource: dict[str, Json]) -> int:
    labels = metadata_of(resource).get("labels")
    return len(labels) if type(labels) is dict else 0


def _steps_of(constraints: ConstraintsIR) -> int:
    entries = steps = 0
    for rule in (*constraints.rules, *constraints.excluded):
        steps += _RULE_STEPS
        entries += sum(
            map(
                len,
                (
                    rule.groups,
                    rule.versions,
                    rule.resources,
                    rule.names,
                    rule.operations,
                ),
            )
        )
    for selector in (constraints.namespace_selector, constraints.object_selector):
        if selector is not None:
            steps += _TERM_STEPS * (len(selector.labels) + len(selector.terms))
            entries += sum(len(term.values) for term in selector.terms)
    return steps + entries // _ENTRIES_PER_STEP


def is_by_kind(constraints: ConstraintsIR | None) -> bool:
    """Return whether the constraints have neither names nor selectors."""
    return (
        constraints is not None
        and constraints.namespace_selector is None
        and constraints.object_selector is None
        and not any(rule.names for rule in (*constraints.rules, *constraints.excluded))
    )


def is_selector_free(constraints: ConstraintsIR | None) -> bool:
    """Return whether the only restriction is a single rule without names."""
    return (
        constraints is not None
        and not _selects(constraints.namespace_selector)
        and not _selects(constraints.object_selector)
        and not constraints.excluded
        and len(constraints.rules) == 1
        and not constraints.rules[0].names
    )


def _selects(selector: SelectorIR | None) -> bool:
    return selector is not None and bool(selector.labels or selector.terms)


def _without_faults(constraints: ConstraintsIR) -> ConstraintsIR:
    """Return the constraints without their invalid selectors."""
    spaces, labels = constraints.namespace_selector, constraints.object_selector
    return msgspec.structs.replace(
        constraints,
        namespace_selector=None if spaces is None or spaces.error else spaces,
        object_selector=None if labels is None or labels.error else labels,
    )
