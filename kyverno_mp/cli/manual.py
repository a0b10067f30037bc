"""Write the manual page of a command.

Room: cli. Takes: a command as click declares it. Gives: text for ``man``.
Next: docs.py, which writes the files.
Source: man-pages(7), groff_man(7).
"""

from collections.abc import Iterator, Sequence
from typing import Final

import click

from kyverno_mp import __version__
from kyverno_mp.cli.commands.declare import Command, Group
from kyverno_mp.cli.shell.exit_codes import EXITS

_SUMMARY_MAX: Final = 120
"""Characters of the line that ``apropos`` shows."""


def manual_page(
    path: Sequence[str], command: click.Command, related: Sequence[str]
) -> str:
    """Return the page; ``related``: names of other pages."""
    return "\n".join(_lines(path, command, related)) + "\n"


def _lines(
    path: Sequence[str], command: click.Command, related: Sequence[str]
) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path), show_default=True)
    name = "-".join(path)
    yield f'.TH {_plain(name.upper())} 1 "" "kyverno-mp {__version__}" ""'
    yield from (
        ".SH NAME",
        f"{_plain(name)} \\- {_line(command.get_short_help_str(_SUMMARY_MAX))}",
    )
    yield from (".SH SYNOPSIS", _line(command.get_usage(context).partition(" ")[2]))
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.help or "")
    records = [p.get_help_record(context) for p in command.get_params(context)]
    yield ".SH OPTIONS"
    for flags, description in filter(None, records):
        yield from (".TP", f".B {_line(flags)}", _line(description))
    if isinstance(command, Command | Group):
        yield from _epilog(command, path[0])
    if related:
        yield from (
            ".SH SEE ALSO",
            ", ".join(f"\\fB{_plain(n)}\\fR(1)" for n in related),
        )


def _epilog(command: Command | Group, program: str) -> Iterator[str]:
    yield ".SH EXAMPLES"
    for example in command.examples:
        yield from (".PP", ".EX")
        yield from map(_line, example.text(program).splitlines())
        yield ".EE"
    yield ".SH EXIT STATUS"
    for code, meaning in EXITS[command.path]:
        yield from (".TP", f".B {code}", _line(meaning))


def _paragraphs(prose: str) -> Iterator[str]:
    for paragraph in prose.replace("\b", "").strip().split("\n\n"):
        yield ".PP"
        yield _line(" ".join(paragraph.split()))


def _plain(string: str) -> str:
    """Return text without characters that groff would read as its own."""
    return string.replace("\\", "\\e").replace("-", "\\-")


def _line(string: str) -> str:
    """Return a line of text, which never begins a request."""
    line = _plain(string.replace("\n", " "))
    return f"\\&{line}" if line[:1] in (".", "'") else line
