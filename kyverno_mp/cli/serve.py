"""Serve reviews: the command that runs the service.

Room: cli. Takes: flags; every other setting comes from the environment. Gives: the
supervisor's exit code. Next: process/serve.py. May touch: the environment, through
settings. Source: spec/controllers.md 10.2; README, settings table.
"""

import dataclasses

import click

from kyverno_mp.settings.fields import facts_of
from kyverno_mp.settings.read import environment, read, resolve
from kyverno_mp.settings.settings import Settings

_FACTS = {field.name: facts_of(field) for field in dataclasses.fields(Settings)}


def _option(flag: str, name: str) -> click.Option:
    """Return a flag that overrides one setting, with the setting's own words."""
    return click.Option([flag, name], default=None, help=_FACTS[name].doc)


def _serve(**overrides: str | None) -> int:
    env = environment()
    settings = resolve(read(env, overrides), env)
    # Imported only now: it loads compiler, engine and web server.
    from kyverno_mp.process.serve import serve

    return serve(settings)


command = click.Command(
    "serve",
    callback=_serve,
    help="Answer admission reviews until SIGTERM. Every setting can also be given as an"
    " environment variable KYVERNO_MP_<NAME>; a flag wins.",
    params=[
        click.Option(
            ["--standalone", "standalone"],
            is_flag=True,
            flag_value="true",
            default=None,
            type=str,
            help=_FACTS["standalone"].doc,
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
    ],
)
