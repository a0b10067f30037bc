"""The list of commands, completion, docs, jp, json scan, and omitted commands."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kyverno_mp import UPSTREAM_VERSION
from tests.unit.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[4]
_GONE = "Error: failed open file gone.json: open gone.json: no such file or directory\n"
SCAN_POLICY = """
apiVersion: json.kyverno.io/v1alpha1
kind: ValidatingPolicy
metadata: {name: tags, labels: {team: a}}
spec:
  rules:
  - name: tagged
    identifier: name
    context: [{name: wanted, variable: "(join('-', ['x', type]))"}]
    match: {any: [{type: bucket}]}
    exclude: {any: [{name: ignored}]}
    assert:
      all:
      - message: tag missing
        check: {tags: {"(contains(keys(@), 'Team'))": true}}
      - check: {"($wanted)": x-bucket}
"""
PAYLOAD = {
    "items": [
        {"type": "bucket", "name": "good", "tags": {"Team": "t"}},
        {"type": "bucket", "name": "bad", "tags": {}},
        {"type": "bucket", "name": "ignored"},
        {"type": "vm", "name": "other"},
        {"type": "bucket", "name": "broken", "tags": 1},
    ]
}


def test_list_of_commands_imports_no_command() -> None:
    code = (
        "import sys; from kyverno_mp.cli.main import run; run(['--help']);"
        "print([m for m in sys.modules if m.startswith(('kyverno_mp.program',"
        " 'kyverno_mp.compiler', 'kyverno_mp.cli.apply.command', 'rich', 'yaml',"
        " 'kubernetes'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")
    assert "apply" in done.stdout


def test_version_for_programs(command: Command) -> None:
    """The upstream version is the one whose answers this version follows."""
    found = json.loads(command("version", "-o", "json").out)
    assert found.keys() >= {"version", "time", "gitCommitId"}
    assert found["kyvernoVersion"] == UPSTREAM_VERSION
    assert yaml.safe_load(command("version", "-o", "yaml").out) == found
    done = command("version", "-o", "xml")
    assert (done.code, done.out) == (1, "")
    assert "invalid output format: xml (supported formats: json, yaml)" in done.err
    done = command("--version")
    assert done.code == 0
    assert {found["version"], UPSTREAM_VERSION} <= set(re.findall(r"[\d.]+", done.out))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion(command: Command, shell: str) -> None:
    done = command("completion", shell)
    assert done.code == 0
    assert "_KYVERNO_MP_COMPLETE" in done.out


@pytest.mark.parametrize("shells", [[], ["bash", "zsh"], ["tcsh"], ["Bash"]])
def test_completion_rejects_unknown_shells(command: Command, shells: list[str]) -> None:
    assert command("completion", *shells).code == 1


def test_docs_have_a_page_for_each_command(command: Command, tmp_path: Path) -> None:
    done = command("docs", "-o", tmp_path, "--website", "--noDate")
    assert done.code == 0
    apply = (tmp_path / "kyverno-mp_apply.md").read_text()
    assert apply.startswith("---\ntitle: kyverno-mp apply\nweight: 35\n---\n")
    assert "| `-e, --exception, --exceptions TEXT` |" in apply
    assert (tmp_path / "kyverno-mp_create_cluster-role.md").exists()


def test_docs_have_a_manual_page_for_each_command(
    command: Command, tmp_path: Path
) -> None:
    """They show what ``--help`` shows, defaults and choices too."""
    assert command("docs", "-o", tmp_path / "site").code == 0
    assert command("docs", "-o", tmp_path / "man", "--man").code == 0
    pages = {path.stem.replace("_", "-") for path in (tmp_path / "site").iterdir()}
    manual = {path.stem for path in (tmp_path / "man").glob("*.1")}
    assert manual == pages
    text = (tmp_path / "man/kyverno-mp-images-explain.1").read_text()
    for shown in ("\\-\\-output [text|json]", "[default: text]", ".SH EXIT STATUS"):
        assert shown in text
    for path in (tmp_path / "man").iterdir():
        lines = path.read_text().splitlines()
        assert lines[0].startswith(".TH KYVERNO\\-MP")
        assert [one for one in lines if one[:1] in ("'", " ")] == [], path


@pytest.mark.parametrize(
    ("env", "has_colors"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)],
)
def test_no_color(env: dict[str, str], *, has_colors: bool) -> None:
    """https://no-color.org: present and not empty, whatever its value."""
    ours, theirs = pty.openpty()
    samples = ROOT / "config/samples"
    words = ("apply", samples / "policies", "-r", samples / "resources", "-t")
    others = {name: one for name, one in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        [sys.executable, "-m", "kyverno_mp", *map(str, words)],
        stdout=theirs, stderr=subprocess.DEVNULL, cwd=ROOT, env={**others, **env},
    ):  # fmt: skip
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # Linux' end of a terminal
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    assert b"Fail" in said
    assert (b"\x1b[" in said) == has_colors


@pytest.mark.parametrize(
    ("flags", "code"),
    [(["-v", "3"], 0), (["--v=2"], 0), (["-v"], 0), (["-v", "x"], 1), (["--v="], 1)],
)
def test_log_flags(command: Command, flags: list[str], code: int) -> None:
    assert command("version", *flags).code == code


def test_json_scan(command: Command, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(SCAN_POLICY)
    (tmp_path / "payload.json").write_text(json.dumps(PAYLOAD))
    done = command(
        "json", "scan", "--payload", tmp_path / "payload.json",
        "--pre-process", "items", "--policy", tmp_path / "p.yaml", "--labels", "team=a",
    )  # fmt: skip
    lines = done.out.splitlines()
    assert lines[:4] == [
        "Loading policies ...",
        "Loading payload ...",
        "Pre processing ...",
        "Running ( evaluating 5 resources against 1 policy ) ...",
    ]
    assert lines[4] == "- tags / tagged / good PASSED"
    assert lines[5] == "- tags / tagged / bad FAILED: -> tag missing"
    assert lines[6].startswith(" -> all[0].check.tags.(contains(keys(@), 'Team')): ")
    assert lines[7].startswith("- tags / tagged / broken ERROR: ")
    assert lines[8:] == ["Done"]
    assert done.code == 1


def test_json_scan_of_nothing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text("null")
    done = command("json", "scan", "--payload", tmp_path / "payload.json")
    assert (done.code, done.err) == (1, "Error: payload is `null`\n")
    (tmp_path / "payload.json").write_text("{}")
    done = command(
        "json", "scan", "--payload", tmp_path / "payload.json", "--pre-process", "a"
    )
    text = "prepocessor resulted in `null` payload (a)"
    assert (done.code, done.err) == (1, f"Error: {text}\n")


@pytest.mark.parametrize(
    ("selector", "count"),
    [
        ("team=a", 1),
        ("team in (a, b)", 1),
        ("team notin (a,b)", 0),
        ("team notin (b),team", 1),
        ("!team", 0),
        ("team!=b,team==a", 1),
        ("team in (b)", 0),
    ],
)
def test_json_scan_selects_policies(
    command: Command, tmp_path: Path, selector: str, count: int
) -> None:
    (tmp_path / "p.yaml").write_text(SCAN_POLICY)
    (tmp_path / "payload.json").write_text("{}")
    done = command(
        "json", "scan", "--payload", tmp_path / "payload.json",
        "--policy", tmp_path / "p.yaml", "--labels", selector,
    )  # fmt: skip
    assert f"against {count} polic" in done.out, done.err


def test_jp_error_points_at_the_position(command: Command) -> None:
    done = command("jp", "parse", "a.b[")
    assert done.code == 1
    assert done.err.endswith("\na.b[\n    ^\n")


def test_jp_null_counts_as_no_input(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, piped = tmp_path / "null.json", tmp_path / "piped.json"
    given.write_text("null")
    piped.write_text('{"a": 1}')
    with piped.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        done = command("jp", "query", "-i", given, "a")
    assert done.out.endswith("Enter input object and hit Ctrl+D.\n# a\n1\n")


def test_missing_file_is_an_error_not_a_crash(command: Command) -> None:
    done = command("jp", "query", "-i", "gone.json", "a")
    assert (done.code, done.err) == (1, _GONE)


def test_jp_parse_prints_the_tree_like_gos(command: Command) -> None:
    done = command("jp", "parse", "a[?b == `[1, null]`].{k: length(@)}")
    assert done.out == TREE
    assert done.code == 0


TREE = """# a[?b == `[1, null]`].{k: length(@)}
ASTFilterProjection {
  children: {
    ASTField {
      value: "a"
    }
    ASTMultiSelectHash {
      children: {
        ASTKeyValPair {
          value: "k"
          children: {
            ASTFunctionExpression {
              value: "length"
              children: {
                ASTCurrentNode {
                }
              }
            }
          }
        }
      }
    }
    ASTComparator {
      value: tEQ
      children: {
        ASTField {
          value: "b"
        }
        ASTLiteral {
          value: []interface {}{1, interface {}(nil)}
        }
      }
    }
  }
}

"""


@pytest.mark.parametrize(
    ("shell", "words", "word"),
    [
        ("bash", "kyverno-mp apply --clus", "2"),
        ("powershell", "kyverno-mp apply --clus", "2"),
        ("fish", "kyverno-mp apply", "--clus"),
    ],
)
def test_completion_of_a_flag(shell: str, words: str, word: str) -> None:
    """The completion scripts call the program with these variables."""
    said = {
        "_KYVERNO_MP_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": word,
    }
    code = (
        "import sys; from kyverno_mp.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | said,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--cluster-wide-resources" in done.stdout, done.stderr


def test_messages_of_json_scan(command: Command, tmp_path: Path) -> None:
    checks = """
      any: [{message: "none of {{ a }}, {{ b }}, {{ gone }}, {{ a( }}", check: {a: q}}]
      all: [{check: {a: z}}]
"""
    policy = SCAN_POLICY[: SCAN_POLICY.index("    identifier")]
    (tmp_path / "p.yaml").write_text(f"{policy}    assert:{checks}")
    (tmp_path / "payload.json").write_text('{"a": "x", "b": 1}')
    base = ("json", "scan", "--payload", tmp_path / "payload.json", "--policy")
    done = command(*base, tmp_path / "p.yaml")
    told = done.out.partition("FAILED: ")[2]
    start = "-> none of x, ERR (b not a string), ERR (gone not found), ERR (a( - "
    assert told.startswith(start)
    place = ' -> any[0].check.a: Invalid value: "x": Expected value: "q"\nDone\n'
    assert told.endswith(place)


@pytest.mark.parametrize("group", ["jp", "json", "create", "fix", "oci"])
def test_group_without_a_command_prints_its_help(command: Command, group: str) -> None:
    done = command(group)
    assert (done.code, done.err) == (0, "")
    assert "Commands:" in done.out


def test_failed_query_has_no_heading(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    file.write_text('{"a": 1}')
    done = command("jp", "query", "-i", file, "a", "length(a)", "a")
    assert done.out == "# a\n1\n"
    assert done.code == 1
