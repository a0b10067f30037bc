"""Every help page is complete: examples that run, exit codes, suggestions, ``-h``.

A failure means: a user copies an example that does not work, or finds a flag without an
explanation.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kyverno_mp.cli.commands.declare import Command as Declared
from kyverno_mp.cli.commands.declare import Group
from kyverno_mp.cli.main import cli, program_of, run
from kyverno_mp.cli.shell.exit_codes import EVERYWHERE, EXITS, table
from tests.unit.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[4]


def _all(path: tuple[str, ...], found: click.Command) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            child = found.get_command(context, name)
            assert child is not None
            yield from _all((*path, name), child)


PATHS = list(_all((), cli))
IDS = [" ".join(path) or "kyverno-mp" for path in PATHS]


def _found(path: tuple[str, ...]) -> Declared | Group:
    found: click.Command = cli
    for name in path:
        assert isinstance(found, click.Group)
        child = found.get_command(click.Context(found), name)
        assert child is not None
        found = child
    assert isinstance(found, Declared | Group)
    return found


def test_command_table_is_complete() -> None:
    assert {" ".join(path) for path in PATHS} == set(EXITS)


@pytest.mark.parametrize("path", PATHS, ids=IDS)
def test_help(command: Command, path: tuple[str, ...]) -> None:
    short, long = command(*path, "-h"), command(*path, "--help")
    assert (short.code, short.err, short.out) == (0, "", long.out)
    assert re.search(r"^Examples:\n  # [A-Z].*\n  .*kyverno-mp", long.out, re.MULTILINE)
    said = " ".join(long.out.partition("Exit codes:")[2].split())
    assert said == " ".join(f"{code} {text}" for code, text in EXITS[" ".join(path)])
    for line in long.out.splitlines():
        assert len(line) <= 80 or line.startswith("  "), line


@pytest.mark.parametrize("path", PATHS, ids=IDS)
def test_every_flag_is_explained(path: tuple[str, ...]) -> None:
    for param in _found(path).params:
        if isinstance(param, click.Option):
            assert param.help, param.opts
            assert param.help.endswith((".", ")")), param.help


@pytest.mark.parametrize(
    ("words", "flag", "default"),
    [
        (["bench"], "--seconds", "2.0"),
        (["lint"], "--target", "server"),
        (["report"], "--limit", "1000"),
        (["apply"], "--batch-size", "100"),
    ],
)
def test_defaults_are_shown(
    command: Command, words: list[str], flag: str, default: str
) -> None:
    entry = command(*words, "--help").out.partition(f"{flag} ")[2].partition("\n  -")[0]
    assert f"[default: {default}" in " ".join(entry.split())


@pytest.mark.parametrize("path", PATHS, ids=IDS)
def test_no_empty_default_is_shown(command: Command, path: tuple[str, ...]) -> None:
    assert 'default: ""' not in command(*path, "--help").out


@pytest.mark.parametrize("path", PATHS, ids=IDS)
def test_examples_are_accepted(path: tuple[str, ...], tmp_path: Path) -> None:
    """All flags exist, all values are allowed, and no required argument is missing."""
    (tmp_path / "file").touch()
    assert _found(path).examples
    for example in _found(path).examples:
        line = example.line.partition("{}")[2] if "{}" in example.line else example.line
        words = shlex.split(re.split(r" [|<>] |\)", line)[0])
        words = [
            str(tmp_path / "file") if one.endswith(".segment") else one for one in words
        ]
        found: click.Command = cli
        context = click.Context(found)
        while isinstance(found, click.Group) and words:
            child = found.get_command(context, words[0])
            if child is None and found.invoke_without_command and found is not cli:
                break  # the group itself
            assert child is not None, example
            found, words = child, words[1:]
        found.make_context(found.name, words)


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["appply"], "'apply'"),
        (["aply", "x"], "'apply'"),
        (["verison"], "'version'"),
        (["jp", "qury"], "'query'"),
        (["create", "excepton"], "'exception'"),
        (["oci", "psh"], "'push'"),
        (["apply", "--tabel"], "'--table'"),
        (["apply", "p", "--output-fromat", "json"], "'--output-format'"),
        (["lint", "--stirct", "p"], "'--strict'"),
        (["test", "--fial-only", "p"], "'--fail-only'"),
    ],
)
def test_similar_names_are_suggested(
    command: Command, words: list[str], suggested: str
) -> None:
    done = command(*words)
    assert (done.code, done.out) == (1, "")
    assert re.search(f"Did you mean[^\\n]*{suggested}", done.err)
    assert words[-1].startswith("-") or "No such" in done.err


@pytest.mark.parametrize(
    ("words", "named", "not_named"),
    [
        (["lint", "-o", "xml", "p"], "'-o'", "--output"),
        (["lint", "--output", "xml", "p"], "'--output'", "-o'"),
        (["lint", "--output=xml", "p"], "'--output'", "-o'"),
        (["lint", "-oxml", "p"], "'-o'", "--output"),
        (["apply", "p", "--jobs", "-1"], "'--jobs'", "' / '"),
        (["test", "p", "-o", "xml"], "'-o'", "--output-format"),
        (["apply", "p", "--crd-path", "gone.txt", "-r", "r"], "--crd-path", "crdpath"),
    ],
)
def test_messages_name_the_typed_flag(
    command: Command, words: list[str], named: str, not_named: str
) -> None:
    done = command(*words)
    assert done.code == 1
    assert named in done.err
    assert not_named not in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["apply", "p", "-r", "r", "--output-format", "xml"],
        ["apply", "p", "-r", "r", "-p", "--output-format", "Json"],
        ["test", "p", "--output-format", "xml"],
        ["lint", "p", "-o", "junit"],
        ["explain", "p", "-o", "yaml"],
        ["bench", "p", "-r", "r", "-o", "text"],
    ],
)
def test_formats_are_checked_before_any_input(
    command: Command, words: list[str]
) -> None:
    done = command(*words)
    assert (done.code, done.out) == (1, "")
    assert re.search(r"'\w+' is not one of ('[a-z]+'(, )?)+", done.err)


@pytest.mark.parametrize(
    ("file", "program"),
    [
        ("/usr/local/bin/kubectl-kyverno_mp", "kubectl kyverno-mp"),
        ("/usr/local/bin/kubectl-kyverno", "kubectl kyverno"),
        ("C:\\krew\\kubectl-kyverno.exe", "kubectl kyverno"),
        ("/usr/bin/kyverno-mp", "kyverno-mp"),
        ("kyverno_mp/__main__.py", "kyverno-mp"),
    ],
)
def test_program_name(
    capsys: pytest.CaptureFixture[str], file: str, program: str
) -> None:
    assert program_of(file) == program
    assert run(["jp", "query", "-h"], program_of(file)) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: {program} jp query [OPTIONS]")
    assert f"  {program} jp query -i pod.yaml" in said


def test_kubectl_plugin_does_not_shadow_upstreams() -> None:
    """A failure means: to install this package changes what `kubectl kyverno` runs."""
    scripts = (ROOT / "setup.cfg").read_text()
    assert "kubectl-kyverno_mp = kyverno_mp.__main__:main" in scripts
    assert "kubectl-kyverno =" not in scripts


def test_documentation_has_the_table_of_exit_codes() -> None:
    """``python -m tests.unit.cli.commands.test_help`` prints it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [one for one in pages if "<!-- exit-codes -->" in one.read_text()]
    assert len(found) == 1
    _, _, rest = found[0].read_text().partition("<!-- exit-codes -->\n")
    assert rest.partition("\n<!-- /exit-codes -->")[0] == table()
    codes = [str(one.code) for one in EVERYWHERE]
    assert codes == ["0", "1", "2", "3", "70", "130"]


def test_generated_pages_have_examples_and_exit_codes(
    command: Command, tmp_path: Path
) -> None:
    assert command("docs", "-o", tmp_path).code == 0
    for path in PATHS:
        text = (tmp_path / ("_".join(("kyverno-mp", *path)) + ".md")).read_text()
        for example in _found(path).examples:
            assert example.text("kyverno-mp") in text
        for code, meaning in EXITS[" ".join(path)]:
            assert f"| `{code}` | {meaning} |" in text


if __name__ == "__main__":
    print(table())
