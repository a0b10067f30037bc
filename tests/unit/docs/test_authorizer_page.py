"""The page about the authorizer shows what happens: its files, flags and answers."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kyverno_mp.cli.main import cli, run
from tests.unit.docs.citing import ROOT
from tests.unit.program.authorizing import compiled
from tests.unit.webhook.authz.authorizers import Rig

PAGE = (ROOT / "docs/authorizer.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))


def commands(name: str) -> list[list[str]]:
    """Return the command lines of the page that begin with these words."""
    lines = re.findall(rf"^kyverno-mp {name}(?:[^\n']|'[^']*')*$", SHELL, re.MULTILINE)
    assert lines
    return [shlex.split(line)[1:] for line in lines]


def test_the_policy_decides_as_the_page_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    (words,) = commands("apply")
    assert run(words) == 0
    assert "pass: 1" in capsys.readouterr().out
    raw: Any = yaml.safe_load(FILES["policies/token.yaml"])
    rig = Rig("HTTP", compiled(raw))
    sent = re.search(r"printf '(.*?)' \| curl", SHELL)
    assert sent
    request = sent[1].encode().decode("unicode_escape").encode()
    assert rig.ask(request)[::2] == (403, b"a token is missing")
    assert "403 with the body `a token is missing`" in PAGE


def test_the_flags_of_the_page_exist() -> None:
    for words in commands("serve authz"):
        found: click.Command = cli
        context = click.Context(found)
        while isinstance(found, click.Group):
            child = found.get_command(context, words.pop(0))
            assert child is not None
            found = child
        found.make_context("authz", words)


def test_the_expression_for_nginx_reads_its_headers() -> None:
    (words,) = (one for one in commands("serve authz") if "--input-expression" in one)
    given = words[words.index("--input-expression") + 1]
    denies = compiled(
        yaml.safe_load(
            "{apiVersion: policies.kyverno.io/v1, kind: ValidatingPolicy,"
            " metadata: {name: p}, spec: {evaluation: {mode: HTTP}, validations: ["
            '{expression: \'object.attributes.path == "/x" &&'
            ' object.attributes.method == "PUT"'
            ' ? http.Denied("").Response() : null\'}]}}'
        )
    )
    rig = Rig("HTTP", denies, is_nested=False, given=given)
    for path, method, status in ((b"x", b"PUT", 403), (b"y", b"PUT", 200)):
        headers = (
            (b"x-original-url", b"http://h/" + path + b"?a"),
            (b"x-original-method", method),
        )
        assert rig.ask(b"", headers=headers)[0] == status
