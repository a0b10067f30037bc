"""Create the variables for CEL policies that mutate, generate or delete.

Room: program. Takes: Facts, linked variables. Gives: dialect_of, PolicyScope,
``exempted``. Next: mutate.py, generate.py, delete.py.
May touch: external systems only through ports.
Source: docs/behaviour/cel 5, 10; Kyverno
pkg/cel/policies/{mpol,gpol,dpol}/compiler/policy.go.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Final

from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.linking.program import Budget
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.outside import GeneratorContext
from kyverno_mp.expr.cel.patches import CONSTRUCTORS
from kyverno_mp.program.bodies.cel import COST_MAX
from kyverno_mp.program.context.cel_scope import Dialect, LinkedExpression, Shared
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy import exceptions
from kyverno_mp.program.validating_policy.exceptions import LinkedException
from kyverno_mp.program.validating_policy.scope import (
    NAMES,
    UNSET,
    Facts,
    KindScope,
    ReviewShared,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import ROW_OF

_WITH_GENERATOR: Final = (*NAMES[:-1], "generator", NAMES[-1])
_RECORDS: Final = frozenset({"variables"})
UNSET_WITHOUT_REQUEST: Final = frozenset({"oldObject", "request", "exceptions"})
"""Variables of policies that no review evaluates: they are declared but never have a
value (docs/behaviour/cel 5)."""


def _never(_expression: Expression) -> bool:
    """Return False: the object changes between expressions, so nothing is shared."""
    return False


@cache
def dialect_of(kind: str) -> Dialect:
    """Return the dialect for a policy kind."""
    row = ROW_OF[kind]
    library = partial(
        kyverno_library, namespaced=kind == row.namespaced.kind, kind=row.name
    )
    unset = UNSET if row.segment else UNSET_WITHOUT_REQUEST
    dialect = Dialect(_WITH_GENERATOR, _RECORDS, library, _never, unset=unset)
    if "patches" in row.functions:
        return dialect._replace(constructors=CONSTRUCTORS)
    return dialect


class PolicyScope(KindScope):
    """The variables of one policy, whose object may change between expressions."""

    __slots__ = ()

    def __init__(
        self,
        facts: Facts,
        shared: Shared,
        variables: dict[str, LinkedExpression],
        namespace: str,
    ) -> None:
        """``namespace``: the policy's namespace, "" for a cluster-wide policy."""
        # PERF: cluster-wide policies share all values, as in ``pure_scope``. Those of a
        # namespace differ in the time that is left to them.
        sharing = None
        if isinstance(shared, ReviewShared) and not namespace:
            sharing = shared
        values = None if sharing is None else sharing.given
        if values is None:
            generator = GeneratorContext(
                facts.ports.generator, namespace, facts.runtime.deadline_ns
            )
            values = (*self.given(facts, shared, namespace), generator)
            if sharing is not None:
                sharing.given = values
        self.open(shared, facts.runtime, Budget(COST_MAX), variables, values)

    def replace_object(self, resource: Json) -> None:
        """Set ``object``. KYVERNO: variables already read keep their values."""
        self.replace("object", resource)


def exempted(
    linked: Sequence[LinkedException],
    scope: KindScope,
    facts: Facts,
    shared: Shared,
    rule_type: str,
) -> RuleResult | None:
    """Return the result of an exempt object, otherwise set ``exceptions``.

    Raises: the errors of ``met``.
    """
    if not linked:
        return None

    def opened() -> PolicyScope:
        scope = PolicyScope(facts, shared, {}, "")
        scope.replace_object(facts.request.object or None)
        scope.unset("exceptions")
        return scope

    return exceptions.exempted(linked, facts, scope, opened, rule_type)
