"""Policies of the evaluation modes HTTP and Envoy decide requests.

Expected: docs/behaviour/cel 15, and Envoy's external_auth.proto.
"""

import base64
import json
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.expr.cel.authz.message_json import MessageInvalid
from kyverno_mp.policy.problems import DocumentInvalid
from tests.unit.program.authorizing import (
    answered,
    check,
    compiled,
    decide,
    document,
    envoy,
    exception,
    is_true,
    request,
)

ALLOW = {"Envoy": "envoy.Allowed().Response()", "HTTP": "http.Allowed().Response()"}
DENY = {
    "Envoy": "envoy.Denied(403).Response()",
    "HTTP": 'http.Denied("no").Response()',
}
MODES = ("Envoy", "HTTP")
FAILS = {
    "Envoy": "object.attributes.request.http.headers['gone'] == ''",
    "HTTP": "object.attributes.header['gone'][0] == ''",
}


def _policy(mode: str, *validations: str, name: str = "p", **spec: Any) -> Any:
    listed = [{"expression": text} for text in validations]
    return compiled(document(mode, name, validations=listed, **spec))


@pytest.mark.parametrize("mode", MODES)
class TestDecision:
    def test_first_answer_counts(self, mode: str) -> None:
        found = decide(mode, {}, _policy(mode, "null", DENY[mode], ALLOW[mode]))
        assert found is not None
        assert (found.rule, found.is_allowed) == (1, False)

    def test_no_answer_is_none(self, mode: str) -> None:
        assert decide(mode, {}, _policy(mode, "null")) is None

    def test_policies_decide_by_name(self, mode: str) -> None:
        later = _policy(mode, DENY[mode], name="b")
        earlier = _policy(mode, ALLOW[mode], name="a")
        silent = _policy(mode, "null", name="A")
        found = decide(mode, {}, later, earlier, silent)
        assert found is not None
        assert (found.policy.name, found.is_allowed) == ("a", True)

    def test_a_later_allow_repairs_no_error(self, mode: str) -> None:
        broken = _policy(mode, f"{FAILS[mode]} ? null : null", name="a")
        found = decide(mode, {}, broken, _policy(mode, ALLOW[mode], name="b"))
        assert found is not None
        assert found.policy.name == "a"
        assert found.error is not None
        assert not found.is_allowed

    def test_failure_policy(self, mode: str) -> None:
        rules = (f"{FAILS[mode]} ? null : null", DENY[mode])
        found = decide(mode, {}, _policy(mode, *rules))
        assert found is not None
        assert found.error is not None
        assert found.error.message == "no such key: gone"
        # The policy ends at the error: the denial after it is not reached.
        ignored = _policy(mode, *rules, failurePolicy="Ignore")
        assert decide(mode, {}, ignored) is None

    @pytest.mark.parametrize(
        ("conditions", "outcome"),
        [
            (("true", "true"), "denied"),
            (("true", "false"), "none"),
            (("fails", "true"), "error"),
            (("fails", "false"), "none"),
        ],
    )
    def test_conditions(
        self, mode: str, conditions: tuple[str, ...], outcome: str
    ) -> None:
        texts = [FAILS[mode] if text == "fails" else text for text in conditions]
        listed = [
            {"name": f"c{index}", "expression": text}
            for index, text in enumerate(texts)
        ]
        for failure_policy in ("Fail", "Ignore"):
            policy = _policy(
                mode,
                DENY[mode],
                matchConditions=listed,
                failurePolicy=failure_policy,
            )
            found = decide(mode, {}, policy)
            if outcome == "none" or (outcome, failure_policy) == ("error", "Ignore"):
                assert found is None
            else:
                assert found is not None
                assert (found.error is not None) == (outcome == "error")
                assert not found.is_allowed

    def test_another_mode_is_left_out(self, mode: str) -> None:
        other = MODES[mode == "Envoy"]
        assert decide(mode, {}, _policy(other, DENY[other])) is None

    def test_variables_are_lazy(self, mode: str) -> None:
        variables = [
            {"name": "bad", "expression": FAILS[mode]},
            {"name": "good", "expression": ALLOW[mode]},
            {"name": "again", "expression": "variables.good"},
        ]
        found = decide(mode, {}, _policy(mode, "variables.again", variables=variables))
        assert found is not None
        assert found.is_allowed
        found = decide(
            mode,
            {},
            _policy(mode, "variables.bad ? null : null", variables=variables),
        )
        assert found is not None
        assert found.error is not None

    def test_a_part_of_another_type_is_an_error(self, mode: str) -> None:
        literal = "envoy.service.auth.v3.CheckResponse{status: dyn(1)}"
        if mode == "HTTP":
            literal = "http.CheckResponse{ok: dyn(1)}"
        found = decide(mode, {}, _policy(mode, literal))
        assert found is not None
        assert found.error is not None
        assert not found.is_allowed


@pytest.mark.parametrize("mode", MODES)
class TestExceptions:
    def _decided(self, mode: str, *exceptions: Any) -> Any:
        raw = document(
            mode,
            validations=[{"expression": DENY[mode]}],
            variables=[{"name": "yes", "expression": "true"}],
        )
        return decide(mode, {}, compiled(raw, *exceptions))

    def test_an_exception_silences_the_policy(self, mode: str) -> None:
        assert self._decided(mode, exception(mode, "variables.yes")) is None
        assert self._decided(mode, exception(mode)) is None

    def test_of_another_mode_it_has_no_effect(self, mode: str) -> None:
        for other in (MODES[mode == "Envoy"], "", "Kubernetes"):
            assert self._decided(mode, exception(other)).verdict is not None

    def test_a_false_condition(self, mode: str) -> None:
        found = self._decided(mode, exception(mode, "true", "!variables.yes"))
        assert found.verdict is not None

    def test_a_failing_exception_is_the_policys_error(self, mode: str) -> None:
        found = self._decided(mode, exception(mode, FAILS[mode]))
        assert found.error is not None

    def test_an_expired_exception_exempts_nothing(self, mode: str) -> None:
        past, future = "2025-06-01T11:59:59Z", "2025-06-01T12:00:01Z"
        assert self._decided(mode, exception(mode, expiresAt=past)) is not None
        assert self._decided(mode, exception(mode, expiresAt=future)) is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"validations": [{"expression": "true"}]}, "rule response output"),
        ({"validations": [{"expression": "dyn(null)"}]}, "rule response output"),
        ({"validations": [{"expression": "hash.md5('a')"}]}, "undeclared reference"),
        ({"validations": [{"expression": "request"}]}, "undeclared reference"),
        ({"validations": [{"expression": "object.nothing"}]}, "undefined field"),
        ({"matchConditions": [{"name": "a", "expression": "1"}]}, "type bool"),
        ({"matchConditions": [{"name": "a", "expression": "dyn(true)"}]}, "type bool"),
        (
            {
                "matchConditions": [{"name": "a", "expression": "variables.a"}],
                "variables": [{"name": "a", "expression": "true"}],
            },
            "undefined field 'a'",
        ),
    ],
)
def test_refused_expressions(mode: str, spec: dict[str, Any], problem: str) -> None:
    spec = {"validations": [{"expression": "null"}], **spec}
    with pytest.raises(DocumentInvalid) as caught:
        compiled(document(mode, **spec))
    assert problem in str(caught.value)


class TestEnvoy:
    def test_builders(self) -> None:
        found = answered(
            "Envoy",
            'envoy.Allowed().WithHeader("a", "b")'
            '.WithHeader(envoy.Header("c", "").KeepEmptyValue())'
            '.WithHeader(envoy.Header("d", "e").KeepEmptyValue(false))'
            '.WithoutHeader("x").WithResponseHeader("r", "s")'
            '.WithResponseHeader(envoy.Header("t", "u"))'
            '.WithQueryParam("q", "1").WithQueryParam(envoy.QueryParam("w", "2"))'
            '.WithoutQueryParam("z").Response().WithMessage("hi")'
            '.WithMetadata({"k": dyn(1u), "l": dyn(["m"])})',
        )
        assert found == {
            "status": {"message": "hi"},
            "ok_response": {
                "headers": [
                    {"header": {"key": "a", "value": "b"}},
                    {"header": {"key": "c"}, "keep_empty_value": True},
                    {"header": {"key": "d", "value": "e"}},
                ],
                "headers_to_remove": ["x"],
                "response_headers_to_add": [
                    {"header": {"key": "r", "value": "s"}},
                    {"header": {"key": "t", "value": "u"}},
                ],
                "query_parameters_to_set": [
                    {"key": "q", "value": "1"},
                    {"key": "w", "value": "2"},
                ],
                "query_parameters_to_remove": ["z"],
            },
            "dynamic_metadata": {"k": 1, "l": ["m"]},
        }

    def test_denial(self) -> None:
        found = answered(
            "Envoy",
            'envoy.Denied(401).WithBody("b").WithHeader("a", "b").Response()',
        )
        assert found == {
            "status": {"code": 7},
            "denied_response": {
                "status": {"code": 401},
                "headers": [{"header": {"key": "a", "value": "b"}}],
                "body": "b",
            },
        }

    def test_builders_do_not_change_a_variable(self) -> None:
        found = answered(
            "Envoy",
            "variables.ok.WithHeader('b', '').Response() == null"
            " ? null : variables.ok.WithHeader('a', '').Response()",
            variables=[{"name": "ok", "expression": "envoy.Allowed()"}],
        )
        assert found["ok_response"] == {"headers": [{"header": {"key": "a"}}]}

    @pytest.mark.parametrize(
        ("status", "allowed"),
        [("", True), ("code: 0", True), ("code: 7", False), ("code: 16", False)],
    )
    def test_envoy_reads_the_status(self, status: str, *, allowed: bool) -> None:
        name = "envoy.service.auth.v3"
        literal = (
            f"{name}.CheckResponse{{status: google.rpc.Status{{{status}}},"
            f" denied_response: {name}.DeniedHttpResponse{{}}}}"
        )
        found = decide("Envoy", {}, _policy("Envoy", literal))
        assert found is not None
        assert found.is_allowed == allowed
        if not allowed:
            assert found.verdict is not None
            assert found.verdict.message == "request denied with status code 403"

    def test_one_of_many_answers_is_kept(self) -> None:
        name = "envoy.service.auth.v3"
        found = answered(
            "Envoy",
            f"{name}.CheckResponse{{ok_response: {name}.OkHttpResponse{{}},"
            f" denied_response: {name}.DeniedHttpResponse{{body: 'x'}}}}",
        )
        assert found == {"denied_response": {"body": "x"}}

    def test_unset_fields(self) -> None:
        http = "object.attributes.request.http"
        for expression in (
            f"!has({http})",
            f"{http}.path == '' && {http}.size == 0 && {http}.headers == {{}}",
            f"{http}.raw_body == b'' && {http}.header_map.headers == []",
            f"{http}.headers[?'x'].orValue('none') == 'none'",
            "object.attributes.source.address.socket_address.port_value == 0u",
            "object.?attributes.request.orValue(null) == null",
            "object == envoy.service.auth.v3.CheckRequest{}",
            "object.attributes.request.time == timestamp(0)",
        ):
            assert is_true("Envoy", expression), expression

    def test_fields(self) -> None:
        data = envoy(
            headers={"authorization": "x"},
            path="/a?b=c",
            size="12",
            rawBody=base64.b64encode(b"\x00\xff").decode(),
        )
        data["attributes"]["source"] = {
            "address": {"socketAddress": {"address": "::1", "portValue": 80}}
        }
        data["attributes"]["metadata_context"] = {
            "filter_metadata": {"f": {"k": [1, {"l": None}]}}
        }
        data["attributes"]["request"]["time"] = "2025-01-02T03:04:05Z"
        http = "object.attributes.request.http"
        for expression in (
            f"has({http}.headers) && {http}.headers.authorization == 'x'",
            f"{http}.size == 12 && {http}.raw_body == b'\\000\\377'",
            f"url('http://h' + {http}.path).getQuery()['b'] == ['c']",
            "object.attributes.source.address.socket_address.port_value == 80u",
            "object.attributes.metadata_context.filter_metadata.f.k[1].l == null",
            "object.attributes.request.time.getFullYear() == 2025",
            "object == object && object != envoy.service.auth.v3.CheckRequest{}",
        ):
            assert is_true("Envoy", expression, data), expression

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (envoy(x=1), 'unknown field "x"'),
            (envoy(method=1), "method"),
            (envoy(headers=[]), "headers"),
            (envoy(size="x"), "size"),
            (envoy(size=1.5), "size"),
            (envoy(raw_body="%"), "raw_body"),
            ({"attributes": {"request": {"time": "now"}}}, "time"),
            ([], "CheckRequest"),
            (None, "CheckRequest"),
            (
                {
                    "attributes": {
                        "source": {
                            "address": {"pipe": {}, "socket_address": {}},
                        }
                    }
                },
                "more than one",
            ),
        ],
    )
    def test_refused_requests(self, data: Any, text: str) -> None:
        with pytest.raises(MessageInvalid, match=text):
            request("Envoy", data)


class TestHttp:
    DATA: ClassVar[Any] = {
        "attributes": {
            "METHOD": "POST",
            "header": {"X-Id": ["1", "2"], "low": ["3"]},
            "query": {"q": ["a"], "e": None},
            "body": base64.b64encode(b'{"a": 1}').decode(),
            "contentlength": 8,
            "unknown": 1,
        }
    }

    def test_fields(self) -> None:
        attributes = "object.attributes"
        for expression in (
            f"{attributes}.method == 'POST' && {attributes}.contentLength == 8",
            f"{attributes}.Header('x-id') == ['1', '2']",
            f"{attributes}.Header('X-ID') == ['1', '2']",
            f"{attributes}.Header('low') == []",
            f"{attributes}.Header('a b') == []",
            f"{attributes}.QueryParam('q') == ['a']",
            f"{attributes}.QueryParam('Q') == []",
            f"{attributes}.QueryParam('e') == []",
            f"json.Unmarshal(string({attributes}.body)).a == 1.0",
            f"!has({attributes}.host) && {attributes}.host == ''",
            "object.mcp.request.Method == ''",
        ):
            assert is_true("HTTP", expression, self.DATA), expression

    def test_answers(self) -> None:
        assert answered("HTTP", "http.Denied('a').Response()") == {
            "denied": {"reason": "a"}
        }
        assert answered("HTTP", "http.CheckResponse{ok: http.CheckResponseOk{}}") == {
            "ok": {}
        }

    @pytest.mark.parametrize(
        "fields",
        ["", "ok: http.CheckResponseOk{}, denied: http.CheckResponseDenied{}"],
    )
    def test_an_answer_that_is_not_only_ok_denies(self, fields: str) -> None:
        literal = f"http.CheckResponse{{{fields}}}"
        found = decide("HTTP", {}, _policy("HTTP", literal))
        assert found is not None
        assert not found.is_allowed

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ({"attributes": {"method": 1}}, "Attributes.Method of type string"),
            ({"attributes": {"header": {"a": "x"}}}, r"of type \[\]string"),
            ([1], "array into Go value of type http.CheckRequest"),
            ({"attributes": {"body": "%%"}}, "base64"),
        ],
    )
    def test_refused_requests(self, data: Any, text: str) -> None:
        with pytest.raises(MessageInvalid, match=text):
            request("HTTP", data)


class TestMcp:
    CALL: ClassVar[Any] = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {
            "name": "delete",
            "arguments": {
                "text": "t",
                "int": 3.9,
                "digits": "12",
                "bool": "T",
                "huge": 1e300,
                "list": ["1", 2, True, None, "x"],
            },
        },
    }

    def _is_true(self, expression: str, body: Any) -> bool:
        data = envoy(body=body if isinstance(body, str) else json.dumps(body))
        return is_true(
            "Envoy",
            expression,
            data,
            variables=[
                {
                    "name": "r",
                    "expression": "mcp.Parse(object.attributes.request.http.body)",
                }
            ],
        )

    @pytest.mark.parametrize(
        "expression",
        [
            "variables.r.Method == mcp.ToolsCallMethod",
            "variables.r.ToolCall.Name == 'delete'",
            "variables.r.ID == 7.0",
            "variables.r.GetStringArgument('text', '') == 't'",
            "variables.r.GetStringArgument('int', 'default') == 'default'",
            "variables.r.GetIntArgument('int', 0) == 3",
            "variables.r.GetIntArgument('digits', 0) == 12",
            "variables.r.GetIntArgument('text', 5) == 5",
            "variables.r.GetIntArgument('gone', 5) == 5",
            "variables.r.GetIntArgument('huge', 0) > 1000",
            "variables.r.GetFloatArgument('digits', 0.0) == 12.0",
            "variables.r.GetBoolArgument('bool', false)",
            "variables.r.GetBoolArgument('int', false)",
            "variables.r.GetStringSliceArgument('list', []) == ['1', 'x']",
            "variables.r.GetIntSliceArgument('list', []) == [1, 2]",
            "variables.r.GetFloatSliceArgument('list', []) == [1.0, 2.0]",
            "variables.r.GetBoolSliceArgument('list', []) == [true, true, true]",
            "variables.r.GetIntSliceArgument('text', [9]) == [9]",
            "!has(variables.r.PromptGet) && variables.r.PromptGet.Name == ''",
        ],
    )
    def test_tool_call(self, expression: str) -> None:
        assert self._is_true(expression, self.CALL)

    @pytest.mark.parametrize(
        ("method", "params", "expression"),
        [
            ("ping", {}, "variables.r.Method == mcp.PingMethod"),
            (
                "resources/read",
                {"uri": "a", "arguments": {"a": 1}},
                "variables.r.GetIntArgument(variables.r.ResourceRead.URI, 0) == 1",
            ),
            (
                "prompts/get",
                {"name": "a", "arguments": {"a": "b"}},
                "variables.r.GetStringArgument(variables.r.PromptGet.Name, '') == 'b'",
            ),
            (
                "initialize",
                {"protocolVersion": "1", "clientInfo": {"name": "c"}},
                "variables.r.Initialize.ClientInfo.Name == 'c'",
            ),
            ("tools/list", {"cursor": "c"}, "variables.r.Paginated.Cursor == 'c'"),
            (
                "logging/setLevel",
                {"level": "debug"},
                "variables.r.SetLogLevel.Level == 'debug'",
            ),
            ("other", {"a": 1}, "variables.r.Method == 'other'"),
        ],
    )
    def test_methods(self, method: str, params: Any, expression: str) -> None:
        assert self._is_true(expression, {"method": method, "params": params})

    @pytest.mark.parametrize(
        "body",
        [
            "x",
            "[]",
            '{"method": 1}',
            '{"method": "tools/call", "params": []}',
            # Go reads these as method and params, another server does not.
            '{"method": "ping", "Method": "tools/call"}',
            '{"method": "tools/call", "Params": {}}',
            '{"method": "tools/call", "params": {"Name": "x"}}',
        ],
    )
    def test_malformed_bodies(self, body: str) -> None:
        found = answered(
            "Envoy",
            "mcp.Parse(object.attributes.request.http.body).Method == '' ? null : null",
            envoy(body=body),
        )
        assert isinstance(found, str)

    def test_body_of_an_http_request(self) -> None:
        for body, method, name in (
            (json.dumps(self.CALL), "tools/call", "delete"),
            ('{"method": "tools/call", "params": []}', "tools/call", ""),
            ("x", "", ""),
            ("", "", ""),
        ):
            encoded = base64.b64encode(body.encode()).decode()
            expression = (
                f"object.mcp.request.Method == '{method}'"
                f" && object.mcp.request.ToolCall.Name == '{name}'"
            )
            assert is_true("HTTP", expression, {"attributes": {"body": encoded}})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("attributes", "request", "http", "headers", "header", "body", "source")
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(data=_JSON)
def test_no_request_ends_anything(data: Any) -> None:
    """A payload is refused as such, or the policies decide it."""
    reads = {
        "Envoy": "object.attributes.request.http.headers['x'] + string(object"
        ".attributes.source.address.socket_address.port_value) == ''",
        "HTTP": "object.attributes.Header('x')[0] + object.mcp.request.Method == ''",
    }
    for mode in MODES:
        rule = f"{reads[mode]} ? {ALLOW[mode]} : {DENY[mode]}"
        try:
            checked = check(mode, data)
        except MessageInvalid:
            continue
        found = decide(mode, data, _policy(mode, rule))
        assert found is not None
        assert found.error is not None or found.verdict is not None
        assert checked.request == checked.request
