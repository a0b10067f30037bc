"""The command line: one group, each command in its own module.

Room: cli. Takes: argv. Gives: an exit code. Commands are imported when they are asked for,
so that ``jp`` does not pay for the engine.
Source: spec/cli.md 1.
"""

import importlib
import sys
from collections.abc import Sequence

import click

from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.errors import DependencyError, Error, InputError, StateError

_COMMANDS = {
    "apply": "kyverno_mp.cli.apply",
    "test": "kyverno_mp.cli.run_tests",
    "jp": "kyverno_mp.cli.jp",
    "explain": "kyverno_mp.cli.explain",
    "snapshot": "kyverno_mp.cli.snapshot",
    "serve": "kyverno_mp.cli.serve",
    "version": "kyverno_mp.cli.version",
}

EXIT_INPUT = 2
EXIT_STATE = 3
EXIT_DEFECT = 70


class _LazyGroup(click.Group):
    """A group that imports a command's module when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, None when there is none of that name."""
        del ctx
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


@click.group(cls=_LazyGroup, invoke_without_command=True)
@click.pass_context
def cli(context: click.Context) -> None:
    """Kyverno, the Kubernetes policy engine, as a multi-process Python service."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; prints ``Error: ...`` itself.

    Exit codes: 0 success; 1 violations, failed tests or a failed command; 2 input that
    cannot be used; 3 a dependency or this machine; 70 a defect of ours.
    """
    try:
        code = cli.main(
            args=list(arguments), prog_name="kyverno-mp", standalone_mode=False
        )
    except CommandFailed as error:
        _report(error.message)
        return error.exit_code
    except click.ClickException as error:
        _report(error.format_message())
        return 1
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return 130
    except InputError as error:
        _report(_located(error))
        return EXIT_INPUT
    except (DependencyError, StateError) as error:
        _report(_located(error))
        return EXIT_STATE
    except BrokenPipeError:
        return 1
    return code if isinstance(code, int) else 0


def _located(error: Error) -> str:
    where = str(error.where)
    return (
        f"{error.message} ({where}) [{error.code}]"
        if where
        else (f"{error.message} [{error.code}]")
    )


def _report(message: str) -> None:
    if message:
        sys.stdout.flush()
        print(f"Error: {message}", file=sys.stderr)  # noqa: T201 - the command's output
