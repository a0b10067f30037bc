"""``serve``: run the service, which answers reviews.

Room: cli. Takes: flags; every other setting comes from the environment. Gives: the
supervisor's exit code. Next: process/serve.py. May touch: the environment, through
settings. Source: docs/behaviour/controllers 10.1, 10.2; docs/settings.md.

Upstream's flags are accepted, too, in the syntax of Go's flag package: one dash or two,
a value after ``=`` or as the next argument, a switch without a value for true.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import click

from kyverno_mp.cli.commands.declare import Example, Group
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.serve_authz import command as authz
from kyverno_mp.errors import SettingInvalid
from kyverno_mp.settings.fields import facts_of, variable
from kyverno_mp.settings.nearest import nearest
from kyverno_mp.settings.read import environment, read, resolve
from kyverno_mp.settings.settings import Settings
from kyverno_mp.settings.upstream import FLAG_OF, translate

_UPSTREAM = "kyverno_mp.upstream"
_FACTS = {field.name: facts_of(field) for field in dataclasses.fields(Settings)}


def _option(flag: str, name: str) -> click.Option:
    """Return a flag that overrides one setting, with the setting's description."""
    description = f"{_FACTS[name].doc} ({variable(name)})"
    return click.Option([flag, name], default=None, help=description)


class _Serve(Group):
    """A command that removes upstream's flags before click parses ours.

    With the word ``authz`` it runs another service.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store upstream's flags in the context; reject unknown flags."""
        if args[:1] and args[0] in self.commands:
            return super().parse_args(ctx, args)
        flags = {name for param in self.get_params(ctx) for name in param.opts}
        own_arguments, upstream_flags = _split(args)
        for argument in own_arguments:
            name = argument.partition("=")[0]
            if name.startswith("-") and name not in flags:
                raise click.UsageError(_unknown(name, flags))
        ctx.meta[_UPSTREAM] = upstream_flags
        return super().parse_args(ctx, own_arguments)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return our arguments and upstream's flags with their values."""
    own_arguments: list[str] = []
    upstream_flags: list[tuple[str, str]] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        dashes = len(name) - len(name.lstrip("-"))
        flag = FLAG_OF.get(name[dashes:]) if dashes in (1, 2) else None
        if flag is None:
            own_arguments.append(argument)
        elif equals:
            upstream_flags.append((flag.name, value))
        else:
            upstream_flags.append(
                (flag.name, "true" if flag.is_bool else _next(rest, name))
            )
    return own_arguments, upstream_flags


def _next(rest: Iterator[str], name: str) -> str:
    value = next(rest, None)
    if value is None:
        raise click.UsageError(f"flag needs an argument: {name}")
    return value


def _unknown(name: str, flags: set[str]) -> str:
    names = [*sorted(flags), *(f"--{flag}" for flag in FLAG_OF)]
    return f"no such flag: {name}; the nearest is {nearest(name, names)}"


def _as_written(values: Mapping[str, str]) -> dict[str, str]:
    flags = {param.name: param.opts[0] for param in command.params}
    return {name: f"{flags[name]}={value}" for name, value in values.items()}


def _serve(**overrides: str | None) -> int:
    if click.get_current_context().invoked_subcommand is not None:
        return 0
    env = environment()
    upstream = translate(click.get_current_context().meta[_UPSTREAM])
    if upstream.problems:
        raise SettingInvalid("settings.invalid", "\n  ".join(upstream.problems))
    for warning in upstream.warnings:
        say(f"Warning: {warning}", err=True)
    chosen = {name: value for name, value in overrides.items() if value is not None}
    sources = {**upstream.sources, **_as_written(chosen)}
    settings = resolve(read(env, {**upstream.overrides, **chosen}, sources), env)
    # Imported late: it imports the compiler, the engine and the web server.
    from kyverno_mp.process.serve import serve

    return serve(settings)


command = _Serve(
    "serve",
    (
        Example(
            "Serve the policies of a folder on this machine",
            "serve --standalone --policies policies/ --port 9443",
        ),
        Example("Serve the policies of a cluster, in its pod", "serve"),
    ),
    callback=_serve,
    invoke_without_command=True,
    commands=[authz],
    help="Answers admission reviews until SIGTERM.\n\nThe environment variables in"
    " parentheses have the same effect; flags take precedence. docs/settings.md lists"
    " all settings, and the flags of Kyverno's containers (--webhookTimeout=15), which"
    " are accepted, too.",
    params=[
        *(
            click.Option(
                [f"--{name.replace('_', '-')}", name],
                is_flag=True,
                flag_value="true",
                default=None,
                type=str,
                help=_FACTS[name].doc,
            )
            for name in ("standalone", "allow_empty", "json_payloads")
        ),
        _option("--policies", "policies_dir"),
        _option("--resources", "resources_dir"),
        _option("--host", "webhook_host"),
        _option("--port", "webhook_port"),
        _option("--health-host", "health_host"),
        _option("--health-port", "health_port"),
        _option("--workers", "webhook_workers"),
        _option("--runtime-dir", "runtime_dir"),
        _option("--tls-cert", "tls_cert_file"),
        _option("--tls-key", "tls_key_file"),
        _option("--drain-timeout", "drain_timeout_s"),
        _option("--log-level", "log_level"),
        _option("--log-format", "log_format"),
        _option("--log-decisions", "log_decisions"),
    ],
)
