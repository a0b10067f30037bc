"""Mistakes of new users end with a message and an exit code, never a traceback."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

JSON_POLICY = """
apiVersion: json.kyverno.io/v1alpha1
kind: ValidatingPolicy
metadata: {name: p}
spec: {rules: [{name: r, assert: {all: [{check: {a: 1}}]}}]}
"""
_BYTES: dict[str, bytes] = {
    "deep.json": b"[" * 200_000,
    "deep.yaml": b"[" * 20_000,
    "latin.yaml": b"a: \xe9\xff\n",
    "nul.yaml": b"a: \x00b\n",
    "open.yaml": b"a: [1\nb: }\n",
    "number.yaml": b"a: " + b"9" * 5_000 + b"\n",
    "itself.yaml": b"a: &x [*x]\n",
}


@pytest.fixture
def folder(tmp_path: Path, policy_file: Path, pods_file: Path) -> Path:
    assert policy_file.parent == pods_file.parent == tmp_path
    (tmp_path / "json-policy.yaml").write_text(JSON_POLICY)
    for name, content in _BYTES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("name", [*_BYTES, "missing.yaml"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("apply", "{}", "-r", "pods.yaml"),
        ("apply", "policy.yaml", "-r", "{}"),
        ("apply", "policy.yaml", "-r", "pods.yaml", "-f", "{}"),
        ("apply", "policy.yaml", "-r", "pods.yaml", "-u", "{}"),
        ("apply", "policy.yaml", "-r", "pods.yaml", "-e", "{}"),
        ("apply", "policy.yaml", "--json", "{}"),
        ("lint", "{}"),
        ("explain", "{}"),
        ("json", "scan", "--payload", "{}", "--policy", "json-policy.yaml"),
        ("json", "scan", "--payload", "pods.yaml", "--policy", "{}"),
        ("jp", "query", "-i", "{}", "a"),
    ],
)
def test_no_file_causes_a_traceback(
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    name: str,
) -> None:
    monkeypatch.chdir(folder)
    done = command(*(part.format(name) for part in arguments))
    assert done.code in (0, 1, 2)
    assert "Traceback" not in done.err
    if done.code == 2 or (done.code == 1 and not done.out):
        assert done.err.count("Error: ") == 1


@pytest.mark.parametrize("name", ["/etc/passwd", "*.yaml", "[", "", "../policy.yaml"])
def test_test_file_name_is_no_pattern(
    command: Command, folder: Path, name: str
) -> None:
    (folder / "tests").mkdir()
    (folder / "tests" / "any.yaml").write_text("a: b\n")
    done = command("test", folder / "tests", "-f", name)
    assert (done.code, done.out) == (0, "\nNo test yamls available\n")


def test_invalid_selector_is_rejected(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files = ("--payload", "pods.yaml", "--policy", "json-policy.yaml")
    done = command("json", "scan", *files, "--labels", "((")
    assert (done.code, done.err) == (1, "Error: unable to parse requirement: ((\n")
    for good in ("a=b", "a==b", "a!=b", "!a", "a", "a in (b, c)", "x.io/a = b", ""):
        # A failed rule has the same exit code, but no error.
        assert command("json", "scan", *files, "--labels", good).err == ""


@pytest.mark.parametrize(
    "names", [(), ("apply",), ("jp", "query"), ("version", "and", "more")]
)
def test_help(command: Command, names: tuple[str, ...]) -> None:
    shown = names[:1] if names[:1] == ("version",) else names
    assert command("help", *names).out == command(*shown, "--help").out


def test_help_of_a_missing_command(command: Command) -> None:
    done = command("help", "nothing")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("Unknown help topic `nothing`\nUsage:")
