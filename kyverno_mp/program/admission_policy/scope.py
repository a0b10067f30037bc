"""Open what the expressions of one policy of the API server see.

Room: program. Takes: linked variables; a Request, parameters, a budget. Gives: Scopes.
Next: judge.py, mutate.py. May touch: nothing outside its arguments.
Source: spec/cli.md 21.
"""

from collections.abc import Sequence

from kyverno_mp.expr.cel.program import Budget
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.program.cel_scope import CelScope, link_variables
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json


class Scopes:
    """The variables of one policy, opened for one request after another."""

    __slots__ = ("_variables",)

    def __init__(
        self, variables: Sequence[NamedExpressionIR], *, patches: bool = False
    ) -> None:
        self._variables = link_variables(variables, patches=patches)

    def open(
        self,
        request: Request,
        runtime: Runtime,
        param: Json,
        cost: int,
        namespace: Json = None,
    ) -> CelScope:
        """Open them with a budget of their own; ``namespace``: namespaceObject."""
        return CelScope(
            request,
            runtime=runtime,
            budget=Budget(cost),
            variables=self._variables,
            namespace=namespace,
            params=param,
            # KYVERNO: a Namespace keeps the namespace it says it lies in, which is
            # `default` on the command line (cli.md 5).
            own_namespace=True,
        )
