"""Shared parts of command declarations: examples, exit codes, lists of commands.

Room: cli. Takes: a command's path, flags and examples. Gives: Command and Group, whose
help pages end with examples and exit codes. Next: apply.py.

Declarations do not import the engine or the command itself; the callback does. So help
pages, completion and misspelt flags are fast.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from kyverno_mp.cli.shell.exit_codes import EXITS

PROGRAM: Final = "kyverno-mp"
PLUGINS: Final = {
    "kubectl-kyverno_mp": "kubectl kyverno-mp",
    "kubectl-kyverno": "kubectl kyverno",
}
"""File -> the name under which kubectl runs it; the second one is upstream's, so it is
never installed, but users may link it."""

_HELP_FLAGS: Final = ["-h", "--help"]
CONTEXT: Final = {"help_option_names": _HELP_FLAGS, "show_default": True}


class Example(NamedTuple):
    """One line to copy; ``{}`` is the program. Without it, the program is prefixed."""

    purpose: str
    line: str

    def text(self, program: str) -> str:
        """Return the example as a help page shows it."""
        line = self.line if "{}" in self.line else f"{{}} {self.line}"
        return f"# {self.purpose}\n{line.replace('{}', program)}"


class Command(click.Command):
    """A command whose help shows examples and exit codes.

    ``name``: all words after the program's name.
    """

    def __init__(self, name: str, examples: Sequence[Example], **rest: Any) -> None:
        rest.setdefault("context_settings", CONTEXT)
        super().__init__(name.rpartition(" ")[2], **rest)
        for param in self.params:
            if isinstance(param, click.Option) and param.default == "":
                param.show_default = False
        self.path = name
        self.examples = examples

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        """Return the same names in every context, because click caches the first."""
        return _HELP_FLAGS

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples and exit codes."""
        write_epilog(self.path, self.examples, ctx, formatter)


class Group(click.Group):
    """A group of Commands, with the same epilog."""

    command_class = Command

    def __init__(self, name: str, examples: Sequence[Example], **rest: Any) -> None:
        rest.setdefault("context_settings", CONTEXT)
        super().__init__(name.rpartition(" ")[2] or None, **rest)
        self.path = name
        self.examples = examples

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        """Return the same names in every context, because click caches the first."""
        return _HELP_FLAGS

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples and exit codes."""
        write_epilog(self.path, self.examples, ctx, formatter)


def write_epilog(
    path: str,
    examples: Sequence[Example],
    ctx: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    """Write the sections that end each help page."""
    program = program_of(ctx)
    with formatter.section("Examples"):
        for number, example in enumerate(examples):
            if number:
                formatter.write_paragraph()
            # Not wrapped, so that users can copy these lines.
            command_lines = example.text(program).replace("\n", "\n  ")
            formatter.write(f"  {command_lines}\n")
    with formatter.section("Exit codes"):
        formatter.write_dl([(str(code), meaning) for code, meaning in EXITS[path]])


def program_of(ctx: click.Context) -> str:
    """Return the program name that the user typed."""
    name = ctx.find_root().info_name or ""
    plugins = (plugin for plugin in PLUGINS.values() if name.startswith(plugin))
    return next(plugins, PROGRAM)
