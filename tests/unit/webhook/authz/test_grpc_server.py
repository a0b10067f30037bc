"""Envoy's requests are decided over gRPC as its policies say, and errors deny.

A failure means: Envoy lets a request through that no policy allowed, or a request ends
the server. Expected: docs/behaviour/cel 15.3, 15.8; Envoy's external_auth.proto and
gRPC's health.proto.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.cli.apply.stages.authorization import AuthorizationStage
from kyverno_mp.expr.cel.authz.message_wire import request_from_wire
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.webhook.authz.grpc_server import CHECK, HEALTH, CheckServer, handlers
from tests.unit.expr_cel.envoy_protobuf import message
from tests.unit.program.authorizing import NOW, compiled, document
from tests.unit.webhook.authz.authorizers import Rig, run
from tests.waiting import HANG_S, still_ns

REQUEST, RESPONSE = message("CheckRequest"), message("CheckResponse")
DENY = "envoy.Denied(401).WithBody('no').Response()"
ALLOW = "envoy.Allowed().WithHeader('x-user', 'u').Response()"
HTTP = "object.attributes.request.http"
FAILS = f"{HTTP}.headers['gone'] == '' ? null : null"
Call = Callable[[str, bytes], Awaitable[bytes]]


def policy(*validations: str, name: str = "p", **spec: Any) -> Any:
    listed = [{"expression": text} for text in validations]
    return compiled(document("Envoy", name, validations=listed, **spec))


def on(path: str, answer: str) -> str:
    return f"{HTTP}.path == '{path}' ? {answer} : null"


def check_request(path: str, **headers: str) -> bytes:
    request = REQUEST()
    request.attributes.request.http.path = path
    request.attributes.request.http.headers.update(headers)
    data: bytes = request.SerializeToString()
    return data


def with_server(rig: Rig, work: Callable[[Call], Awaitable[Any]]) -> Any:
    """Run ``work`` with a client of a server on a port of this machine."""

    async def scenario() -> Any:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(handlers(CheckServer(rig.deciding, grpc), grpc))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

            async def call(method: str, data: bytes) -> bytes:
                found: bytes = await channel.unary_unary(method)(data, timeout=HANG_S)
                return found

            result = await work(call)
        await server.stop(None)
        return result

    return run(scenario())


def check(rig: Rig, *requests: bytes) -> list[Any]:
    """Return the answer to each request, or the text of its error."""

    async def work(call: Call) -> list[Any]:
        found: list[Any] = []
        for data in requests:
            try:
                found.append(RESPONSE.FromString(await call(f"/{CHECK}/Check", data)))
            except grpc.aio.AioRpcError as error:
                unknown = error.code() == grpc.StatusCode.UNKNOWN
                found.append(error.details() if unknown else error)
        return found

    answers: list[Any] = with_server(rig, work)
    return answers


def test_answers_arrive_as_the_policy_built_them() -> None:
    rig = Rig("Envoy", policy(on("/x", DENY), on("/y", ALLOW)))
    denied, allowed, silent = check(
        rig, *(check_request(path) for path in ("/x", "/y", "/z"))
    )
    assert (denied.status.code, denied.denied_response.status.code) == (7, 401)
    assert denied.denied_response.body == "no"
    assert allowed.status.code == 0
    assert allowed.ok_response.headers[0].header.value == "u"
    assert silent == RESPONSE()
    assert rig.counted == [
        ("deny", "policy", "p"),
        ("allow", "policy", "p"),
        ("allow", "default", ""),
    ]


def test_an_error_ends_the_call_so_that_envoy_denies() -> None:
    fails, ignored = policy(FAILS), policy(FAILS, failurePolicy="Ignore")
    assert check(Rig("Envoy", fails), check_request("/")) == ["no such key: gone"]
    assert check(Rig("Envoy", ignored), check_request("/")) == [RESPONSE()]


def test_the_default_decision_can_be_deny() -> None:
    rig = Rig("Envoy", policy("null"), denies_by_default=True)
    (answer,) = check(rig, check_request("/"))
    assert (answer.status.code, answer.denied_response.status.code) == (7, 403)


def test_a_request_without_an_http_part_is_decided() -> None:
    """Upstream: it ends the process, so any client can stop the server."""
    denies = policy(f"has({HTTP}) ? null : {DENY}")
    answers = check(Rig("Envoy", denies), b"", check_request("/"), b"")
    assert [answer.status.code for answer in answers] == [7, 0, 7]


def test_bytes_that_are_no_request_are_denied() -> None:
    rig = Rig("Envoy")
    found = check(rig, b"\xff\xff", check_request("/")[:-1], check_request("/"))
    assert [isinstance(one, str) for one in found] == [True, True, False]
    assert rig.counted[0] == ("error", "server", "")


def test_before_the_policies_are_loaded_everything_is_denied() -> None:
    rig = Rig("Envoy")
    rig.authorizer = None
    assert check(rig, check_request("/")) == ["the policies are not loaded yet"]


@pytest.mark.parametrize(
    ("name", "expected"), [(b"", 1), (CHECK.encode(), 1), (b"other", None)]
)
def test_health_of_the_service(name: bytes, expected: int | None) -> None:
    data = b"\x0a" + bytes((len(name),)) + name if name else b""

    async def work(call: Call) -> Any:
        try:
            return await call(f"/{HEALTH}/Check", data)
        except grpc.aio.AioRpcError as error:
            return error.code()

    found = with_server(Rig("Envoy"), work)
    unknown = grpc.StatusCode.NOT_FOUND
    assert found == (unknown if expected is None else bytes((8, expected)))


def test_health_follows_the_policies() -> None:
    rig = Rig("Envoy")
    rig.authorizer = None

    async def scenario() -> list[bytes]:
        server = CheckServer(rig.deciding, grpc)
        watch = server.watch(b"", None)
        first = await anext(watch)
        rig.authorizer = Rig("Envoy").authorizer
        second = await anext(watch)
        server.is_draining = True
        return [first, second, await anext(watch)]

    assert asyncio.run(scenario()) == [b"\x08\x02", b"\x08\x01", b"\x08\x02"]


CONDITIONS = st.sampled_from(
    [
        "true",
        f"{HTTP}.path == '/a'",
        f"{HTTP}.path.startsWith('/a')",
        f"{HTTP}.headers['x-a'] == '1'",
        f"{HTTP}.headers[?'x-b'].orValue('') == ''",
        f"{HTTP}.method == ''",
    ]
)
ANSWERS = st.sampled_from([ALLOW, DENY, "null", FAILS, "envoy.Denied(0).Response()"])
VALIDATIONS = st.lists(
    st.builds(lambda when, then: f"({when}) ? ({then}) : null", CONDITIONS, ANSWERS),
    min_size=1,
    max_size=3,
)


class _Aborted(Exception):
    pass


class _Context:
    async def abort(self, _code: object, details: str) -> None:
        raise _Aborted(details)


@given(
    path=st.sampled_from(["/", "/a", "/a/b"]),
    headers=st.dictionaries(st.sampled_from(["x-a", "x-b"]), st.sampled_from("12")),
    validations=VALIDATIONS,
    failure=st.sampled_from(["Fail", "Ignore"]),
)
def test_server_and_command_line_decide_alike(
    path: str, headers: dict[str, str], validations: list[str], failure: str
) -> None:
    """An allow or deny of `apply --envoy-payload` is what the server does."""
    ir = policy(*validations, failurePolicy=failure)
    data = check_request(path, **headers)
    runtime = Runtime(now=lambda: NOW, monotonic_ns=still_ns)
    stage = AuthorizationStage([ir], CelPorts())
    (verdict,) = stage.decide("Envoy", request_from_wire(data), runtime)
    assert verdict.result is not None
    server = CheckServer(Rig("Envoy", ir).deciding, grpc)
    try:
        answer = RESPONSE.FromString(run(server.check(data, _Context())))
        found = "fail" if answer.status.code else "pass"
    except _Aborted:
        found = "error"
    assert found == verdict.result.status.replace("skip", "pass")
