"""Create the variables for the expressions of CEL policies.

Room: program. Takes: a Request, the ports of CEL, linked variables. Gives: KYVERNO
(the dialect of cluster policies), NAMESPACED, KindScope. Next: evaluate.py.
May touch: external systems only through ports.
Source: docs/behaviour/cel 5; Kyverno pkg/cel/policies/vpol/compiler.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.functions.kyverno.documents import JSON, YAML
from kyverno_mp.expr.cel.linking.frame import no_value
from kyverno_mp.expr.cel.linking.program import Budget
from kyverno_mp.expr.cel.nodes import Call, Expression, Ident
from kyverno_mp.expr.cel.outside import (
    GlobalContext,
    HttpContext,
    ImageContext,
    ResourceContext,
)
from kyverno_mp.expr.cel.values import CelFailed, Value
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.context.cel_scope import (
    CelScope,
    Dialect,
    LinkedExpression,
    Shared,
    request_value,
)
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

NAMES: Final = (
    "object",
    "oldObject",
    "request",
    "namespaceObject",
    "exceptions",
    "resource",
    "globalContext",
    "image",
    "http",
    "json",
    "yaml",
    "variables",
)
_ALWAYS_EQUAL: Final = frozenset({"object", "oldObject", "json", "yaml"})
_NOT_SHARED: Final = frozenset(NAMES) - _ALWAYS_EQUAL | {"time", "random"}
"""Variables of one rule, and the namespaces of functions for random values and the
clock."""
"""PERF: one value for all requests. Read-only."""


def _reads_object_only(expression: Expression) -> bool:
    """Return whether the value is equal for all policies in a request."""
    for node in _nodes(expression.node):
        if type(node) is Ident and node.name in _NOT_SHARED:
            return False
        if type(node) is Call and node.function == "random":
            return False
    return True


def names_any(expression: Expression, names: frozenset[str]) -> bool:
    """Return whether an expression reads any of these variables."""
    return any(
        type(node) is Ident and node.name in names for node in _nodes(expression.node)
    )


def _nodes(root: Any) -> Iterator[Any]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, msgspec.Struct):
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple):
            waiting.extend(node)


UNSET: Final = frozenset({"exceptions"})
"""Variables that may have no value."""
KYVERNO: Final = Dialect(
    NAMES,
    frozenset({"variables"}),
    kyverno_library,
    _reads_object_only,
    unset=UNSET,
)
NAMESPACED: Final = KYVERNO._replace(library=partial(kyverno_library, namespaced=True))
"""The dialect of namespaced policies, whose ``resource`` has its own functions."""


def before_variables(dialect: Dialect) -> Dialect:
    """Return the dialect of conditions that are evaluated before ``variables`` is set.

    KYVERNO: the conditions of exceptions (except to a DeletingPolicy), and the
    matchConditions of all policies but MutatingPolicies. SAFETY: a condition that reads
    ``variables`` is an error, so it neither exempts an object nor skips a policy.
    """
    return dialect._replace(absent=dialect.absent | {"variables"})


class Facts(NamedTuple):
    """The data shared by the policies of one request.

    ``is_payload``: the object is arbitrary JSON, without a request or a namespace.
    ``is_review``: an API server sent the request, and expressions get its original
    content. ``faults``: collects errors of exceptions, which then exempt nothing; None:
    such an error becomes the policy's error. ``trigger``: the request that the variable
    ``request`` describes, if ``request`` here is about an existing object.
    """

    request: Request
    runtime: Runtime
    ports: CelPorts
    namespace: Json = None
    """``namespaceObject``."""
    is_payload: bool = False
    is_review: bool = False
    faults: list[ExpressionFailed] | None = None
    trigger: Request | None = None


class PayloadShared(Shared):
    """The values of a JSON payload, which may be empty; there is no old object."""

    __slots__ = ()

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.object = self.object or {}
        self.values = (self.object, *self.values[1:])


class ReviewShared(Shared):
    """The values of a review: the objects as the API server sent them.

    ``given``: the variables shared by all policies of the review without calls.
    """

    __slots__ = ("given",)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.given: tuple[Value, ...] | None = None
        self.object = _reviewed(request, request.object)
        self.old_object = _reviewed(request, request.old_object)
        self.values = (self.object, self.old_object, *self.values[2:])


class KindScope(CelScope):
    """The variables of one policy; errors are upstream's without a prefix."""

    __slots__ = ()
    type_name = "kyverno.variables"

    def __init__(
        self,
        facts: Facts,
        shared: Shared,
        variables: dict[str, LinkedExpression],
        cost: int,
        namespace: str,
    ) -> None:
        """Create the variables; ``namespace``: "" for a cluster-wide policy."""
        values = self.given(facts, shared, namespace)
        self.open(shared, facts.runtime, Budget(cost), variables, values)

    def open(
        self,
        shared: Shared,
        runtime: Runtime,
        budget: Budget,
        variables: dict[str, LinkedExpression],
        values: tuple[Value, ...],
    ) -> None:
        """Set the variables; ``values`` has the values of all NAMES but the last."""
        self._shared = shared
        self._runtime = runtime
        self._budget = budget
        self._variables = variables
        self._found = {}
        self._values = values

    @staticmethod
    def given(facts: Facts, shared: Shared, namespace: str) -> tuple[Value, ...]:
        """Return the values of all NAMES but the last; ``namespace``: the policy's."""
        deadline_ns, ports = facts.runtime.deadline_ns, facts.ports
        resources = ports.resources
        if namespace and ports.own_resources is not None:
            resources = ports.own_resources
        images = ports.own_images if namespace and ports.own_images else ports.images
        return (
            shared.object,
            shared.old_object,
            None if facts.is_payload else _request(facts, shared),
            facts.namespace,
            {"allowedImages": [], "allowedValues": []},
            ResourceContext(resources, namespace, deadline_ns),
            GlobalContext(ports.references, namespace),
            ImageContext(images, deadline_ns),
            HttpContext(ports.services, bool(namespace), "", deadline_ns),
            JSON,
            YAML,
        )

    @property
    def cost_left(self) -> int:
        """The remaining cost budget of the expressions."""
        return self._budget.left

    def limit_cost(self, cost: int) -> None:
        """Set the cost budget of the expressions."""
        self._budget = Budget(cost)

    def allow(self, images: list[str], values: list[str]) -> None:
        """Set ``exceptions`` to the values that the matching exceptions allow."""
        self.replace("exceptions", {"allowedImages": images, "allowedValues": values})

    def unset(self, name: str) -> None:
        """Remove the value of a variable, which every use then reports.

        KYVERNO: conditions of exceptions are evaluated before ``exceptions`` is set,
        and a DeletingPolicy has no request. SAFETY: a use that does not fail could make
        a condition true, and delete or exempt an object.
        ``name``: one of the dialect's ``unset``; otherwise, expressions would read the
        error as a value.
        """
        self.replace(name, no_value(name))

    def replace(self, name: str, value: Value) -> None:
        """Set a variable. KYVERNO: ``variables`` already read keep their values."""
        at = NAMES.index(name)
        self._values = (*self._values[:at], value, *self._values[at + 1 :])

    def value(self, linked: LinkedExpression) -> Value:
        """Evaluate. Raises: ExpressionFailed, BudgetExceeded, DeadlinePassed."""
        assert linked.program is not None  # The compiler rejects invalid expressions.
        return self.run(linked.program)

    def _evaluated(self, name: str) -> Value:
        linked = self._variables.get(name)
        if linked is None or linked.program is None:
            return CelFailed(f"no such key: {name}")
        try:
            if linked.is_shared:
                return self._run_shared(linked.text, linked.program)
            return self.run(linked.program)
        except ExpressionFailed as error:
            return CelFailed(error.message)


def pure_scope(
    facts: Facts,
    shared: Shared,
    variables: dict[str, LinkedExpression],
    cost: int,
    namespace: str,
) -> KindScope:
    """Create the variables of a policy without effects.

    PERF: these policies share all values that do not depend on a policy, so this skips
    the constructor. A review evaluates policies of one namespace, or only cluster
    policies.
    """
    if not isinstance(shared, ReviewShared):
        return KindScope(facts, shared, variables, cost, namespace)
    if shared.given is None:
        shared.given = KindScope.given(facts, shared, namespace)
    scope = KindScope.__new__(KindScope)
    scope.open(shared, facts.runtime, Budget(cost), variables, shared.given)
    return scope


def _request(facts: Facts, shared: Shared) -> dict[str, Json]:
    request = facts.trigger or facts.request
    if facts.is_review:
        # K8S: the API server omits absent and empty fields.
        variable = {**(request.review_request or {})}
        variable["object"] = variable.get("object")
        variable["oldObject"] = variable.get("oldObject")
        return variable
    variable = request_value(request, own_namespace=True)
    variable["dryRun"] = request.dry_run
    variable["object"] = shared.object or None
    variable["oldObject"] = shared.old_object or None
    return variable


def _reviewed(request: Request, resource: dict[str, Json]) -> Json:
    """Return an object with the review's kind and namespace; null if it is absent.

    KYVERNO: the object of a subresource request has its own kind, e.g. PodExecOptions,
    and upstream writes the namespace into it (pkg/utils/admission: ConvertResource).
    """
    if not resource:
        return None
    kind = (request.review_request or {}).get("kind") or {}
    group, version, name = (kind.get(key, "") for key in ("group", "version", "kind"))
    reviewed = resource
    api_version = f"{group}/{version}" if group else version
    if reviewed.get("kind") != name or reviewed.get("apiVersion") != api_version:
        reviewed = {**reviewed, "apiVersion": api_version, "kind": name}
    if request.namespace and (group, name) != ("", "Namespace"):
        metadata = reviewed.get("metadata")
        fields = metadata if type(metadata) is dict else {}
        if fields.get("namespace") != request.namespace:
            fields = {**fields, "namespace": request.namespace}
            reviewed = {**reviewed, "metadata": fields}
    return reviewed


def met(
    conditions: Sequence[LinkedExpression],
    scope: KindScope,
    policy: PolicyIR | None = None,
) -> bool:
    """Return whether all conditions are true; false takes precedence over an error.

    ``policy``: with failurePolicy Ignore, an error is the same as false. None: an error
    is raised, because upstream ignores the failurePolicy of the kind (KYVERNO).
    Raises: ExpressionFailed, BudgetExceeded.
    """
    problems = []
    for condition in conditions:
        try:
            if scope.value(condition) is not True:
                return False
        except ExpressionFailed as error:
            problems.append(error.message)
    if not problems:
        return True
    if policy is not None and policy.failure_policy == "Ignore":
        return False
    raise ExpressionFailed("cel.conditions", "; ".join(problems))
