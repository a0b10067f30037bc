"""The generated parts of the documentation match the code.

A failure means: a page is wrong. A generated part is between ``<!-- name -->`` and
``<!-- /name -->``. `python -m tests.unit.docs.test_tables` writes all of them.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

import click
import pytest

from kyverno_mp.cli.main import cli
from kyverno_mp.dashboard import api
from kyverno_mp.settings.table import table as settings_table
from kyverno_mp.settings.upstream import table as flags_table
from kyverno_mp.settings.upstream import variable_table
from kyverno_mp.telemetry.families import table as metrics_table
from kyverno_mp.webhook.http_errors import table as refusals_table
from tests.unit.docs.citing import ROOT
from tests.unit.docs.refused import refused_table

_WIDTH: Final = 100
_OPENAPI: Final = "config/openapi/dashboard.json"


def help_pages() -> str:
    """Return the output of each command for ``--help``."""
    # Commands take the help flags of the first context, so it must be a real run's.
    root = click.Context(
        cli, info_name="kyverno-mp", terminal_width=_WIDTH, **cli.context_settings
    )
    parts = [
        f"## {context.command_path}\n\n```text\n{found.get_help(context).rstrip()}\n```"
        for context, found in _commands(root, cli)
    ]
    return "\n\n".join(parts) + "\n"


def _commands(
    context: click.Context, found: click.Command
) -> Iterator[tuple[click.Context, click.Command]]:
    yield context, found
    if not isinstance(found, click.Group):
        return
    for name in found.list_commands(context):
        child = found.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _commands(
                click.Context(child, info_name=name, parent=context), child
            )


def api_table() -> str:
    """Return the table of the dashboard's API."""
    rows = ["| path | parameters | content |", "|---|---|---|"]
    for path, described in api.openapi()["paths"].items():
        names = [f"`{each['name']}`" for each in described["get"]["parameters"]]
        summary = described["get"]["summary"]
        rows.append(f"| `{path}` | {', '.join(names) or 'none'} | {summary} |")
    return "\n".join(rows) + "\n"


def openapi_file() -> str:
    """Return the content of the file that describes the dashboard's API."""
    return json.dumps(api.openapi(), indent=2) + "\n"


PARTS: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "settings": ("docs/settings.md", settings_table),
    "flags": ("docs/settings.md", flags_table),
    "variables": ("docs/settings.md", variable_table),
    "metrics": ("docs/metrics.md", metrics_table),
    "refusals": ("docs/metrics.md", refusals_table),
    "refused": ("docs/refused.md", refused_table),
    "help": ("docs/cli-reference.md", help_pages),
    "api": ("docs/dashboard.md", api_table),
}


def _section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", PARTS)
def test_generated_parts_equal_the_code(name: str) -> None:
    page, render = PARTS[name]
    found = _section(name).findall((ROOT / page).read_text())
    assert [text.strip() for _, text, _ in found] == [render().strip()]


def test_the_file_that_describes_the_api_equals_the_code() -> None:
    assert (ROOT / _OPENAPI).read_text() == openapi_file()


def test_every_marked_part_is_checked() -> None:
    """A part with an unknown marker would be edited by hand and become outdated."""
    marked = {
        (name, str(path.relative_to(ROOT)))
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"^<!-- (\w+) -->$", path.read_text(), re.MULTILINE)
    }
    assert marked == {(name, page) for name, (page, _) in PARTS.items()}


def test_alerts_use_existing_metrics() -> None:
    alerts = (ROOT / "deploy/monitoring/alerts.yaml").read_text()
    known = re.findall(r"^\| `(kyverno_\w+)` \|", metrics_table(), re.MULTILINE)
    named = {
        name.removesuffix("_bucket") for name in re.findall(r"\bkyverno_\w+", alerts)
    }
    assert named
    assert named <= set(known)


def test_help_names_every_command() -> None:
    """Sub-commands are included: only this page lists all of them."""
    text = help_pages()
    for path in ("apply", "json scan", "create cluster-role", "snapshot inspect"):
        assert f"\n## kyverno-mp {path}\n" in text


def _write() -> None:
    for name, (page, render) in PARTS.items():
        path = ROOT / page
        made = render().strip()
        text = _section(name).sub(
            lambda found, made=made: f"{found[1]}{made}\n{found[3]}",  # type: ignore[misc]  # a lambda has no annotations
            path.read_text(),
        )
        path.write_text(text)
    (ROOT / _OPENAPI).write_text(openapi_file())


if __name__ == "__main__":
    _write()
