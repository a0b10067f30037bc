"""Provide the variables of CEL expressions: object, request, variables.x and others.

Room: program. Takes: a Request, ClusterData, linked variables. Gives: CelScope, which
runs expressions. Next: program/bodies/cel.py, program/bodies/cel_conditions.py.
Source: docs/behaviour/engine 6.4; k8s apiserver,
admission/plugin/cel/{activation,condition,composition}.go.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.catalogue import base_library
from kyverno_mp.expr.cel.functions.authorization import Authorizer, nobody_to_ask
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.linking.expressions import Constructor
from kyverno_mp.expr.cel.linking.program import Budget, Program, link_expression
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.patches import CONSTRUCTORS, patch_library
from kyverno_mp.expr.cel.values import CelFailed, Record, RuleBudget, Value
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.program.matching.subject import metadata_of, object_name
from kyverno_mp.program.request import Request, RequestKind
from kyverno_mp.values.jsonvalue import Json

_NAMES: Final = (
    "object",
    "oldObject",
    "request",
    "namespaceObject",
    "params",
    "authorizer",
    "variables",
)
_NOT_SHARED: Final = _NAMES[2:]
_RECORDS: Final = frozenset({"variables", "authorizer"})
_NAMESPACE_FIELDS: Final = (
    "name",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "finalizers",
)
OUT_OF_BUDGET: Final = (
    "validation failed due to running out of cost budget,"
    " no further validation rules will be run"
)


NOBODY: Final = Authorizer(nobody_to_ask, {})
"""The authorizer used if there is no cluster."""
_UNKNOWN: Final[Value] = object()
_KEPT_BYTES_MAX: Final = 64 * 1024
"""Memory limit for values that other rules of the request can reuse."""


class Dialect(NamedTuple):
    """The variables and functions of one policy kind.

    ``is_shared``: whether an expression reads only the object. ``unset``: the variables
    that may have no value (validating_policy/scope.py: KindScope.unset). ``absent``:
    the variables that have none, although the scope has a value for later expressions.
    """

    names: tuple[str, ...]
    records: frozenset[str]
    library: Callable[[], Library]
    is_shared: Callable[[Expression], bool]
    constructors: Mapping[str, Constructor] | None = None
    unset: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


def _names_no_other(expression: Expression) -> bool:
    return not any(name in expression.text for name in _NOT_SHARED)


API_SERVER: Final = Dialect(_NAMES, _RECORDS, base_library, _names_no_other)
"""For expressions that the API server can evaluate, too."""
PATCHES: Final = API_SERVER._replace(library=patch_library, constructors=CONSTRUCTORS)
"""Like API_SERVER, with constructors for patches."""


class LinkedExpression(NamedTuple):
    """A linked expression; ``program`` is None if the expression does not compile."""

    text: str
    program: Program | None
    error: str
    is_shared: bool = False
    """The expression reads only the object, so all rules of a request get equal
    values."""


class Shared:
    """Values that the CEL rules of one request share.

    ``known``: expression text -> its value and its cost.
    PERF: policies often repeat the same variables.
    """

    __slots__ = ("kind", "known", "object", "old_object", "values")

    def __init__(self, request: Request) -> None:
        self.kind: RequestKind | None = None
        """What of the request constraints without names and selectors depend on."""
        self.object = _with_kind(request, request.object)
        self.old_object = _with_kind(request, request.old_object)
        self.known: dict[str, tuple[Value, int]] = {}
        self.values: tuple[Value, ...] = (
            self.object,
            self.old_object,
            None,
            None,
            None,
            NOBODY,
        )
        """Variables for expressions that use only the objects."""


def link(expression: Expression, dialect: Dialect = API_SERVER) -> LinkedExpression:
    """Link an expression of the IR."""
    if expression.node is None:
        return LinkedExpression(expression.text, None, expression.error)
    program = link_expression(
        expression,
        dialect.names,
        records=dialect.records,
        library=dialect.library(),
        constructors=dialect.constructors,
        lazy=dialect.unset,
        absent=dialect.absent,
    )
    is_shared = dialect.is_shared(expression)
    return LinkedExpression(expression.text, program, "", is_shared)


def link_variables(
    variables: Sequence[NamedExpressionIR], dialect: Dialect = API_SERVER
) -> dict[str, LinkedExpression]:
    """Link ``variables`` or ``auditAnnotations``; of equal names, the last applies."""
    return {entry.name: link(entry.expression, dialect) for entry in variables}


class CelScope(Record):
    """The variables of one request, and the remaining budget of its expressions.

    The scope is itself the value of ``variables``; each variable is evaluated at its
    first use. PERF: the scope is not part of a reference cycle. A cycle would keep
    every review's data until the worker's rare garbage collections; reading cold memory
    doubled the time of a review.
    """

    __slots__ = ("_budget", "_found", "_runtime", "_shared", "_values", "_variables")
    type_name = "kubernetes.variables"

    def __init__(  # noqa: PLR0913 - independent facts of one request, keyword-only
        self,
        request: Request,
        *,
        runtime: RuleBudget,
        budget: Budget,
        variables: dict[str, LinkedExpression],
        namespace: Json = None,
        params: Json = None,
        reads_request: bool = True,
        shared: Shared | None = None,
        authorizer: Authorizer = NOBODY,
        own_namespace: bool = False,
    ) -> None:
        """Create the variables.

        ``own_namespace``: ``request.namespace`` is the object's ``metadata.namespace``,
        even for a Namespace.
        """
        if shared is None:
            shared = Shared(request)
        self._shared = shared
        self._runtime = runtime
        self._budget = budget
        self._variables = variables
        self._found: dict[str, Value] = {}
        self._values: tuple[Value, ...] = (
            shared.object,
            shared.old_object,
            request_value(request, own_namespace) if reads_request else None,
            namespace,
            params,
            authorizer,
        )

    @property
    def budget_left(self) -> int:
        """The remaining budget of the expressions."""
        return self._budget.left

    def run(self, program: Program) -> Value:
        """Evaluate; raises ExpressionFailed, BudgetExceeded, DeadlinePassed."""
        self._runtime.charge(1)
        return self._budget.run(program, (*self._values, self), self._runtime)

    def evaluate(self, linked: LinkedExpression) -> tuple[Value, str]:
        """Return (value, "") or (None, the error message)."""
        if linked.program is None:
            return None, f"compilation error: {linked.error}"
        try:
            return self.run(linked.program), ""
        except ExpressionFailed as error:
            message = error.message
        except BudgetExceeded as error:
            if self._budget.left <= 0:
                return None, OUT_OF_BUDGET
            message = error.message
        return None, f"expression '{linked.text}' resulted in error: {message}"

    def field(self, name: str) -> Value:
        """Return a variable's value, or raise its error again at each use."""
        value = self._found.get(name, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._found[name] = self._evaluated(name)
        if value.__class__ is CelFailed:
            raise CelFailed(value.message)
        return value

    def has(self, name: str) -> bool:
        """Return whether a variable has this name."""
        return name in self._variables

    def _evaluated(self, name: str) -> Value:
        linked = self._variables.get(name)
        if linked is None:
            return CelFailed(f"no such key: {name}")
        if linked.program is None:
            return CelFailed(
                f'composited variable "{name}" fails to compile: {linked.error}'
            )
        try:
            if linked.is_shared:
                return self._run_shared(linked.text, linked.program)
            return self.run(linked.program)
        except ExpressionFailed as error:
            return CelFailed(
                f'composited variable "{name}" fails to evaluate: {error.message}'
            )

    def _run_shared(self, source: str, program: Program) -> Value:
        """Evaluate an expression on the object once per request; charge each use."""
        budget = self._budget
        cached = self._shared.known.get(source)
        if cached is not None and cached[1] <= budget.left:
            self._runtime.charge(1)
            value, cost = cached
            budget.left -= cost
            return value
        before, bytes_before = budget.left, self._runtime.bytes_left
        value = self.run(program)
        if bytes_before - self._runtime.bytes_left <= _KEPT_BYTES_MAX:
            # The value outlives the rule that paid for it.
            self._shared.known[source] = value, before - budget.left
        return value


def object_scope(
    shared: Shared,
    runtime: Runtime,
    budget: Budget,
    variables: dict[str, LinkedExpression],
) -> CelScope:
    """Create the variables for expressions that use only the object and variables.

    PERF: skips the constructor, whose other arguments would all be empty.
    """
    scope = CelScope.__new__(CelScope)
    scope._shared = shared  # noqa: SLF001 - a constructor
    scope._runtime = runtime  # noqa: SLF001 - a constructor
    scope._budget = budget  # noqa: SLF001 - a constructor
    scope._variables = variables  # noqa: SLF001 - a constructor
    scope._found = {}  # noqa: SLF001 - a constructor
    scope._values = shared.values  # noqa: SLF001 - a constructor
    return scope


def _with_kind(request: Request, resource: dict[str, Json]) -> Json:
    """Return the object with the request's kind set; null if there is no object."""
    if not resource:
        return None
    group, kind = request.group, request.kind
    api_version = f"{group}/{request.version}" if group else request.version
    if not kind or (
        resource.get("kind") == kind and resource.get("apiVersion") == api_version
    ):
        return resource
    return {**resource, "apiVersion": api_version, "kind": kind}


def request_value(
    request: Request,
    own_namespace: bool,  # noqa: FBT001 - PERF: called for each rule
) -> dict[str, Json]:
    """Return the variable ``request``; empty fields are omitted, as in Go."""
    review = request.review_request or {}
    kind = {"group": request.group, "version": request.version, "kind": request.kind}
    requested = review.get("resource") or {}
    resource = {key: requested.get(key, "") for key in ("group", "version", "resource")}
    subject = request.object or request.old_object
    value: dict[str, Json] = {
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "operation": request.operation,
        "userInfo": _user_info(request, review.get("userInfo") or {}),
        "dryRun": False,
        "options": None,
        "uid": "",
    }
    name = object_name(subject)
    if name:
        value["name"] = name
    namespace = _namespace_of(subject) if own_namespace else subject_namespace(request)
    if namespace:
        value["namespace"] = namespace
    return value


def subject_namespace(request: Request) -> str:
    """Return the object's namespace; "" for a Namespace or a cluster-scoped object."""
    if (request.group, request.version, request.kind) == ("", "v1", "Namespace"):
        return ""
    return _namespace_of(request.object or request.old_object)


def _namespace_of(subject: dict[str, Json]) -> str:
    namespace = metadata_of(subject).get("namespace")
    return namespace if type(namespace) is str else ""


def _user_info(request: Request, user_info: dict[str, Json]) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "username": request.username,
        "uid": user_info.get("uid") or "",
        "groups": list(request.groups),
        "extra": user_info.get("extra") or {},
    }
    return {key: value for key, value in fields.items() if value}


def namespace_value(request: Request, *, labels_known: bool) -> Json:
    """Return ``namespaceObject``: offline, it has only its name."""
    namespace = subject_namespace(request)
    if not namespace:
        return None
    metadata: dict[str, Json] = {"name": namespace, "creationTimestamp": None}
    if labels_known and request.namespace_labels:
        metadata["labels"] = dict(request.namespace_labels)
    return {"metadata": metadata, "spec": {}, "status": {}}


def whole_namespace(namespace: dict[str, Json]) -> Json:
    """Return ``namespaceObject`` for a Namespace object of the API server.

    K8S: only these metadata fields are set (plugin/cel, CreateNamespaceObject).
    """
    metadata = metadata_of(namespace)
    return {
        "metadata": {
            key: metadata[key] for key in _NAMESPACE_FIELDS if key in metadata
        },
        "spec": namespace.get("spec") or {},
        "status": namespace.get("status") or {},
    }
