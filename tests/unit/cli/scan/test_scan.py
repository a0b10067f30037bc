"""``json scan`` gives the results of upstream's.

A failure means: a payload passes that upstream rejects, or the other way round. The
expected lines are those of the command line of Kyverno 1.18.2.
"""

import json
from pathlib import Path

import pytest

from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import Command

_PAYLOAD = '{"a": 1, "b": "x", "c": [1, 2, 3], "d": {"e": "f"}, "t": true}'
_GOOD = {"a": 1}
_BAD = {"a": 2}
_BROKEN = {"(foo(a))": 1}
_FAILED = "FAILED:  -> all[0].check.a: Invalid value: 1: Expected value: 2"
_NO_FOO = "Internal error: unknown function: foo"
_DEFINED = [
    {"name": "x", "variable": "(a)"},
    {"name": "xx", "variable": "(add($x, `1`))"},
]


def _all(check: Json, **rule: Json) -> dict[str, Json]:
    return {**rule, "assert": {"all": [{"check": check}]}}


def _any(*checks: Json) -> dict[str, Json]:
    return {"assert": {"any": [{"check": check} for check in checks]}}


def _with(variable: Json, check: Json, name: str = "x") -> dict[str, Json]:
    return _all(check, context=[{"name": name, "variable": variable}])


def _policy(folder: Path, spec: Json, **more: Json) -> Path:
    policy = {
        "apiVersion": "json.kyverno.io/v1alpha1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": "p"},
        "spec": spec,
    }
    file = folder / "p.yaml"
    file.write_text(json.dumps({**policy, **more}))
    return file


def _scanned(
    command: Command, folder: Path, rule: dict[str, Json], payload: str = _PAYLOAD
) -> str:
    """Return the line of the rule, without the policy and the rule; "": no line."""
    data = folder / ("payload.json" if payload.startswith("{") else "payload.yaml")
    data.write_text(payload)
    file = _policy(folder, {"rules": [{"name": "r", **rule}]})
    done = command("json", "scan", "--payload", data, "--policy", file)
    assert done.err == ""
    lines = done.out.partition(") ...\n")[2].removesuffix("Done\n")
    line = lines.removeprefix("- p / r / ").strip()
    # A pipeline must notice what is not PASSED.
    assert done.code == int(any(word in line for word in ("FAILED", "ERROR")))
    return line


@pytest.mark.parametrize(
    ("check", "line"),
    [
        ({"(a == `1`)": True}, "PASSED"),
        ({"(sum(c))": 6}, "PASSED"),
        ({"(add(a, `1`))": 2}, "PASSED"),
        ({"(b == 'x' && a == `1`)": True}, "PASSED"),
        (
            {"a": "1"},
            ("ERROR: all[0].check.a: Internal error: types are not comparable, "
            "string - float64"),
        ),
        (
            {"a": {"x": 1}},
            "ERROR: all[0].check.a.x: Internal error: projection not recognized",
        ),
        (
            {"a": [1]},
            "ERROR: all[0].check.a: Invalid value: 1: expected a slice",
        ),
        (
            {"~.c": {"(@ > `1`)": True}},
            ("FAILED:  -> all[0].check.~.c[0].(@ > `1`): Invalid value: false: "
            "Expected value: true"),
        ),
        (_BROKEN, f"ERROR: all[0].check.(foo(a)): {_NO_FOO}"),
        (
            {"~v.(c)->w": {"(@ == $w[$v])": True}},
            ("ERROR: all[0].check.~v.(c)->w[0].(@ == $w[$v]): Internal error: "
            "SyntaxError: Expected TOKStar, received: TOKVarref"),
        ),
        (
            {"(1)": 1},
            ("ERROR: all[0].check.(1): Internal error: SyntaxError: "
            "Invalid token: TOKNumber"),
        ),
    ],
)  # fmt: skip
def test_checks_of_json(
    command: Command, tmp_path: Path, check: Json, line: str
) -> None:
    """Numbers of JSON are float64, and errors name the place in the assertion."""
    assert _scanned(command, tmp_path, _all(check)) == line


@pytest.mark.parametrize(
    ("check", "line"),
    [
        ({"a": 1}, "PASSED"),
        (
            {"(a == `1`)": True},
            (
                "FAILED:  -> all[0].check.(a == `1`): Invalid value: false: "
                "Expected value: true"
            ),
        ),
        (
            {"a": "1"},
            (
                "ERROR: all[0].check.a: Internal error: types are not comparable, "
                "string - int"
            ),
        ),
    ],
)
def test_integers_of_yaml(
    command: Command, tmp_path: Path, check: Json, line: str
) -> None:
    assert _scanned(command, tmp_path, _all(check), "a: 1\n") == line


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (_any(_GOOD, _BROKEN), "PASSED"),
        (_any(_BROKEN, _GOOD), f"ERROR: any[0].check.(foo(a)): {_NO_FOO}"),
        (
            {"assert": {}},
            "ERROR: <nil>: Invalid value: {}: an empty assert is not valid",
        ),
        (
            _all(_BAD, match={}),
            "ERROR: <nil>: Invalid value: {}: an empty match is not valid",
        ),
        (
            _all(_BAD, exclude={"any": []}),
            "ERROR: <nil>: Invalid value: {}: an empty match is not valid",
        ),
        (_all(_BAD, match={"any": [_GOOD, _BROKEN]}), _FAILED),
        (_all(_BAD, match={"any": [_GOOD], "all": [_BAD]}), ""),
        (
            _all(_BAD, match={"all": [_BAD, _BROKEN]}),
            f"ERROR: all[1].(foo(a)): {_NO_FOO}",
        ),
        (_all(_BAD, exclude={"all": [_GOOD]}), ""),
        (_all(_BAD, identifier="a"), f"1 {_FAILED}"),
        (_all(_GOOD, identifier="nope"), "<nil> PASSED"),
        (_all(_GOOD, identifier="d"), "map[e:f] PASSED"),
        (
            _all(_GOOD, identifier="foo("),
            "(error: SyntaxError: Incomplete expression) PASSED",
        ),
    ],
)
def test_rules(
    command: Command, tmp_path: Path, rule: dict[str, Json], line: str
) -> None:
    assert _scanned(command, tmp_path, rule) == line


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (_all({"($xx)": 2}, context=_DEFINED), "PASSED"),
        (_with("(foo(a))", _GOOD), "PASSED"),
        (
            _with("(foo(a))", {"($x)": 1}),
            ("ERROR: all[0].check.($x): Internal error: context[0].variable: "
            f"{_NO_FOO}"),
        ),
        (
            _with({"k": ["(a)"]}, {"($x.k[0])": "q"}),
            ("FAILED:  -> all[0].check.($x.k[0]): "
            'Invalid value: "(a)": Expected value: "q"'),
        ),
        (
            _with("~.(c)", {"($x)": 1}),
            ("ERROR: all[0].check.($x): Internal error: context[0].variable: "
            'Invalid value: "~.(c)": foreach is not supported in context'),
        ),
        (
            _with("(c)->z", {"($x)": 1}),
            ("ERROR: all[0].check.($x): Internal error: context[0].variable: "
            'Invalid value: "(c)->z": binding is not supported in context'),
        ),
        (_with("v", {"($images)": "v"}, "images"), "PASSED"),
        (
            _all(
                {"($x)": 2},
                context=[
                    {"name": "x", "variable": 1},
                    {"name": "x", "variable": "(add($x, `1`))"},
                ],
            ),
            "PASSED",
        ),
    ],
)  # fmt: skip
def test_context(
    command: Command, tmp_path: Path, rule: dict[str, Json], line: str
) -> None:
    """An entry is evaluated when it is used, and only if it is an expression."""
    assert _scanned(command, tmp_path, rule) == line


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, "spec.rules: Required value"),
        ({"rules": [{"name": "r"}]}, "spec.rules[0].assert: Required value"),
        ({"rules": [_all(_GOOD)]}, "spec.rules[0].name: Required value"),
        (
            {"rules": [{"name": "r", **_all(_GOOD, foo=1)}]},
            "spec.rules[0].foo: Invalid value: value provided for unknown field",
        ),
        (
            {"rules": [{"name": "r", **_all(None)}]},
            "spec.rules[0].assert.all[0].check: Required value",
        ),
        (
            {"rules": [{"name": "r", **_all("x")}]},
            (
                'spec.rules[0].assert.all[0].check: Invalid value: "string": '
                "spec.rules[0].assert.all[0].check in body must be of type object: "
                '"string"'
            ),
        ),
        (
            {"rules": [{"name": "r" * 64, **_all(_GOOD)}]},
            "spec.rules[0].name: Too long: may not be more than 63 bytes",
        ),
    ],
)
def test_policies_that_the_schema_rejects(
    command: Command, tmp_path: Path, spec: Json, reason: str
) -> None:
    (tmp_path / "payload.json").write_text("{}")
    file = _policy(tmp_path, spec)
    arguments = ("--payload", tmp_path / "payload.json", "--policy", file)
    done = command("json", "scan", *arguments)
    assert (done.code, done.out) == (1, "Loading policies ...\n")
    assert done.err.endswith(f'"p" is invalid: {reason}\n')


@pytest.mark.parametrize(
    ("name", "payload"),
    [("payload.txt", "a: 1\n"), ("payload.json", "[1e999]"), ("payload.json", "NaN")],
)
def test_payloads_that_cannot_be_read(
    command: Command, tmp_path: Path, name: str, payload: str
) -> None:
    (tmp_path / name).write_text(payload)
    done = command("json", "scan", "--payload", tmp_path / name)
    assert (done.code, done.out) == (1, "Loading policies ...\nLoading payload ...\n")


def test_a_policy_of_another_version(command: Command, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text("{}")
    file = _policy(tmp_path, {"rules": []}, apiVersion="json.kyverno.io/v1")
    arguments = ("--payload", tmp_path / "payload.json", "--policy", file)
    assert command("json", "scan", *arguments).code == 1


def _reading(count: int, variable: str) -> Json:
    """Return entries, each of which reads earlier ones."""
    first = [{"name": f"x{at}", "variable": "(a)"} for at in range(2)]
    more = [
        {"name": f"x{at}", "variable": variable.format(at - 2, at - 1)}
        for at in range(2, count)
    ]
    return [*first, *more]


def test_each_variable_is_evaluated_once(command: Command, tmp_path: Path) -> None:
    """Otherwise, a policy of some lines would never end."""
    entries = _reading(60, "(max([$x{}, $x{}]))")
    rule = _all({"($x59)": 1}, context=entries)
    assert _scanned(command, tmp_path, rule) == "PASSED"


def test_long_chain_of_variables(command: Command, tmp_path: Path) -> None:
    rule = _all({"($x2999)": 1}, context=_reading(3000, "(max([$x{1}]))"))
    assert "too many entries read one another" in _scanned(command, tmp_path, rule)
