"""The command line: one group, each command in its own module.

Room: cli. Takes: argv. Gives: an exit code. A command's module is imported when the
command is called, so ``jp`` does not import the engine.
Source: docs/behaviour/cli 1.
"""

import importlib
import sys
import traceback
from collections.abc import Sequence

import click

from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.cli.log_flags import without_log_flags
from kyverno_mp.cli.switches import with_plain_switches
from kyverno_mp.errors import DependencyError, Error, InputError, StateError

_ROOM = "kyverno_mp.cli."
_COMMANDS = {
    "apply": ("apply.command", "Applies policies on resources."),
    "test": ("testing.command", "Runs the tests of kyverno-test.yaml files."),
    "lint": ("lint.command", "Finds faults and doubtful places in policies."),
    "jp": ("jp.command", "Runs JMESPath queries with Kyverno's functions."),
    "json": ("json_scan", "Scans any JSON with json.kyverno.io policies."),
    "fix": ("fix.command", "Rewrites policies and tests to the current schema."),
    "create": ("create", "Writes tests, values, exceptions and the like."),
    "explain": ("explain", "Shows the computed rules of policies."),
    "docs": ("docs", "Writes these pages as markdown."),
    "completion": ("completion", "Writes a completion script for a shell."),
    "oci": ("oci", "Keeps policies in image registries."),
    "migrate": ("migrate", "Stores custom resources in their storage version."),
    "snapshot": ("snapshot", "Looks at snapshot files."),
    "crds": ("crds", "Writes the CustomResourceDefinitions."),
    "serve": ("serve", "Runs the service."),
    "help": ("help_page", "Shows what a command is for, and its flags."),
    "version": ("version", "Prints the version of kyverno-mp."),
}
"""Name -> (module, the line of help): the list is printed without any import."""

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
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = importlib.import_module(_ROOM + module).command
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of commands from the table."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, invoke_without_command=True)
@click.pass_context
def cli(context: click.Context) -> None:
    """Kyverno, the Kubernetes policy engine, as a multi-process Python service.

    Exit codes: 0 success; 1 violations, failed tests or a failed command; 2 input that
    cannot be used; 3 a dependency or this machine; 70 a defect of kyverno-mp; 130
    interrupted.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; prints ``Error: ...`` itself.

    Exit codes: 0 success; 1 violations, failed tests or a failed command; 2 input that
    cannot be used; 3 a dependency or this machine; 70 a defect of ours.
    """
    try:
        is_serve = list(arguments[:1]) == ["serve"]
        rest = without_log_flags(arguments, keep_level=is_serve)
        code = cli.main(
            args=with_plain_switches(cli, rest),
            prog_name="kyverno-mp",
            standalone_mode=False,
        )
    except CommandFailed as error:
        _report(error.message)
        return error.exit_code
    except click.ClickException as error:
        return _misused(error)
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
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _report(f"{name}{error.strerror or error}")
        return 1
    except UnicodeDecodeError as error:
        _report(f"input is not UTF-8: {error.reason} at byte {error.start}")
        return EXIT_INPUT
    except KeyboardInterrupt:
        return 130
    except Exception:  # noqa: BLE001 - the last resort: reported, with its own code
        traceback.print_exc()
        return EXIT_DEFECT
    return code if isinstance(code, int) else 0


def _misused(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        # KYVERNO: a group without a command prints its help and succeeds.
        click.echo(error.format_message())
        return 0
    _report(error.format_message())
    return 1


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
