"""validate.cel, celPreconditions and matchConditions, from policy to rule result."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.errors import DeadlinePassed, KubeUnavailable
from kyverno_mp.expr.effects import EFFECT_CLUSTER
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.program.bodies.outcome import PASSED
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.ports import OFFLINE, AccessQuery, ClusterData, ObjectQuery
from kyverno_mp.program.request import Request
from kyverno_mp.program.rule import LinkedRule

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "a", "image": "nginx:1"}]},
}
CLOCK = Clock(lambda: datetime(2026, 1, 1, tzinfo=UTC), lambda: 0)


def _policy(cel: Any, *, spec: Any = None, message: str = "", **rule: Any) -> Any:
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": "p",
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {
            **(spec or {}),
            "rules": [
                {
                    "name": "r",
                    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                    "validate": {"message": message, "cel": cel},
                    **rule,
                }
            ],
        },
    }
    return msgspec.convert(raw, ClusterPolicy)


def _evaluate(
    policy: Any,
    operation: str = "CREATE",
    cluster_data: ClusterData = OFFLINE,
    **more: Any,
) -> list[tuple[str, str]]:
    compiled = compile_policy(policy)
    packed = msgspec.msgpack.encode(compiled)
    compiled = msgspec.msgpack.decode(packed, type=CompiledPolicy)
    deleted = operation == "DELETE"
    request = Request(
        operation=operation,
        kind="Pod",
        name="web",
        namespace="shop",
        object={} if deleted else POD,
        old_object=POD if deleted else {},
        username="alice",
        **more,
    )
    engine = Engine(cluster_data, CLOCK)
    answer = engine.explain(link_policy(compiled), engine.open(request))
    return [(r.status, r.message) for r in answer.results]


def _expressions(*texts: str, **more: Any) -> dict[str, Any]:
    return {"expressions": [{"expression": text, **more} for text in texts]}


@pytest.mark.parametrize(
    ("cel", "result"),
    [
        (
            _expressions("object.metadata.name == 'web'"),
            ("pass", "Validation rule 'r' passed."),
        ),
        (
            _expressions("true", " object.metadata.name == 'x' "),
            ("fail", "failed expression: object.metadata.name == 'x'"),
        ),
        (_expressions("false", message=" no "), ("fail", "no")),
        (
            _expressions("false", messageExpression="'not ' + object.metadata.name"),
            ("fail", "not web"),
        ),
        (
            _expressions("false", message="m", messageExpression="'two\\nlines'"),
            ("fail", "m"),
        ),
        (
            _expressions("false", message="m", messageExpression="object.nope"),
            ("fail", "m"),
        ),
        (
            _expressions("object.nope == 1"),
            (
                "fail",
                "expression 'object.nope == 1' resulted in error: no such key: nope",
            ),
        ),
        (
            _expressions("object.spec.hostNetwork"),
            ("fail", "compilation error: must evaluate to bool but got dyn"),
        ),
        (
            _expressions("foo"),
            (
                "fail",
                (
                    "compilation error: compilation failed: ERROR: <input>:1:1:"
                    " undeclared reference to 'foo' (in container '')\n | foo\n | ^"
                ),
            ),
        ),
        (
            {
                "variables": [
                    {"name": "a", "expression": "object.spec.containers"},
                    {"name": "b", "expression": "variables.a.map(c, c.image)"},
                ],
                **_expressions("variables.b.all(i, i.startsWith('nginx'))"),
            },
            ("pass", "Validation rule 'r' passed."),
        ),
        (
            {
                "variables": [{"name": "a", "expression": "object.nope"}],
                **_expressions("variables.a == 1"),
            },
            (
                "fail",
                (
                    "expression 'variables.a == 1' resulted in error: composited"
                    " variable"
                    ' "a" fails to evaluate: no such key: nope'
                ),
            ),
        ),
        (
            _expressions(
                "request.operation == 'CREATE' && request.namespace == 'shop' &&"
                " request.userInfo.username == 'alice' && request.kind.kind == 'Pod' &&"
                " namespaceObject.metadata.name == 'shop' && oldObject == null"
            ),
            ("pass", "Validation rule 'r' passed."),
        ),
        (
            _expressions("authorizer.path('/healthz').check('get').allowed()"),
            (
                "fail",
                (
                    "expression 'authorizer.path('/healthz').check('get').allowed()'"
                    " resulted in error: authorization checks need access to a cluster"
                ),
            ),
        ),
    ],
)
def test_result(cel: Any, result: tuple[str, str]) -> None:
    assert [result] == _evaluate(_policy(cel))


def _linked(cel: Any, **rule: Any) -> LinkedRule:
    (linked,) = link_policy(compile_policy(_policy(cel, **rule))).rules
    return linked


_LONG = "[1, 2, 3, 4, 5, 6, 7, 8, 9]"
_COSTLY = f"{_LONG}.all(a, {_LONG}.all(b, {_LONG}.all(c, {_LONG}.all(d, a + d > 0))))"


@pytest.mark.parametrize(
    "cel",
    [
        _expressions("object.metadata.name == 'web'"),
        _expressions("object.metadata.name == 'x'"),
        _expressions("true", "object.metadata.nothing == 'x'"),
        _expressions(_COSTLY),
        _expressions("oldObject == null"),
        {
            "variables": [{"name": "v", "expression": "object.metadata.name"}],
            **_expressions("variables.v == 'web'", "variables.v == 'x'"),
        },
        {
            "variables": [{"name": "v", "expression": "object.spec.nothing"}],
            **_expressions("variables.v == 1"),
        },
    ],
)
def test_code_without_a_scope_is_the_same(cel: Any) -> None:
    """PERF: rules that read only the object create no scope."""
    linked = _linked(cel)
    assert linked.plain is not None
    request = Request(kind="Pod", name="web", namespace="shop", object=POD)
    engine = Engine(OFFLINE, CLOCK)
    context = engine.open(request)
    scope = engine.scope(linked, context, first=True)
    assert linked.plain(engine.open(request)) == linked.fast(request, scope)
    missing = Request(object=POD, kind="Pod", namespace="shop", namespace_known=False)
    context = engine.open(missing)
    scope = engine.scope(linked, context, first=True)
    assert linked.plain(engine.open(missing)) == linked.fast(missing, scope)


@pytest.mark.parametrize(
    ("cel", "rule"),
    [
        (_expressions("request.operation == 'CREATE'"), {}),
        (_expressions("namespaceObject.metadata.name == 'shop'"), {}),
        (_expressions("authorizer.group('').check('x').allowed()"), {}),
        (
            _expressions("true"),
            {"celPreconditions": [{"name": "a", "expression": "1"}]},
        ),
        (_expressions("true"), {"preconditions": {"all": []}}),
        (_expressions("true"), {"context": [{"name": "a", "variable": {"value": 1}}]}),
    ],
)
def test_rules_that_need_a_scope(cel: Any, rule: Any) -> None:
    assert _linked(cel, **rule).plain is None


def test_deadline_is_checked_after_costly_expressions() -> None:
    clock = Clock(CLOCK.now, lambda: 2)
    context = Engine(OFFLINE, clock).open(Request(kind="Pod", object=POD), 1)
    cheap, costly = _linked(_expressions("true")), _linked(_expressions(_COSTLY))
    assert cheap.plain is not None
    assert costly.plain is not None
    # Cheap expressions leave the check to the batch, which checks between policies.
    assert cheap.plain(context) == PASSED
    with pytest.raises(DeadlinePassed):
        costly.plain(context)


def test_default_message_is_the_rules() -> None:
    assert _evaluate(_policy(_expressions("false"), message="ours")) == [
        ("fail", "ours")
    ]


def test_exhausted_budget_denies() -> None:
    names = [{"name": "v0", "expression": "lists.range(1000)"}]
    text = "variables.v0.all(a, variables.v0.all(b, a + b >= 0))"
    found = _evaluate(_policy({"variables": names, **_expressions(text)}))
    assert found == [
        (
            "fail",
            (
                f"expression '{text}' resulted in error: operation cancelled:"
                " actual cost limit exceeded"
            ),
        )
    ]


def test_delete_evaluates_the_old_object() -> None:
    cel = _expressions("object == null && oldObject.metadata.name == 'web'")
    assert _evaluate(_policy(cel), "DELETE") == [
        ("pass", "Validation rule 'r' passed.")
    ]


@pytest.mark.parametrize(
    ("condition", "result"),
    [
        ("true", ("pass", "Validation rule 'r' passed.")),
        ("object.metadata.name == 'x'", ("skip", "cel preconditions not met")),
        (
            "object.nope == 1",
            (
                "fail",
                "expression 'object.nope == 1' resulted in error: no such key: nope",
            ),
        ),
    ],
)
def test_preconditions(condition: str, result: tuple[str, str]) -> None:
    policy = _policy(
        _expressions("true"), celPreconditions=[{"name": "c", "expression": condition}]
    )
    assert [result] == _evaluate(policy)


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ("object.metadata.name == 'web'", True),
        ("request.userInfo.username == 'bob'", False),
        ("object.nope == 1", False),
        ("nonsense", False),
    ],
)
def test_match_conditions(condition: str, *, matches: bool) -> None:
    hooks = {"matchConditions": [{"name": "c", "expression": condition}]}
    policy = _policy(_expressions("true"), spec={"webhookConfiguration": hooks})
    assert matches == bool(_evaluate(policy))


def test_missing_namespace_is_an_error() -> None:
    text = 'Error getting the resource\'s namespace: namespaces "shop" not found'
    found = _evaluate(_policy(_expressions("true")), namespace_known=False)
    assert [("error", text)] == found


class _Given:
    """Objects of a fake cluster."""

    def __init__(self, *objects: Any) -> None:
        self._objects = objects

    def objects(self, asked: ObjectQuery, _deadline_ns: int) -> list[Any]:
        return [
            each
            for each in self._objects
            if each["kind"] == asked.kind
            and asked.name in ("", each["metadata"]["name"])
        ]


@pytest.mark.parametrize(
    ("ref", "result"),
    [
        ({"name": "low"}, ("fail", "failed expression: params.max > 2")),
        ({"name": "high"}, ("pass", "Validation rule 'r' passed.")),
        (
            {"name": "none"},
            ("error", 'error in parameterized resource: limits "none" not found'),
        ),
        (
            {"selector": {"matchLabels": {"a": "b"}}},
            ("fail", "failed expression: params.max > 2"),
        ),
        (
            {
                "selector": {"matchLabels": {"a": "z"}},
                "parameterNotFoundAction": "Deny",
            },
            ("error", "error in parameterized resource: no params found"),
        ),
    ],
)
def test_params(ref: Any, result: tuple[str, str]) -> None:
    cel = {
        "paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"},
        "paramRef": ref,
        **_expressions("params.max > 2"),
    }
    given = _Given(
        *(
            {
                "kind": "Limit",
                "metadata": {"name": name, "namespace": "shop", "labels": {"a": "b"}},
                "max": number,
            }
            for name, number in (("low", 1), ("high", 5))
        )
    )
    assert [result] == _evaluate(_policy(cel), cluster_data=ClusterData(objects=given))


def test_params_need_a_cluster() -> None:
    cel = {
        "paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"},
        "paramRef": {"name": "a"},
        **_expressions("params.max > 2"),
    }
    assert compile_policy(_policy(cel)).rules[0].effects == EFFECT_CLUSTER
    ((status, message),) = _evaluate(_policy(cel))
    assert (status, message) == (
        "error",
        "error in parameterized resource: Limit cannot be read without a cluster",
    )


class _Scopes:
    """A port in which Limits are namespaced."""

    def is_namespaced(self, _group: str, _version: str, kind: str) -> bool:
        return kind == "Limit"


class _Asked(_Given):
    """Objects of a fake cluster, and the recorded queries."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ObjectQuery] = []

    def objects(self, asked: ObjectQuery, deadline_ns: int) -> list[Any]:
        self.asked.append(asked)
        return super().objects(asked, deadline_ns)


@pytest.mark.parametrize(
    ("kind", "ref", "namespace", "problem"),
    [
        ("Limit", {}, "shop", ""),
        ("Limit", {"namespace": "other"}, "other", ""),
        ("Quota", {}, "", ""),
        (
            "Quota",
            {"namespace": "shop"},
            None,
            "paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
        ),
    ],
)
def test_params_are_looked_up_by_the_scope_of_their_kind(
    kind: str, ref: Any, namespace: str | None, problem: str
) -> None:
    cel = {
        "paramKind": {"apiVersion": "example.com/v1", "kind": kind},
        "paramRef": {"selector": {}, "parameterNotFoundAction": "Deny", **ref},
        **_expressions("params.max > 2"),
    }
    objects = _Asked()
    cluster_data = ClusterData(objects=objects, scopes=_Scopes())
    ((status, message),) = _evaluate(_policy(cel), cluster_data=cluster_data)
    assert status == "error"
    assert message.removeprefix("error in parameterized resource: ") == (
        problem or "no params found"
    )
    assert [one.namespace for one in objects.asked] == (
        [] if namespace is None else [namespace]
    )


class _Authority:
    """A fake authorizer: Alice can do anything with "get"; reviews of "fail" fail."""

    def __init__(self) -> None:
        self.asked: list[AccessQuery] = []

    def may(self, asked: AccessQuery, _deadline_ns: int) -> tuple[bool, str]:
        self.asked.append(asked)
        if asked.attributes["verb"] == "fail":
            raise KubeUnavailable("kube.connection", "nobody there")
        return asked.attributes["verb"] == "get", "RBAC says so"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (
            "authorizer.path('/healthz').check('get').allowed()",
            AccessQuery(
                user="alice",
                groups=("devs",),
                attributes={"path": "/healthz", "verb": "get"},
            ),
        ),
        (
            (
                "!authorizer.group('apps').resource('deployments').namespace('shop')"
                ".check('delete').allowed()"
            ),
            AccessQuery(
                user="alice",
                groups=("devs",),
                attributes={
                    "group": "apps",
                    "resource": "deployments",
                    "namespace": "shop",
                    "verb": "delete",
                },
            ),
        ),
        (
            (
                "authorizer.serviceAccount('shop', 'robot').requestResource"
                ".check('get').reason() == 'RBAC says so'"
            ),
            AccessQuery(
                user="system:serviceaccount:shop:robot",
                groups=("system:serviceaccounts", "system:serviceaccounts:shop"),
                attributes={
                    "group": "",
                    "resource": "pods",
                    "namespace": "shop",
                    "name": "web",
                    "verb": "get",
                },
            ),
        ),
        (
            (
                "authorizer.path('/').check('fail').errored() &&"
                " authorizer.path('/').check('fail').error() == 'nobody there'"
            ),
            AccessQuery(
                user="alice",
                groups=("devs",),
                attributes={"path": "/", "verb": "fail"},
            ),
        ),
    ],
)
def test_authorizer_queries_the_cluster(text: str, asked: AccessQuery) -> None:
    policy = _policy(_expressions(text))
    assert compile_policy(policy).rules[0].effects == EFFECT_CLUSTER
    authority = _Authority()
    found = _evaluate(
        policy,
        cluster_data=ClusterData(authority=authority),
        groups=("devs",),
        review_request={"resource": {"group": "", "resource": "pods"}},
    )
    assert found == [("pass", "Validation rule 'r' passed.")]
    assert set(map(repr, authority.asked)) == {repr(asked)}


class _Namespaces:
    """One namespace, as the API server returns it."""

    def namespace(self, name: str, _deadline_ns: int) -> Any:
        assert name == "shop"
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": "shop",
                "annotations": {"tier": "gold"},
                "managedFields": [],
            },
            "status": {"phase": "Active"},
        }


@pytest.mark.parametrize(
    "text",
    [
        "namespaceObject.metadata.annotations['tier'] == 'gold'",
        "namespaceObject.status.phase == 'Active'",
        "!has(namespaceObject.metadata.labels)",
    ],
)
def test_namespace_comes_from_the_cluster(text: str) -> None:
    cluster_data = ClusterData(namespace_objects=_Namespaces())
    found = _evaluate(_policy(_expressions(text)), cluster_data=cluster_data)
    assert found == [("pass", "Validation rule 'r' passed.")]
