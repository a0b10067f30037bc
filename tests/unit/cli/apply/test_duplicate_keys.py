"""Duplicate keys in JSON files.

Source: runs of ``kyverno`` 1.18.2.
"""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

POLICY = (
    '{"apiVersion":"kyverno.io/v1","kind":"ClusterPolicy","metadata":{"name":"p"},'
    '"spec":{"rules":[{"name":"r","match":{"any":[{"resources":{"kinds":'
    '["ConfigMap"]}}]},"validate":{"message":"m","pattern":{"data":{"a":"x"}}}}]}}'
)
OBJECT = (
    '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":{"a":"x"}}'
)
EXCEPTION = (
    '{"apiVersion":"kyverno.io/v2","kind":"PolicyException","metadata":{"name":"ex"},'
    '"spec":{"exceptions":[{"policyName":"p","ruleNames":["r"]}],'
    '"match":{"any":[{"resources":{"kinds":["ConfigMap"]}}]}}}'
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "r.yaml").write_text(OBJECT)
    (tmp_path / "e.yaml").write_text(EXCEPTION)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"name":"p"', '"name":"q","name":"p"'),
        ('{"a":"x"}', '{"a":"y","a":"x"}'),
        ('"name":"r"', '"name":"r","name":"s"'),
    ],
)
def test_policy_is_omitted(command: Command, files: Path, old: str, new: str) -> None:
    (files / "p.yaml").write_text(POLICY.replace(old, new))
    done = command("apply", files / "p.yaml", "-r", files / "r.yaml")
    # Upstream exits with 0, so a pipeline would succeed without the policy.
    assert done.code == 1
    assert "policy.key_twice" in done.err
    assert "Applying 0 policy rule(s) to 1 resource(s)..." in done.out
    assert "already set in map" in done.err


@pytest.mark.parametrize(
    ("old", "new", "summary"),
    [
        ('{"a":"x"}', '{"a":"y","a":"x"}', "pass: 1, fail: 0"),
        ('{"a":"x"}', '{"a":"x","a":"y"}', "pass: 0, fail: 1"),
        ('{"a":"x"}', '{"a":"x"},"data":{"a":"z"}', "pass: 0, fail: 1"),
    ],
)
def test_last_value_in_an_object_wins(
    command: Command, files: Path, old: str, new: str, summary: str
) -> None:
    (files / "r.yaml").write_text(OBJECT.replace(old, new))
    assert summary in command("apply", files / "p.yaml", "-r", files / "r.yaml").out


def test_exception_ends_the_run(command: Command, files: Path) -> None:
    flags = ("-r", files / "r.yaml", "-e", files / "e.yaml")
    assert "skip: 1" in command("apply", files / "p.yaml", *flags).out
    twice = EXCEPTION.replace('"name":"ex"', '"name":"ey","name":"ex"')
    (files / "e.yaml").write_text(twice)
    done = command("apply", files / "p.yaml", *flags)
    assert done.code == 1
    assert 'failed to load exceptions (key "name" already set in map)' in done.err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("userInfo: {username: 1}", "number into Go struct field UserInfo.Request"),
        ("userInfo: {extra: {a: b}}", "userInfo.extra of type v1.ExtraValue))"),
        ("userInfo: {user: bob}", 'decoding JSON: json: unknown field "user"))'),
        ("roles: [a]\nroles: [b]", 'line 4: key "roles" already set in map))'),
    ],
)
def test_user_files_are_decoded_like_gos(
    command: Command, files: Path, fields: str, message: str
) -> None:
    head = "apiVersion: cli.kyverno.io/v1alpha1\nkind: UserInfo\n"
    (files / "u.yaml").write_text(f"{head}{fields}\n")
    flags = ("-r", files / "r.yaml", "-u", files / "u.yaml")
    done = command("apply", files / "p.yaml", *flags)
    assert done.code == 1
    assert message in done.err


def test_names_in_user_files_are_case_insensitive(
    command: Command, files: Path
) -> None:
    head = "apiVersion: cli.kyverno.io/v1alpha1\nkind: UserInfo\n"
    (files / "u.yaml").write_text(f"{head}userinfo: {{Username: bob}}\n")
    flags = ("-r", files / "r.yaml", "-u", files / "u.yaml")
    assert command("apply", files / "p.yaml", *flags).code == 0


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ("<<: {foo: bar}\nfoo: qux", ['2: key "foo"']),
        ("foo: qux\n<<: {foo: bar}", ['2: key "foo"']),
        ("<<: {<<: {foo: a}, foo: bar}", ['1: key "foo"']),
        # The first of several merged maps has precedence, so Go merges it last.
        (
            "foo: bar\n<<: [{a: b}, {foo: c, a: d}]\nfoo: e",
            ['2: key "foo"', '2: key "a"', '3: key "foo"'],
        ),
        ("x: &a\n  foo: bar\n<<: *a\nfoo: z", ['4: key "foo"']),
        # A duplicate is reported each time the map is decoded.
        ("x: &a {foo: 1, foo: 2}\ny: *a\n<<: *a", ['1: key "foo"'] * 3),
        # The reported line is the value's.
        ("foo:\n  bar\nfoo:\n  bar", ['4: key "foo"']),
        ('"<<": a\n"<<": bar', ['2: key "<<"']),
        ("0x1: a\n1: b", ["2: key 1"]),
        ('1: a\n"1": bar', []),
    ],
)
def test_merged_keys_count_as_set(
    command: Command, files: Path, values: str, refused: list[str]
) -> None:
    head = (
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: Values\nmetadata: {name: v}\n"
        "policies:\n- name: p\n  rules:\n  - name: r\n    values:\n"
    )
    indented = "".join(f"      {line}\n" for line in values.splitlines())
    (files / "v.yaml").write_text(head + indented)
    done = command(
        "apply", files / "p.yaml", "-r", files / "r.yaml", "-f", files / "v.yaml"
    )
    assert done.code == (1 if refused else 0)
    first = head.count("\n")
    lines = [
        f"line {first + int(number)}: {key} already set in map"
        for number, _, key in (text.partition(": ") for text in refused)
    ]
    found = [line.strip() for line in done.err.splitlines() if "already" in line]
    assert [line.removesuffix("))") for line in found] == lines


@pytest.mark.parametrize("command_line", [("lint",), ("explain",), ("apply", "-r")])
@pytest.mark.parametrize(
    ("version", "kind", "key"),
    [
        ("kyverno.io/v1", "ClusterPolicy", "rules: []"),
        ("policies.kyverno.io/v1", "ValidatingPolicy", "validations: []"),
        (
            "admissionregistration.k8s.io/v1",
            "ValidatingAdmissionPolicy",
            "validations: []",
        ),
    ],
)
def test_all_commands_refuse_a_policy_with_a_key_twice(
    command: Command,
    files: Path,
    command_line: tuple[str, ...],
    version: str,
    kind: str,
    key: str,
) -> None:
    """One command that accepts it would hide what the others, and kubectl, refuse."""
    (files / "p.yaml").write_text(
        f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: p, name: p}}\n"
        f"spec:\n  {key}\n"
    )
    name, *flags = command_line
    values = [files / "r.yaml"] if flags else []
    done = command(name, files / "p.yaml", *flags, *values)
    assert done.code == 1
    assert "policy.key_twice" in done.out + done.err
