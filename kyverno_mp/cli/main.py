"""Run the command line: one group, and a module for each command.

Room: cli. Takes: argv. Gives: an exit code. A command's declaration is imported when
the user names the command, and its implementation when it runs.
Next: cli/commands/declare.py. Source: docs/behaviour/cli 1.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence

import click

from kyverno_mp import UPSTREAM_VERSION, __version__
from kyverno_mp.cli.commands.declare import PLUGINS, PROGRAM, Example, Group
from kyverno_mp.cli.output.screen import screens
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.shell.exit_codes import (
    FAILED,
    INPUT,
    INTERNAL_ERROR,
    INTERRUPTED,
    OK,
    STATE,
)
from kyverno_mp.cli.shell.log_flags import without_log_flags
from kyverno_mp.cli.shell.switches import with_plain_switches
from kyverno_mp.errors import DependencyError, Error, InputError, StateError
from kyverno_mp.settings.environ import TRACES, variables

_ROOM = "kyverno_mp.cli."
_COMMANDS = {
    "apply": ("commands.apply", "Applies policies to objects."),
    "merge": ("commands.merge", "Prints the results of the shards of a run."),
    "test": ("commands.testing", "Runs the tests of kyverno-test.yaml files."),
    "lint": ("commands.lint", "Finds errors and likely mistakes in policies."),
    "explain": ("commands.explain", "Shows the rules computed from policies."),
    "bench": ("commands.bench", "Measures how long policies take for each object."),
    "report": ("commands.report", "Shows the results of policy reports."),
    "replay": (
        "commands.replay",
        "Shows which recorded requests other policies would decide differently.",
    ),
    "facts": (
        "commands.facts",
        "Exports the data of a cluster that policies read.",
    ),
    "jp": ("commands.jp", "Runs JMESPath queries with the functions of Kyverno."),
    "json": ("commands.json_scan", "Evaluates json.kyverno.io policies for any JSON."),
    "fix": ("commands.fix", "Updates policies and tests to the current schema."),
    "inventory": (
        "commands.inventory",
        "Lists the policies that Kyverno plans to stop executing.",
    ),
    "create": ("create", "Writes tests, values, exceptions and other files."),
    "docs": ("docs", "Writes a markdown page for each command."),
    "completion": ("completion", "Writes a completion script for a shell."),
    "generate": (
        "commands.generate",
        "Shows what generate rules would create, update and delete now.",
    ),
    "cleanup": ("commands.cleanup", "Shows what clean-up policies would delete now."),
    "oci": ("commands.oci", "Keeps policies in image registries."),
    "images": (
        "commands.images",
        "Explains how policies verify the signatures of an image.",
    ),
    "migrate": (
        "commands.migrate",
        "Stores custom resources in their storage version.",
    ),
    "authors": (
        "commands.authors",
        "Lists namespaced policies whose author lacks the rights that they use.",
    ),
    "rollout": (
        "commands.rollout",
        "Shows and changes how policies are put into force gradually.",
    ),
    "snapshot": ("commands.snapshot", "Shows the content of snapshot files."),
    "crds": ("commands.crds", "Writes the CustomResourceDefinitions."),
    "serve": ("serve", "Runs the service."),
    "help": ("help_page", "Shows the help page of a command."),
    "version": ("version", "Prints the version of kyverno-mp."),
}
"""Name -> (module, line of help), so that listing the commands imports none."""

_ADVICE = {
    "kube.unauthorized": "the credentials of the kubeconfig are wrong or have expired",
    "kube.connection": "the API server that the kubeconfig names cannot be reached",
}
"""Error code -> advice for the user."""

_EXAMPLES = (
    Example("Evaluate policies for the objects of a file", "apply policies/ -r a.yaml"),
    Example("Find errors in policies", "lint policies/"),
    Example("Run the service without a cluster", "serve --standalone --policies p/"),
)


class _LazyGroup(Group):
    """A group that imports a command's module when the command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, None for an unknown name."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = importlib.import_module(_ROOM + module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the named command; for an unknown name, suggest similar ones."""
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            raise click.exceptions.NoSuchCommand(name, possibilities=_COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the list of commands from the table."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


def _root() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _version(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value:
        click.echo(f"{PROGRAM} {__version__} (follows Kyverno {UPSTREAM_VERSION})")
        ctx.exit()


cli = _LazyGroup(
    "",
    _EXAMPLES,
    callback=_root,
    invoke_without_command=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Print the version and exit.",
        )
    ],
    help="Kyverno, the Kubernetes policy engine, as a multi-process Python service.",
)


def program_of(path: str) -> str:
    """Return the program's name for help and errors.

    kubectl runs a program ``kubectl-kyverno_mp`` as its command ``kubectl kyverno-mp``.
    """
    name = path.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
    return PLUGINS.get(name, PROGRAM)


def run(arguments: Sequence[str], program: str = PROGRAM) -> int:
    """Run one command, print ``Error: ...`` if it fails, and return the exit code.

    ``program``: the program's name in help and errors.
    """
    with screens():
        return _traced(arguments, program)


def _traced(arguments: Sequence[str], program: str) -> int:
    """Run a command, as a trace if the operator's variables ask for that."""
    env = variables()
    name = arguments[0] if arguments else ""
    if name == "serve" or name not in _COMMANDS or not env.get(TRACES):
        return _run(arguments, program)
    from kyverno_mp.cli.traced import traced  # needed by few runs

    try:
        return traced(name, env, lambda: _run(arguments, program))
    except InputError as error:
        _report(_located(error))
        return INPUT


def _run(arguments: Sequence[str], program: str) -> int:
    try:
        is_serve = list(arguments[:1]) == ["serve"]
        rest = without_log_flags(arguments, keep_level=is_serve)
        code = cli.main(
            args=with_plain_switches(cli, rest),
            prog_name=program,
            standalone_mode=False,
        )
    except CommandFailed as error:
        _report(error.message)
        return error.exit_code
    except click.ClickException as error:
        return _misused(error, arguments)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return INTERRUPTED
    except InputError as error:
        _report(_located(error))
        return INPUT
    except (DependencyError, StateError) as error:
        advice = _ADVICE.get(error.code, "")
        _report(_located(error) + (f"\n  {advice}" if advice else ""))
        return STATE
    except BrokenPipeError:
        return FAILED
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _report(f"{name}{error.strerror or error}")
        return FAILED
    except UnicodeDecodeError as error:
        _report(f"input is not UTF-8: {error.reason} at byte {error.start}")
        return INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - the last resort: reported, with its own code
        import traceback  # takes 5 ms, needed only for internal errors

        traceback.print_exc()
        return INTERNAL_ERROR
    return code if isinstance(code, int) else OK


def _misused(error: click.ClickException, arguments: Sequence[str]) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        # KYVERNO: a group without a command prints its help, with exit code 0.
        click.echo(error.format_message())
        return OK
    if isinstance(error, click.BadParameter):
        error.param_hint = _typed(error.param, arguments) or error.param_hint
    _report(error.format_message())
    return FAILED


def _typed(param: click.Parameter | None, arguments: Sequence[str]) -> str:
    """Return the flag by the name that the user typed, "" if it is unknown."""
    names = param.opts if isinstance(param, click.Option) else []
    for argument in arguments:
        for name in names:
            is_short = not name.startswith("--")
            if argument.partition("=")[0] == name or (
                is_short and argument.startswith(name)
            ):
                return f"'{name}'"
    return ""


def _located(error: Error) -> str:
    position = str(error.where)
    return (
        f"{error.message} ({position}) [{error.code}]"
        if position
        else (f"{error.message} [{error.code}]")
    )


def _report(message: str) -> None:
    if message:
        with contextlib.suppress(OSError):  # e.g. a full disk, which the message names
            sys.stdout.flush()
        print(f"Error: {message}", file=sys.stderr)  # noqa: T201 - the command's output
