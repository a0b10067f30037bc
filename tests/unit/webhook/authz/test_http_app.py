"""The HTTP authorizer answers as its policies decide, and errors deny.

A failure means: a proxy lets a request through that no policy allowed. Expected:
docs/behaviour/cel 15.8; RFC 9110.
"""

import asyncio
import logging
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.cli.apply.stages.authorization import AuthorizationStage
from kyverno_mp.expr.cel.outside import HttpRequest
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.webhook.authz.deciding import Access
from kyverno_mp.webhook.authz.requests import nested_request
from tests.unit.program.authorizing import NOW, compiled, document
from tests.unit.webhook.authz.authorizers import Rig, run, wire
from tests.waiting import HANG_S, still_ns, wait_on_loop

DENY = 'http.Denied("no").Response()'
ALLOW = "http.Allowed().Response()"
FAILS = "object.attributes.header['gone'][0] == '' ? null : null"


def policy(*validations: str, name: str = "p", **spec: Any) -> Any:
    listed = [{"expression": text} for text in validations]
    return compiled(document("HTTP", name, validations=listed, **spec))


def on(path: str, answer: str) -> str:
    return f"object.attributes.path == '{path}' ? {answer} : null"


class TestDecision:
    def test_answers_have_the_status_that_proxies_expect(self) -> None:
        rig = Rig("HTTP", policy(on("/x", DENY), on("/y", ALLOW)))
        assert rig.ask(wire("/x"))[::2] == (403, b"no")
        assert rig.ask(wire("/y"))[::2] == (200, b"")
        assert rig.ask(wire("/z"))[::2] == (200, b"")
        assert rig.counted == [
            ("deny", "policy", "p"),
            ("allow", "policy", "p"),
            ("allow", "default", ""),
        ]

    def test_the_default_decision_can_be_deny(self) -> None:
        rig = Rig("HTTP", policy(on("/y", ALLOW)), denies_by_default=True)
        assert rig.ask(wire("/z"))[0] == 403
        assert rig.ask(wire("/y"))[0] == 200

    def test_policies_decide_by_name(self) -> None:
        rig = Rig("HTTP", policy(ALLOW, name="b"), policy(DENY, name="a"))
        assert rig.ask(wire())[0] == 403

    def test_an_error_denies_unless_the_policy_ignores_it(self) -> None:
        status, _, body = Rig("HTTP", policy(FAILS)).ask(wire())
        assert (status, body) == (500, b"no such key: gone")
        ignoring = policy(FAILS, failurePolicy="Ignore")
        assert Rig("HTTP", ignoring).ask(wire())[0] == 200

    def test_before_the_policies_are_loaded_everything_is_denied(self) -> None:
        rig = Rig("HTTP")
        rig.authorizer = None
        assert rig.ask(wire())[0] == 500

    def test_without_nesting_the_request_itself_is_judged(self) -> None:
        rig = Rig(
            "HTTP",
            policy(
                "object.attributes.method == 'POST'"
                " && object.attributes.QueryParam('a') == ['1']"
                " && object.attributes.Header('x-id') == ['7']"
                f" ? {DENY} : null"
            ),
            is_nested=False,
        )
        headers = ((b"x-id", b"7"), (b"host", b"h"))
        assert rig.ask(b"", target=b"/?a=1", headers=headers)[0] == 403
        assert rig.ask(b"", target=b"/?a=2", headers=headers)[0] == 200

    @pytest.mark.parametrize("method", ["OPTIONS", "GET", "HEAD", "PUT", "TRACE"])
    def test_no_other_method_looks_like_a_decision(self, method: str) -> None:
        """Falcon would answer OPTIONS with 200, which a proxy takes for an allow."""
        assert Rig("HTTP").ask(b"", method.encode())[0] == 405

    @pytest.mark.parametrize(
        "path", ["/x", "/validate", "/healthz", "/health/liveness", "/livez"]
    )
    def test_no_other_path_looks_like_a_decision(self, path: str) -> None:
        rig = Rig("HTTP")
        for method in (b"POST", b"OPTIONS", b"GET"):
            assert rig.ask(wire(), method, path.encode())[0] in (404, 405)

    @pytest.mark.parametrize(
        "body", [b"", b"garbage", b"GET /", wire()[:-2], wire("/%zz")]
    )
    def test_what_is_no_request_is_denied(self, body: bytes) -> None:
        rig = Rig("HTTP")
        assert rig.ask(body)[::2] == (500, b"malformed HTTP request")
        assert rig.counted == [("error", "server", "")]


class TestExpressions:
    def test_the_input_expression_gives_the_request_to_judge(self) -> None:
        """As for nginx, which sends the original request in headers."""
        rig = Rig(
            "HTTP",
            policy(on("/a", DENY)),
            is_nested=False,
            given="http.CheckRequest{attributes: http.CheckRequestAttributes{"
            "method: object.attributes.Header('x-original-method')[0],"
            "path: url(object.attributes.Header('x-original-url')[0]).getEscapedPath()"
            "}}",
        )

        def status(url: bytes) -> int:
            headers = ((b"x-original-url", url), (b"x-original-method", b"GET"))
            return rig.ask(b"", headers=headers)[0]

        assert status(b"http://h/a?b=1") == 403
        assert status(b"http://h/b") == 200
        # Without the header the expression fails, which is no reason to allow.
        assert rig.ask(b"")[0] == 500

    def test_null_leaves_the_request(self) -> None:
        rig = Rig("HTTP", policy(on("/x", DENY)), given="null")
        assert rig.ask(wire("/x"))[0] == 403

    def test_the_output_expression_gives_the_answer(self) -> None:
        sent = (
            "has(object.denied) ? httpserver.HttpResponse{status: 401,"
            " header: {'WWW-Authenticate': ['Bearer', 'Basic'],"
            " 'Set-Cookie': ['a=1', 'b=2']},"
            " body: bytes('why: ' + object.denied.reason)} : null"
        )
        rig = Rig("HTTP", policy(on("/x", DENY)), sent=sent)
        status, headers, body = rig.ask(wire("/x"))
        assert (status, body) == (401, b"why: no")
        assert headers["www-authenticate"] == ["Bearer, Basic"]
        assert headers["set-cookie"] == ["a=1", "b=2"]
        assert rig.ask(wire("/y"))[::2] == (200, b"")

    @pytest.mark.parametrize(
        "fields",
        [
            "status: 0",
            "status: 199",
            "status: 1000",
            "status: 200, header: {'a': ['b\\r\\nc: d']}",
            "status: 200, header: {'a b': ['c']}",
            "status: 200, header: {'Content-Length': ['3']}",
            "status: 200 / int(object.denied.reason)",
        ],
    )
    def test_an_unusable_answer_denies(self, fields: str) -> None:
        sent = f"httpserver.HttpResponse{{{fields}}}"
        assert Rig("HTTP", sent=sent).ask(wire())[0] == 500


class Service:
    """A service that answers when the test lets it."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.calls = 0

    def exchange(self, request: HttpRequest, deadline_ns: int) -> tuple[int, bytes]:
        del request, deadline_ns
        self.calls += 1
        assert self.answers.wait(HANG_S)
        return 200, b'{"ok": true}'


CALLS = "http.Get('http://s').ok ? null : null"


class TestWaiting:
    def test_a_slow_service_delays_no_other_request(self) -> None:
        """And the deadline denies: it is no answer."""

        async def scenario() -> None:
            service = Service()
            ports = CelPorts(services=service)
            calls = f"object.attributes.path == '/slow' && ({CALLS}) == null"
            slow = policy(f"{calls} ? {ALLOW} : {DENY}")
            rig = Rig("HTTP", slow, access=Access(ports), threads=2)
            waiting = asyncio.create_task(rig.send(wire("/slow")))
            await wait_on_loop(lambda: service.calls)
            assert (await rig.send(wire("/other")))[0] == 403
            assert not waiting.done()
            service.answers.set()
            assert (await waiting)[0] == 200
            rig.deciding.stop()

        run(scenario())

    def test_the_deadline_denies(self) -> None:
        async def scenario() -> None:
            service = Service()
            access = Access(CelPorts(services=service))
            rig = Rig("HTTP", policy(CALLS), access=access, timeout_s=0.01)
            status, _, body = await rig.send(wire())
            assert (status, body) == (500, b"the request was not decided in time")
            service.answers.set()
            rig.deciding.stop()

        run(scenario())

    def test_more_requests_than_may_wait_are_denied(self) -> None:
        async def scenario() -> None:
            service = Service()
            access = Access(CelPorts(services=service))
            rig = Rig("HTTP", policy(CALLS), access=access, threads=1, waiting_max=1)
            first = [asyncio.create_task(rig.send(wire())) for _ in range(2)]
            await wait_on_loop(lambda: service.calls)
            status, _, body = await rig.send(wire())
            assert (status, body) == (500, b"too many requests are being decided")
            service.answers.set()
            assert [(await one)[0] for one in first] == [200, 200]
            rig.deciding.stop()

        run(scenario())


def test_the_log_of_decisions_has_no_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "kyverno_mp.webhook.authz.deciding"):
        rig = Rig("HTTP", policy(on("/x", DENY)), logs="denied")
        secret = "Authorization: Bearer hunter2"
        rig.ask(wire("/x?token=hunter2", secret, method="POST", body=b"hunter2"))
        rig.ask(wire("/y", secret))
    (line,) = [vars(record)["fields"] for record in caplog.records]
    assert line["path"] == "/x"
    assert line["decision"] == "deny"
    assert line["policy"] == "p"
    assert "hunter2" not in repr(caplog.records) + caplog.text + repr(line)


def test_an_internal_error_denies_and_is_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig("HTTP")

    class Broken:
        is_pure = True

        def decide(self, _check: object) -> None:
            raise ValueError("hunter2")

    rig.authorizer = Broken()  # type: ignore[assignment]
    assert rig.ask(wire())[::2] == (500, b"internal error")
    assert "internal error while deciding" in caplog.text


PATHS = st.sampled_from(["/", "/a", "/a/b", "/b", "/%41", "//a", "/a?b=1", "/a#b"])
HEADERS = st.lists(
    st.sampled_from(["x-a: 1", "X-A: 2", "x-b: 1", "Authorization: b"]), max_size=3
)
ANSWERS = st.sampled_from([ALLOW, DENY, "null", FAILS])
CONDITIONS = st.sampled_from(
    [
        "true",
        "object.attributes.path == '/a'",
        "object.attributes.path.startsWith('/a')",
        "object.attributes.Header('x-a') == ['1']",
        "object.attributes.header['X-B'][0] == '1'",
        "object.attributes.method == 'POST'",
        "object.attributes.QueryParam('b') == ['1']",
    ]
)
VALIDATIONS = st.lists(
    st.builds(lambda when, then: f"({when}) ? ({then}) : null", CONDITIONS, ANSWERS),
    min_size=1,
    max_size=3,
)


@given(
    path=PATHS,
    headers=HEADERS,
    method=st.sampled_from(["GET", "POST"]),
    validations=VALIDATIONS,
    failure=st.sampled_from(["Fail", "Ignore"]),
)
def test_server_and_command_line_decide_alike(
    path: str, headers: list[str], method: str, validations: list[str], failure: str
) -> None:
    """An allow or deny of `apply --http-payload` is what the server does."""
    ir = policy(*validations, failurePolicy=failure)
    data = wire(path, *headers, method=method)
    stage = AuthorizationStage([ir], CelPorts())
    runtime = Runtime(now=lambda: NOW, monotonic_ns=still_ns)
    (verdict,) = stage.decide("HTTP", nested_request(data), runtime)
    assert verdict.result is not None
    expected = {"pass": 200, "skip": 200, "fail": 403, "error": 500}
    assert Rig("HTTP", ir).ask(data)[0] == expected[verdict.result.status]
