"""Lint finds all faults in one run and reports their lines."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import LATEST_POLICY, Command
from tests.unit.cli.sarif_essentials import check_sarif

FAULTY = """apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata:
  name: p
spec:
  validationFailureAction: enforce
  background: false
  rules:
  - name: a
    mach: {}
    match:
      resources:
        kinds: ["*"]
    exclude:
      any:
      - resources: {kinds: ["*"]}
    preconditions:
    - key: "{{ request.operation }}"
      operator: In
      value: [CREATE]
    validate:
      pattern:
        spec: {a: b}
"""
MUTATING = """apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  rules:
  - name: m
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {pattern: {spec: {a: b}}}
"""


def _findings(command: Command, *paths: Path) -> list[dict[str, object]]:
    done = command("lint", *paths, "-o", "json")
    found: list[dict[str, object]] = json.loads(done.out)
    return found


def _places(found: list[dict[str, object]]) -> set[tuple[object, object]]:
    return {(one["line"], one["code"]) for one in found}


def test_valid_policy(command: Command, policy_file: Path) -> None:
    done = command("lint", policy_file)
    assert (done.code, done.out) == (0, "0 errors, 0 warnings\n")


def test_all_findings_with_lines(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FAULTY)
    assert command("lint", file).code == 1
    assert _places(_findings(command, file)) >= {
        (6, "lint.deprecated_field"),
        (6, "lint.deprecated_value"),
        (10, "policy.unknown_field"),
        (11, "lint.deprecated_field"),
        (11, "lint.never_matches"),
        (13, "lint.wildcard_kind"),
        (19, "lint.deprecated_operator"),
    }


def test_findings_across_files(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MUTATING)
    (tmp_path / "b.yaml").write_text(MUTATING)
    (tmp_path / "e.yaml").write_text(
        "apiVersion: kyverno.io/v2\nkind: PolicyException\n"
        "metadata: {name: e, namespace: x}\nspec:\n"
        "  exceptions: [{policyName: gone, ruleNames: [r]},"
        " {policyName: p, ruleNames: [m, other]}]\n"
        "  match: {any: [{resources: {kinds: [Pod]}}]}\n"
    )
    found = _findings(command, tmp_path)
    texts = [one["message"] for one in found]
    assert any("is also in" in str(text) for text in texts)
    assert "the exception names policy gone, which is not in the set" in texts
    assert "policy p has no rule other" in texts


@pytest.mark.parametrize("group", ["kyverno.io/v2", "policies.kyverno.io/v1"])
@pytest.mark.parametrize(
    ("annotation", "code", "message"),
    [
        ("expires: '2999-01-01T00:00:00Z'", "", ""),
        (
            "expires: '2020-01-01T00:00:00Z'",
            "lint.exception_expired",
            "it has expired at 2020-01-01T00:00:00Z; it exempts nothing",
        ),
        (
            "expires: '2020-01-01'",
            "policy.expiry",
            "expected a time such as 2027-01-31T00:00:00Z",
        ),
        (
            "expiry: '2999-01-01T00:00:00Z'",
            "policy.expiry",
            "no such annotation; there are kyverno-mp.io/expires, kyverno-mp.io/reason",
        ),
    ],
)
def test_the_end_of_an_exception(
    group: str,
    annotation: str,
    code: str,
    message: str,
    command: Command,
    tmp_path: Path,
) -> None:
    spec = (
        "{policyRefs: [{name: p, kind: ValidatingPolicy}]}"
        if group.startswith("policies")
        else "{match: {any: [{resources: {kinds: [Pod]}}]},"
        " exceptions: [{policyName: p, ruleNames: [r]}]}"
    )
    (tmp_path / "e.yaml").write_text(
        f"apiVersion: {group}\nkind: PolicyException\nmetadata:\n"
        "  name: e\n  namespace: x\n"
        f"  annotations:\n    kyverno-mp.io/{annotation}\nspec: {spec}\n"
    )
    found = [(one["code"], one["message"]) for one in _findings(command, tmp_path)]
    assert found == ([(code, message)] if code else [])


def test_kind_that_is_not_evaluated(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "---\napiVersion: policies.kyverno.io/v1alpha1\nkind: FuturePolicy\n"
        "metadata: {name: p}\nspec: {variables: 3}\n"
    )
    assert _places(_findings(command, file)) == {
        (3, "lint.unsupported"),
        (3, "policy.unknown_kind"),
    }


def test_syntax_error_has_its_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("a: 1\nb: [\n")
    assert _places(_findings(command, file)) == {(3, "policy.syntax")}


@pytest.mark.parametrize(
    ("options", "code"),
    [([], 0), (["--strict"], 1), (["--strict", "--ignore", "lint.*"], 0)],
)
def test_exit_codes(
    command: Command, tmp_path: Path, options: list[str], code: int
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        LATEST_POLICY.replace("  rules:", "  validationFailureAction: Audit\n  rules:")
    )
    assert command("lint", file, *options).code == code


def test_namespaced_policy_that_never_matches(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        LATEST_POLICY.replace("ClusterPolicy", "Policy").replace("[Pod]", "[Node]")
    )
    assert "lint.never_matches" in {one["code"] for one in _findings(command, file)}


def test_sarif(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "a policy.yaml"
    file.write_text(FAULTY)
    results = check_sarif(json.loads(command("lint", file, "-o", "sarif").out))
    assert {str(one["level"]) for one in results} == {"error", "warning", "note"}
    assert "a%20policy.yaml" in json.dumps(results)


def test_missing_path(command: Command, tmp_path: Path) -> None:
    done = command("lint", tmp_path / "gone.yaml")
    assert done.code == 1
    assert "no such file" in done.err


EXPRESSIONS = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  webhookConfiguration:
    matchConditions:
    - {name: good, expression: "request.operation == 'CREATE'"}
    - {name: bad, expression: "object.x +"}
  rules:
  - name: a
    match: {any: [{resources: {kinds: [Pod]}}]}
    celPreconditions:
    - {name: text, expression: "'a'"}
    validate:
      cel:
        variables:
        - {name: v, expression: "nothing.x"}
        expressions:
        - expression: "variables.v == 1"
          messageExpression: "1"
        - expression: "size(object"
  - name: b
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate:
      assert:
        object:
          spec:
            (length(a): 1
            (length(b)): 1
            c: (d ||)
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: v}
spec:
  matchConditions:
  - {name: m, expression: "object.x"}
  validations:
  - expression: "object.x > "
"""


def test_expressions_that_do_not_compile(command: Command, tmp_path: Path) -> None:
    """Each expression is reported with its line and its column within the text."""
    file = tmp_path / "p.yaml"
    file.write_text(EXPRESSIONS)
    found = [
        (int(str(one["line"])), str(one["message"]))
        for one in _findings(command, file)
        if one["code"] == "policy.expression"
    ]
    operand = (
        "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT,"
        " NUM_UINT, STRING, BYTES, IDENTIFIER}"
    )
    ended = f"Syntax error: mismatched input '<EOF>' expecting {operand}"
    assert found == [
        (9, f"column 11: {ended}"),
        (14, "must evaluate to bool but got string"),
        (18, "column 1: undeclared reference to 'nothing' (in container '')"),
        (21, "must evaluate to string but got int"),
        (22, "column 12: Syntax error: missing ')' at '<EOF>'"),
        (29, "length(a: SyntaxError: Incomplete expression"),
        (31, "d ||: SyntaxError: Incomplete expression"),
        (38, "must evaluate to bool but got dyn"),
        (40, f"column 12: {ended}"),
    ]


def _policy(rule: str, name: str = "p") -> str:
    return f"""apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {{name: {name}}}
spec:
  rules:
{rule}"""


DENYING = """  - name: r{n}
    match: {{any: [{{resources: {{kinds: [Pod]}}}}]}}
    context:
    - name: v
      variable: {{jmesPath: "{path}"}}
    validate:
      deny: {{conditions: {{all: [{{key: "{key}", operator: Equals, value: x}}]}}}}
"""


@pytest.mark.parametrize(
    ("key", "path", "line", "reason"),
    [
        ("{{ nofunc(request.object) }}", "`1`", 12, "nofunc: unknown function: nofunc"),
        ("{{ to_upper() }}", "`1`", 12, "to_upper: incorrect number of args"),
        ("{{ merge() }}", "`1`", 12, "merge: Invalid arity."),
        # The faults are within an argument and around an inner variable.
        ("{{ length(nofunc(v)) }}", "`1`", 12, "nofunc: unknown function: nofunc"),
        ("{{ to_upper('{{ v }}', v) }}", "`1`", 12, "to_upper: incorrect number of"),
        ("{{ v }}", "nofunc(@)", 10, "nofunc: unknown function: nofunc"),
    ],
)
def test_calls_that_always_fail(
    command: Command, tmp_path: Path, key: str, path: str, line: int, reason: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(_policy(DENYING.format(n=1, key=key, path=path)))
    (found,) = _findings(command, file)
    assert (found["code"], found["level"]) == ("lint.call", "warning")
    assert found["line"] == line
    assert str(found["message"]).startswith(reason)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("{{ truncate(v, `3`) }}", "to_upper('a')"),
        ("{{ merge(request.object, v, v) }}", "`1`"),
        ("{{ random('a') }}", "time_now()"),
    ],
)
def test_calls_that_work(command: Command, tmp_path: Path, key: str, path: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(_policy(DENYING.format(n=1, key=key, path=path)))
    assert _findings(command, file) == []


def test_duplicate_key(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    rule = """  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: &body
      pattern: {metadata: {name: a}}
      pattern: {metadata: {name: b}}
  - name: s
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: *body
"""
    file.write_text(_policy(rule))
    (found,) = _findings(command, file)
    assert (found["code"], found["line"], found["column"]) == (
        "policy.key_twice",
        10,
        7,
    )
    # kubectl and the other commands refuse such a policy; other files are only unclear.
    file.write_text("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\ndata: {a: c}\n")
    found, foreign = _findings(command, file)
    assert (found["code"], found["level"]) == ("lint.not_a_policy", "note")
    assert (foreign["code"], foreign["level"]) == ("lint.duplicate_key", "warning")


def test_policies_rejected_by_the_server(command: Command, tmp_path: Path) -> None:
    rules = "".join(DENYING.format(n=n, key="{{ v }}", path="`1`") for n in range(1001))
    (tmp_path / "p.yaml").write_text(_policy(rules))
    rule = DENYING.format(n=1, key="{{ v }}", path="`1`")
    (tmp_path / "q.yaml").write_text(_policy(rule, name="Q/.."))
    many, name = _findings(command, tmp_path)
    assert (many["code"], many["line"]) == ("leader.rules", 5)
    assert (name["code"], name["line"]) == ("leader.name", 3)
    assert (many["level"], name["level"]) == ("error", "error")


def test_invalid_utf_8_is_reported_in_one_line(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"kind: A\nname: a\xff\n")
    done = command("lint", file)
    assert done.out == (
        f"{file}:2:8: error: unacceptable character #xff: invalid leading UTF-8 octet"
        " [policy.syntax]\n1 error, 0 warnings\n"
    )


def test_document_without_a_kind(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("apiVersion: kyverno.io/v1\nmetadata: {name: x}\n")
    (found,) = _findings(command, file)
    assert found["message"] == "policy type not supported kyverno.io/v1, Kind="


def test_named_file_is_read_with_any_extension(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"apiVersion": "kyverno.io/v1", "kind": "Pod"}')
    (found,) = _findings(command, file)
    assert found["code"] == "policy.unknown_kind"


def test_a_name_that_nothing_reads_is_an_error_of_lint_and_a_warning_elsewhere(
    command: Command, tmp_path: Path, pods_file: Path
) -> None:
    """``Any`` is read as ``any``; ``anny`` would silently deny everything."""
    file = tmp_path / "policy.yaml"
    conditions = """
      deny:
        conditions:
          Any: [{KEY: "{{ request.object.metadata.name }}", operator: Equals, value: a}]
"""
    text = LATEST_POLICY.partition("      pattern:")[0] + conditions.lstrip("\n")
    file.write_text(text)
    assert _findings(command, file) == []
    file.write_text(text.replace("Any:", "anny:"))
    line = text.splitlines().index("        conditions:") + 2
    assert _places(_findings(command, file)) == {(line, "policy.ignored_name")}
    name = "spec.rules[0].validate.deny.conditions.anny"
    assert name in command("apply", file, "-r", pods_file).err
    assert name in command("explain", file).err


@pytest.mark.parametrize("kind", ["Policy", "ClusterPolicy"])
def test_long_text_of_a_tenant_is_an_error_as_at_review(
    command: Command, tmp_path: Path, kind: str
) -> None:
    """Otherwise, a pipeline is green and the cluster rejects the policy."""
    file = tmp_path / "policy.yaml"
    named = LATEST_POLICY.replace("kind: ClusterPolicy", f"kind: {kind}")
    head, _, body = named.partition("message: ")
    message = body.partition("\n")[0]
    file.write_text(f"{head}message: {'m' * 64 * 1024}\n{body[len(message) + 1 :]}")
    assert "policy.long_text" not in str(_findings(command, file))
    file.write_text(f"{head}message: {'m' * 65 * 1024}\n{body[len(message) + 1 :]}")
    found = [one for one in _findings(command, file) if "long" in str(one["code"])]
    assert [one["code"] for one in found] == ["policy.long_text"] * (kind == "Policy")
    assert [one["level"] for one in found] == ["error"] * (kind == "Policy")
