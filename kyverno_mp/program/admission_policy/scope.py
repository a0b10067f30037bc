"""Create the variables for the expressions of an API server policy.

Room: program. Takes: linked variables; a Request, parameters, a budget. Gives:
PolicyScopes. Next: validate.py, mutate.py.
Source: docs/behaviour/cli 21.
"""

from collections.abc import Sequence

from kyverno_mp.expr.cel.linking.program import Budget
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.program.context.cel_scope import (
    API_SERVER,
    CelScope,
    Dialect,
    link_variables,
)
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json


class PolicyScopes:
    """Creates the variables of one policy for each request."""

    __slots__ = ("_variables",)

    def __init__(
        self, variables: Sequence[NamedExpressionIR], dialect: Dialect = API_SERVER
    ) -> None:
        self._variables = link_variables(variables, dialect)

    def open(
        self,
        request: Request,
        runtime: Runtime,
        param: Json,
        cost: int,
        namespace: Json = None,
    ) -> CelScope:
        """Create the variables with a new budget; ``namespace``: namespaceObject."""
        return CelScope(
            request,
            runtime=runtime,
            budget=Budget(cost),
            variables=self._variables,
            namespace=namespace,
            params=param,
            # KYVERNO: a Namespace keeps its metadata.namespace, which is
            # `default` on the command line (docs/behaviour/cli 5).
            own_namespace=True,
        )
