"""Policies in the evaluation modes HTTP and Envoy on the command line.

Expected: docs/behaviour/cel 15.7; texts and exit codes of the real 1.18.2.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Command, pod

HTTP = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: web}
spec:
  evaluation: {mode: HTTP}
  matchConditions:
  - {name: not-health, expression: "object.attributes.path != '/health'"}
  validations:
  - expression: >-
      object.attributes.Header("x-role") == ["admin"] ? http.Allowed().Response() : null
  - expression: 'http.Denied("no role").Response()'
"""
ENVOY = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: mesh}
spec:
  evaluation: {mode: Envoy}
  validations:
  - expression: >-
      object.attributes.request.http.headers["x-role"] == "admin"
      ? envoy.Allowed().Response() : envoy.Denied(401).Response()
"""
EXCEPTION = """
apiVersion: policies.kyverno.io/v1
kind: PolicyException
metadata: {name: open, namespace: team}
spec:
  evaluationMode: MODE
  policyRefs: [{name: web, kind: ValidatingPolicy}]
  matchConditions:
  - {name: internal, expression: "object.attributes.host == 'internal'"}
"""
SUMMARY = "pass: {}, fail: {}, warn: 0, error: {}, skip: {} "


def http(**attributes: Any) -> dict[str, Any]:
    """Return a request for policies in the mode HTTP."""
    return {"attributes": attributes}


def envoy(**headers: str) -> dict[str, Any]:
    """Return a request for policies in the mode Envoy."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"attributes": {"request": {"http": {"headers": named}}}}


class Files:
    """Writes the files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: Any) -> Path:
        """Write text, or data as JSON."""
        path = self.folder / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text)
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize(
    ("request_", "counts", "line"),
    [
        (http(header={"X-Role": ["admin"]}), (1, 0, 0, 0), ""),
        (http(), (0, 1, 0, 0), "1 - web request denied, reason: no role"),
        (http(path="/health"), (0, 0, 0, 1), ""),
    ],
)
def test_http_requests(
    command: Command,
    files: Files,
    request_: Any,
    counts: tuple[int, ...],
    line: str,
) -> None:
    policy, given = files.write("p.yaml", HTTP), files.write("r.json", request_)
    done = command("apply", policy, "--http-payload", given)
    assert done.code == (1 if counts[1] else 0)
    assert "Applying 1 policy rule(s) to 0 resource(s)..." in done.out
    assert SUMMARY.format(*counts) in done.out
    if line:
        assert f"policy web -> resource JSON payload failed:\n{line}\n" in done.out


def test_each_request_meets_each_policy_of_its_mode(
    command: Command, files: Files
) -> None:
    policies = files.write("p.yaml", f"{HTTP}\n---\n{ENVOY}")
    allowed = files.write("a.json", envoy(x_role="admin"))
    denied = files.write("d.json", envoy(x_role="guest"))
    broken = files.write("b.json", envoy())
    web = files.write("w.json", http())
    done = command(
        "apply",
        policies,
        "--envoy-payload",
        f"{allowed},{denied}",
        "--envoy-payload",
        broken,
        "--http-payload",
        web,
        "--policy-report",
    )
    assert done.code == 1
    (report,) = yaml.safe_load_all(done.out)
    found = [(row["rule"], row["result"], row["message"]) for row in report["results"]]
    assert sorted(found) == [
        ("mesh", "error", "no such key: x-role"),
        ("mesh", "fail", "request denied with status code 401"),
        ("mesh", "pass", "request allowed"),
        ("web", "fail", "request denied, reason: no role"),
    ]
    assert {row["source"] for row in report["results"]} == {"KyvernoValidatingPolicy"}
    assert report["results"][0]["resources"] == [{}]
    assert report["results"][0]["properties"] == {"process": "background scan"}


def test_table(command: Command, files: Files) -> None:
    policy, given = files.write("p.yaml", HTTP), files.write("r.json", http())
    done = command("apply", policy, "--http-payload", given, "--table")
    (row,) = (line for line in done.out.splitlines() if "web" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        *("1", "web", "", "/", "Fail", "")
    ]


def test_an_object_is_no_request(command: Command, files: Files) -> None:
    policies = files.write("p.yaml", f"{HTTP}\n---\n{ENVOY}")
    done = command("apply", policies, "-r", files.write("pod.yaml", pod("a")))
    assert done.code == 0
    assert "Applying 2 policy rule(s) to 1 resource(s)..." in done.out
    assert SUMMARY.format(0, 0, 0, 0) in done.out


_NO_FILE = (
    "failed to parse {0} payload from {{path}}: failed to read {0} payload file"
    " {{path}}: open {{path}}: no such file or directory"
)
_FIELD = (
    "failed to parse HTTP payload from {{path}}: json: cannot unmarshal {} into Go"
    " struct field CheckRequestAttributes.Attributes.{}"
)
_BASE64 = (
    "failed to parse HTTP payload from {path}: illegal base64 data at input byte 0"
)


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--http-payload", None, _NO_FILE.format("HTTP")),
        ("--envoy-payload", None, _NO_FILE.format("envoy")),
        (
            "--http-payload",
            '{"attributes":{"method":1}}',
            _FIELD.format("number", "Method of type string"),
        ),
        (
            "--http-payload",
            '{"attributes":{"header":{"a":"x"}}}',
            _FIELD.format("string", "Header of type []string"),
        ),
        ("--http-payload", '{"attributes":{"body":"%%"}}', _BASE64),
        ("--envoy-payload", '{"x":1}', 'unknown field "x"'),
        ("--envoy-payload", "{", "failed to parse envoy payload from {path}: "),
        ("--http-payload", "\x00", "failed to parse HTTP payload from {path}: "),
        ("--http-payload", "[" * 100_000, "failed to parse HTTP payload from"),
    ],
)
def test_requests_that_cannot_be_read(
    command: Command, files: Files, option: str, content: str | None, message: str
) -> None:
    path = files.folder / "r.json"
    if content is not None:
        files.write("r.json", content)
    done = command("apply", files.write("p.yaml", HTTP), option, path)
    assert done.code == 1
    assert message.format(path=path) in done.err


_NO_ANSWER = (
    "failed to compile HTTP policy web: spec.validations[1].expression: Invalid value:"
    ' "true": rule response output is expected to be of type http.CheckResponse'
)


@pytest.mark.parametrize(
    ("policy", "option", "message"),
    [
        (
            HTTP.replace('http.Denied("no role").Response()', "true"),
            "--http-payload",
            _NO_ANSWER,
        ),
        (
            ENVOY.replace("envoy.Allowed()", "http.Allowed()"),
            "--envoy-payload",
            "failed to compile envoy policy mesh: spec.validations[0].expression:",
        ),
    ],
)
def test_policies_that_do_not_compile(
    command: Command, files: Files, policy: str, option: str, message: str
) -> None:
    path = files.write("p.yaml", policy)
    done = command("apply", path, option, files.write("r.json", {}))
    assert done.code == 1
    assert message in done.err
    # Without requests of its mode, the policy is reported as any other.
    done = command("apply", path, "-r", files.write("pod.yaml", pod("a")))
    assert done.code == 1
    assert SUMMARY.format(0, 0, 1, 0) in done.out


@pytest.mark.parametrize(
    ("mode", "host", "counts"),
    [
        ("HTTP", "internal", (0, 0, 0, 1)),
        ("HTTP", "other", (0, 1, 0, 0)),
        ("Envoy", "internal", (0, 1, 0, 0)),
    ],
)
def test_exceptions(
    command: Command, files: Files, mode: str, host: str, counts: tuple[int, ...]
) -> None:
    done = command(
        "apply",
        files.write("p.yaml", HTTP),
        "--http-payload",
        files.write("r.json", http(host=host)),
        "--exceptions",
        files.write("e.yaml", EXCEPTION.replace("MODE", mode)),
    )
    assert SUMMARY.format(*counts) in done.out


def _test(**fields: Any) -> str:
    head = {"apiVersion": "cli.kyverno.io/v1alpha1", "kind": "Test"}
    return yaml.safe_dump({**head, "metadata": {"name": "t"}, **fields})


def test_tests_of_requests(command: Command, files: Files) -> None:
    files.write("p.yaml", f"{HTTP}\n---\n{ENVOY}")
    for name, given in (("ok", envoy(x_role="admin")), ("bad", envoy(x_role="x"))):
        files.write(f"{name}.json", given)
    files.write("web.json", http())

    def expected(policy: str, result: str, *names: str) -> dict[str, Any]:
        paths = [str(files.folder / name) for name in names]
        return {"policy": policy, "kind": "", "result": result, "resources": paths}

    files.write(
        "kyverno-test.yaml",
        _test(
            policies=["p.yaml"],
            envoyPayloads=["ok.json", "bad.json"],
            httpPayloads=["web.json"],
            results=[
                expected("mesh", "pass", "ok.json"),
                expected("mesh", "fail", "bad.json"),
                expected("web", "fail", "web.json"),
                expected("web", "pass", "web.json"),
            ],
        ),
    )
    done = command("test", files.folder)
    assert "  Loading HTTP payloads ...\n  Loading Envoy payloads ...\n" in done.out
    assert "3 tests passed and 1 tests failed" in done.out
    assert done.code == 1
    # KYVERNO: the policies of these modes are not counted.
    assert "Applying 0 policies to 0 resources" in done.out


_ANY = {"policy": "web", "kind": "", "result": "pass"}


@pytest.mark.parametrize(
    ("field", "word"), [("httpPayloads", "HTTP"), ("envoyPayloads", "Envoy")]
)
def test_tests_whose_requests_cannot_be_read(
    command: Command, files: Files, field: str, word: str
) -> None:
    files.write("p.yaml", HTTP)
    test = _test(policies=["p.yaml"], results=[_ANY], **{field: ["gone.json"]})
    files.write("kyverno-test.yaml", test)
    done = command("test", files.folder)
    assert done.code == 1
    assert f"failed to load {word} payloads from path" in done.err


def test_lint(command: Command, files: Files) -> None:
    path = files.write("p.yaml", f"{HTTP}\n---\n{ENVOY}")
    assert json.loads(command("lint", path, "--target", "cli", "-o", "json").out) == []
    found = json.loads(command("lint", path, "-o", "json").out)
    assert [one["code"] for one in found] == ["lint.unsupported"] * 2
    assert "policies of evaluation mode HTTP" in found[0]["message"]
    files.write("p.yaml", ENVOY.replace("envoy.Allowed()", "envoy.Allow()"))
    found = json.loads(command("lint", path, "-o", "json").out)
    assert ("policy.expression", 8) in [(one["code"], one["line"]) for one in found]


@pytest.mark.parametrize(
    ("expression", "codes"),
    [
        ("object.attributes.host == 'a' && variables.any", []),
        ("object.attributes.none == ''", ["policy.expression"]),
    ],
)
def test_lint_of_exceptions(
    command: Command, files: Files, expression: str, codes: list[str]
) -> None:
    text = EXCEPTION.replace("MODE", "HTTP")
    text = text.replace("object.attributes.host == 'internal'", expression)
    found = json.loads(command("lint", files.write("e.yaml", text), "-o", "json").out)
    assert [one["code"] for one in found] == codes


def test_explain(command: Command, files: Files) -> None:
    fetching = ENVOY.replace(
        "envoy.Allowed().Response()",
        "(jwt.Decode('', jwks.Fetch('https://i/keys')).Valid ? null :"
        " envoy.Allowed().Response())",
    )
    path = files.write("p.yaml", f"{HTTP}\n---\n{fetching}")
    done = command("explain", path, "-o", "json", "--target", "cli")
    assert (done.code, done.err) == (0, "")
    web, mesh = json.loads(done.out)
    assert web["rules"][0]["body"] == "2 validations, 1 matchCondition"
    assert web["rules"][0]["kinds"] == ["HTTP requests"]
    assert web["rules"][0]["effects"] == ["pure"]
    assert mesh["rules"][0]["effects"] == ["calls the cluster"]
    done = command("explain", path)
    assert done.code == 1
    told = "policy mesh: the server does not evaluate policies of evaluation mode Envoy"
    assert f"{told} [leader.unsupported_kind]" in done.err
