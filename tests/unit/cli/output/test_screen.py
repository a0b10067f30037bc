"""Nothing from outside controls the reader's terminal or workflow.

The characters are those of ECMA-48 and Unicode TR9; the commands are GitHub's and
Azure's. An output for programs must still be read as the same values.
"""

import io
import json
import re
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given

from kyverno_mp.cli.output.screen import Safe, Screen, printable
from kyverno_mp.cli.output.yaml_text import dump, dump_plain
from tests.unit.cli.conftest import Command

RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
HOSTILE = (
    "a\x1b[31m\x9b2J\x7f\u202egnp.exe\n::error::owned\n  ::stop\n##[error]\r##vso[x]"
)
PIECES = st.sampled_from(
    [
        *("::", ":", "error::", "#", "##", "[", "##[", "##vso[", "vso", "x"),
        *("\u200b", "\u00ad", "\ufeff", "\u2060", "\ufe0f", "\U000e0001", "##VSO["),
        *(" ", "\t", "\n", "\r", "\x1b", "\x9b", "\u202e", "\u00a0", "\x0b", "\u2028"),
    ]
)


def refused(text: str) -> list[str]:
    """Return what a terminal or a workflow would obey in a text."""
    lines = re.split(r"\r\n|\r|\n", text)
    # A runner may compare by the rules of a culture, which skip such characters.
    seen = [
        re.sub("[\u00ad\u200b\u2060\ufe0f\ufeff\U000e0001]", "", one) for one in lines
    ]
    obeyed = [line for line in seen if line.lstrip().startswith("::")]
    obeyed += [line for line in seen if "##[" in line or "##vso[" in line.lower()]
    return obeyed + RAW.findall(text)


@given(st.lists(st.lists(PIECES).map("".join)))
def test_no_sequence_of_writes_prints_something_unsafe(writes: list[str]) -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    for text in writes:
        screen.write(text)
    assert not refused(stream.getvalue())


@given(st.lists(st.lists(PIECES).map("".join)))
def test_writes_print_what_one_write_prints(writes: list[str]) -> None:
    """The start of a line and a command can be divided between two writes."""
    stream = io.StringIO()
    screen = Screen(stream)
    for text in writes:
        screen.write(text)
    whole = io.StringIO()
    Screen(whole).write("".join(writes))
    assert stream.getvalue() == whole.getvalue()


@given(st.lists(PIECES).map("".join))
def test_nothing_is_dropped(text: str) -> None:
    read = re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), printable(text))
    assert read == text


@given(st.lists(PIECES).map("".join))
def test_json_keeps_its_values(text: str) -> None:
    shown = printable(json.dumps({text: [text]}, ensure_ascii=False, indent=2))
    assert not refused(shown)
    assert json.loads(shown) == {text: [text]}


@given(st.lists(PIECES).map("".join))
def test_yaml_keeps_its_values(text: str) -> None:
    value = {"spec": {"key": text, "list": [text]}, text + "x": 1}
    for shown in (dump(value), dump_plain(value, sort_keys=False)):
        assert not refused(shown)
        assert yaml.safe_load(shown) == value


def test_own_colours_are_printed() -> None:
    stream = io.StringIO()
    Screen(stream).write(Safe("\x1b[32mPass\x1b[0m"))
    assert stream.getvalue() == "\x1b[32mPass\x1b[0m"


POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: labels}
spec:
  rules:
  - name: team
    match: {any: [{resources: {kinds: [ConfigMap]}}]}
    validate:
      failureAction: Enforce
      message: "{{ request.object.data.text }}"
      pattern: {metadata: {labels: {team: "?*"}}}
  - name: copy
    match: {any: [{resources: {kinds: [ConfigMap]}}]}
    mutate:
      patchStrategicMerge:
        metadata: {annotations: {copy: "{{ request.object.data.text }}"}}
"""
APPLY_FLAGS = (
    (),
    ("-t", "--detailed-results"),
    ("-p",),
    ("-p", "--output-format", "json"),
    *(("--output-format", form) for form in ("sarif", "github", "junit", "tap")),
    ("--output-format", "markdown"),
)


@pytest.fixture
def hostile_files(tmp_path: Path) -> tuple[Path, Path]:
    policy, objects = tmp_path / "policy.yaml", tmp_path / "objects.yaml"
    policy.write_text(POLICY)
    raw = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": HOSTILE},
        "data": {"text": HOSTILE},
    }
    objects.write_text(json.dumps(raw))
    return policy, objects


@pytest.mark.parametrize("flags", APPLY_FLAGS, ids=" ".join)
def test_apply(
    command: Command, hostile_files: tuple[Path, Path], flags: tuple[str, ...]
) -> None:
    policy, objects = hostile_files
    done = command("apply", policy, "-r", objects, *flags)
    own = (
        re.compile(r"::(error|warning|notice) [^\n]*\n") if "github" in flags else None
    )
    shown = own.sub("", done.out) if own else done.out
    assert not refused(shown)
    assert not refused(done.err)
    assert "owned" in done.out or "-t" in flags or "-p" in flags


def test_name_with_line_breaks_stays_on_its_line(
    command: Command, hostile_files: tuple[Path, Path]
) -> None:
    policy, objects = hostile_files
    raw = json.loads(objects.read_text())
    raw["metadata"]["name"] = "a\npass: 9, fail: 0"
    objects.write_text(json.dumps(raw))
    done = command("apply", policy, "-r", objects)
    assert "\npass: 9" not in done.out


@pytest.mark.parametrize("name", ["apply", "lint", "explain", "test", "fix policy"])
def test_hostile_file_names(command: Command, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a\x1b[2J\n::error::x"
    folder.mkdir()
    (folder / "kyverno-test.yaml").write_text("a: [")
    (folder / "p.yaml").write_text("a: [")
    objects = ("-r", folder / "p.yaml") if name == "apply" else ()
    done = command(*name.split(), folder, *objects)
    assert not refused(done.out)
    assert not refused(done.err)


def test_traceback_passes_the_filter(capfd: pytest.CaptureFixture[str]) -> None:
    sys.stdout.flush()
    screen = Screen(sys.stderr)
    screen.write("Traceback\n  ValueError: \x1b]0;x\x07\n")
    assert not refused(capfd.readouterr().err)
