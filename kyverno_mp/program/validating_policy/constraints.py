"""Decide what matchConstraints of a policy in CEL say of a request.

Room: program. Takes: ConstraintsIR, a Request. Gives: whether they match, and what they
depend on. Next: evaluate.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 3, 6.
"""

import msgspec

from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.match import SelectorIR
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.request import Request


def fault_or_match(constraints: ConstraintsIR, request: Request) -> tuple[bool, str]:
    """Return whether they match, and the error of a selector that does not parse.

    KYVERNO: such a selector is an error only where the rest matches.
    """
    faults = [
        one.error
        for one in (constraints.namespace_selector, constraints.object_selector)
        if one is not None and one.error
    ]
    if not faults:
        return matches(constraints, request), ""
    if not matches(_without_faults(constraints), request):
        return False, ""
    return False, faults[0]


def is_by_kind(constraints: ConstraintsIR | None) -> bool:
    """Return whether they have neither names nor selectors."""
    return (
        constraints is not None
        and constraints.namespace_selector is None
        and constraints.object_selector is None
        and not any(rule.names for rule in (*constraints.rules, *constraints.excluded))
    )


def is_selector_free(constraints: ConstraintsIR | None) -> bool:
    """Return whether there is exactly one rule, without names, and it matches."""
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
    """Return the constraints without selectors that do not parse."""
    spaces, labels = constraints.namespace_selector, constraints.object_selector
    return msgspec.structs.replace(
        constraints,
        namespace_selector=None if spaces is None or spaces.error else spaces,
        object_selector=None if labels is None or labels.error else labels,
    )
