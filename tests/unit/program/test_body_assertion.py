"""Compare the input of ``validate.assert`` with that of the real program."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.assertion.link import link_assertion
from kyverno_mp.expr.assertion.parse import parse_assertion
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.program.bodies.assertion import payload_of
from kyverno_mp.program.request import Request


class Scope:
    """A scope without context entries."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = {}
        self.operation = "CREATE"
        self.runtime = Runtime(
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic_ns=lambda: 0
        )

    def ensure(self, query: str) -> None:
        """Load nothing."""


_REQUEST = Request(
    operation="CREATE",
    kind="ConfigMap",
    object={"data": {"a": "b"}},
    username="alice",
    groups=("g1", "g2"),
    roles=("prod:r",),
    has_user_info=True,
    namespace_labels={"env": "prod"},
    review_request={
        "userInfo": {"username": "alice", "uid": "u-1", "extra": {"k": ["v1", "v2"]}},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
    },
    ints_are_numbers=True,
)


def judge(tree: Any, request: Request = _REQUEST) -> list[str]:
    program = link_assertion(parse_assertion(tree))
    try:
        return [v.message for v in program.evaluate(payload_of(request), Scope())]
    except ExpressionFailed as error:
        return [f"error: {error.message}"]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (
            {"operation": "CREATE"},
            (
                "error: operation: Internal error: types are not comparable,"
                " string - string"
            ),
        ),
        ({"(operation == 'CREATE')": False}, ""),
        ({"(to_string(operation))": '"CREATE"'}, ""),
        ({"operation": "(@)"}, ""),
        (
            {"(starts_with(operation, 'C'))": True},
            (
                "error: (starts_with(operation, 'C')): Internal error: invalid type"
                ' for: CREATE, expected: []functions.JpType{"string"}'
            ),
        ),
        ({"(operation[0:2])": None}, ""),
        ({"namespaceLabels": {"env": "prod"}}, ""),
        ({"(namespaceLabels.env)": None}, ""),
        ({"(namespaceLabels.*)": None}, ""),
        (
            {"admissionInfo": {"roles": ["prod:r"]}},
            "error: admissionInfo.roles: Internal error: projection not recognized",
        ),
        ({"(admissionInfo.roles)": ["prod:r"]}, ""),
        ({"(admissionInfo.clusterRoles)": []}, ""),
        ({"(to_string(admissionInfo.clusterRoles))": "null"}, ""),
        ({"(admissionInfo.userInfo)": None}, ""),
        ({"(admissionInfo.admissionUserInfo.username)": "alice"}, ""),
        ({"(admissionInfo.admissionUserInfo.UID)": "u-1"}, ""),
        ({"(admissionInfo.admissionUserInfo.uid)": None}, ""),
        ({"(admissionInfo.admissionUserInfo.groups[1])": "g2"}, ""),
        (
            {"(to_string(admissionInfo))": "x"},
            (
                "(to_string(admissionInfo)): Invalid value:"
                ' "{\\"roles\\":[\\"prod:r\\"],\\"userInfo\\":'
                '{\\"username\\":\\"alice\\",\\"uid\\":\\"u-1\\",'
                '\\"groups\\":[\\"g1\\",\\"g2\\"],'
                '\\"extra\\":{\\"k\\":[\\"v1\\",\\"v2\\"]}}}": Expected value: "x"'
            ),
        ),
        (
            {"admissionInfo": "(@)"},
            (
                "error: admissionInfo: Internal error: runtime error: comparing"
                " uncomparable type v2.RequestInfo"
            ),
        ),
        ({"requestResource": "(@)"}, ""),
        ({"(requestResource.resource)": "configmaps"}, ""),
        (
            {"requestResource": "x"},
            (
                "error: requestResource: Internal error: types are not comparable,"
                " string - struct"
            ),
        ),
        ({"oldObject": {}}, ""),
        ({"(oldObject == `null`)": False, "(!oldObject)": True}, ""),
        ({"(type(oldObject))": "object", "(to_string(oldObject))": "null"}, ""),
        ({"object": {"data": {"a": "b"}}}, ""),
        ({"admissionOperation": True}, ""),
        (
            {"(contains(admissionInfo.roles, 'prod:r'))": True},
            (
                "error: (contains(admissionInfo.roles, 'prod:r')): Internal error:"
                " interface conversion: interface {} is []string,"
                " not []interface {}"
            ),
        ),
        (
            {"(requestResource)->gvr": {"(nothing)": "($gvr)"}},
            (
                "(requestResource)->gvr.(nothing): Invalid value: null: Expected"
                ' value: v1.GroupVersionResource{Group:"", Version:"v1",'
                ' Resource:"configmaps"}'
            ),
        ),
    ],
)
def test_payload_contains_go_values(tree: Any, said: str) -> None:
    """The payload contains structs, a named string and a map of strings, not JSON."""
    assert "".join(judge(tree)) == said


def test_command_line_run_is_no_admission() -> None:
    """Values can set ``request.resource`` to anything."""
    request = Request(
        kind="Pod",
        username="alice",
        has_user_info=True,
        review_request={"resource": {"resource": "pods"}},
    )
    tree = {"admissionOperation": False, "(requestResource.resource)": ""}
    assert judge(tree, request) == []
