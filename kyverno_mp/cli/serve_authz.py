"""``serve authz``: run an authorizer for a proxy, instead of the admission webhook.

Room: cli. Takes: flags, ours and those of upstream's authz-server; every other setting
comes from the environment. Gives: the supervisor's exit code. Next: process/serve.py.
May touch: the environment, through settings.
Source: docs/behaviour/cel 15.8.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import click

from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.output.screen import say
from kyverno_mp.errors import SettingInvalid
from kyverno_mp.settings.read import environment, read, resolve

_SWITCHES: Final = ("true", "false")
_SETTING_OF: Final = {
    "mode": "authz_mode",
    "default_decision": "authz_default_decision",
    "nested_request": "authz_nested_request",
    "input_expression": "authz_input_expression",
    "output_expression": "authz_output_expression",
    "json_payloads": "json_payloads",
    "cert_file": "tls_cert_file",
    "key_file": "tls_key_file",
    "client_ca_file": "client_ca_file",
    "client_names": "client_names",
    "workers": "webhook_workers",
    "runtime_dir": "runtime_dir",
    "kube_kubeconfig": "kubeconfig",
    "log_level": "log_level",
    "log_format": "log_format",
    "log_decisions": "log_decisions",
    "timeout": "webhook_timeout_s",
    "allow_insecure_registry": "allow_insecure_registry",
}
"""Flags that are settings."""
SOURCES: Final = {
    "git+https": "mount the files, for example with git-sync",
    "": "give the folder as --policies",
}
"""Kinds of URLs that are no sources of policies, and what to do instead."""
NETWORK: Final = "several processes share a TCP port; expected tcp"
"""Why --grpc-network has one value."""


def settings_of(flags: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that the flags select. Raises: click.UsageError."""
    settings = {
        setting: str(flags[name])
        for name, setting in _SETTING_OF.items()
        if flags.get(name) is not None
    }
    if flags.get("allow_empty"):
        settings["allow_empty"] = "true"
    sources = [*flags["policies"], *map(_source_of, flags["external_policy_source"])]
    if sources:
        settings["authz_sources"] = ",".join(sources)
    if flags["image_pull_secret"]:
        settings["image_pull_secrets"] = ",".join(flags["image_pull_secret"])
    address = _address_of(flags)
    if address:
        settings["webhook_host"], settings["webhook_port"] = _split(*address)
    probes = {
        flags[name] for name in ("probes_address", "metrics_address") if flags[name]
    }
    if len(probes) > 1:
        raise click.UsageError(
            "--probes-address, --metrics-address: one port serves probes and metrics;"
            " give both the same value"
        )
    for probe in probes:
        settings["health_host"], settings["health_port"] = _split(
            "--probes-address", probe
        )
    return settings


def _address_of(flags: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the flag with the address to serve, and its value."""
    if flags["grpc_network"] not in (None, "tcp"):
        raise click.UsageError(f"--grpc-network: {NETWORK}")
    address_flag, foreign_flag = "--server-address", "--grpc-address"
    if flags["mode"] == "envoy":
        address_flag, foreign_flag = foreign_flag, address_flag
    if flags[_name_of(foreign_flag)] is not None:
        raise click.UsageError(
            f"{foreign_flag}: not of --mode {flags['mode']}; give {address_flag}"
        )
    value = flags[_name_of(address_flag)]
    return None if value is None else (address_flag, value)


def _name_of(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _split(flag: str, address: str) -> tuple[str, str]:
    """Return host and port of ``:9081``, ``host:9081`` or ``[::1]:9081``."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        raise click.UsageError(f"{flag}: expected host:port or :port, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), port


def _source_of(url: str) -> str:
    """Return the path in a file:// URL, as upstream reads it, or an oci:// URL."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return f"{parts.netloc}{parts.path}"
    if parts.scheme == "oci":
        return url
    hint = SOURCES.get(parts.scheme, SOURCES["git+https"])
    raise click.UsageError(
        f"--external-policy-source: only file:// and oci://; {hint}: {url!r}"
    )


def _serve_authz(**flags: Any) -> int:
    env = environment()
    overrides = {
        **settings_of(flags),
        "caller_path": "false",
        "standalone": _standalone(flags, env),
    }
    sources = {
        setting: f"--{name.replace('_', '-')}={flags[name]}"
        for name, setting in _SETTING_OF.items()
        if flags.get(name) is not None
    }
    settings = resolve(read(env, overrides, sources), env)
    # Imported late: it imports the compiler, the engine and the web server.
    from kyverno_mp.process.serve import serve

    return serve(settings)


def _standalone(flags: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return ``true`` without a cluster.

    KYVERNO: without credentials for a cluster, upstream goes on with its other sources.
    """
    if flags["kube_policy_source"] is not None:
        return "true" if flags["kube_policy_source"] == "false" else "false"
    from kyverno_mp.kube.access import access_of  # imported late, as above

    kubeconfig = flags["kube_kubeconfig"] or env.get("KYVERNO_MP_KUBECONFIG", "")
    try:
        access_of(kubeconfig, env)
    except SettingInvalid:
        say("Warning: no cluster is configured; its policies are not read", err=True)
        return "true"
    return "false"


def _text(names: Sequence[str], description: str, **more: Any) -> click.Option:
    return click.Option(list(names), default=None, help=description, **more)


def _switch(name: str, description: str) -> click.Option:
    """Return a switch in the syntax of Go: with ``=false``, or without a value."""
    return _text(
        [name],
        description,
        type=click.Choice(_SWITCHES),
        is_flag=False,
        flag_value="true",
    )


command = Command(
    "serve authz",
    (
        Example(
            "Authorize HTTP requests by the policies of a folder",
            "serve authz --mode http --policies policies/ --kube-policy-source=false",
        ),
        Example(
            "Authorize Envoy's requests by the policies of a cluster",
            "serve authz --mode envoy --grpc-address :9081",
        ),
    ),
    callback=_serve_authz,
    help="Answers a proxy's requests for authorization until SIGTERM, by policies in"
    " evaluation mode HTTP or Envoy.\n\n"
    "docs/authorizer.md describes it. The flags of upstream's authz-server have the"
    " same effect, or are rejected with the reason.",
    params=[
        click.Option(
            ["--mode"],
            type=click.Choice(["http", "envoy"]),
            required=True,
            help="http: over HTTP; envoy: Envoy's ext_authz v3 over gRPC.",
        ),
        click.Option(
            ["--policies"],
            multiple=True,
            metavar="PATH",
            help="A folder or file with policies, also in subfolders; it is watched.",
        ),
        click.Option(
            ["--external-policy-source"],
            multiple=True,
            metavar="URL",
            help="The same as a URL, file://path, or an image with policies:"
            " oci://registry/repository:tag or @digest.",
        ),
        _switch(
            "--kube-policy-source",
            "Use the cluster's policies. Default: if a cluster is configured.",
        ),
        _text(["--kube-kubeconfig"], "The kubeconfig of the cluster."),
        _text(
            ["--default-decision"],
            "The decision if no policy answers.",
            type=click.Choice(["allow", "deny"]),
        ),
        _text(["--server-address"], "http: host:port to listen on."),
        _text(["--grpc-address"], "envoy: host:port to listen on."),
        _text(["--grpc-network"], "envoy: tcp."),
        _text(["--probes-address"], "host:port of /livez, /readyz and /healthz."),
        _text(["--metrics-address"], "host:port of /metrics; the probes' address."),
        _switch("--nested-request", "http: judge the request in the body."),
        _text(["--input-expression"], "http: CEL that gives the request to judge."),
        _text(["--output-expression"], "http: CEL that gives the answer to send."),
        _switch(
            "--json-payloads",
            "http: answer POST /json with a report of the policies in evaluation mode"
            " JSON.",
        ),
        _text(["--cert-file"], "PEM file with the certificate chain; without, no TLS."),
        _text(["--key-file"], "PEM file with its private key."),
        _text(
            ["--client-ca-file"],
            "PEM file with the authorities of the client certificates that callers"
            " need.",
        ),
        _text(["--client-names"], "Their common names, comma-separated."),
        _text(["--timeout"], "Seconds in which a request is decided, or denied."),
        _text(["--workers"], "Processes that decide requests."),
        click.Option(
            ["--allow-empty"], is_flag=True, help="Start without any policies."
        ),
        _text(["--runtime-dir"], "Private folder for snapshots and metrics."),
        _text(["--log-level"], "Minimum level of log lines."),
        _text(["--log-format"], "text or json."),
        _text(["--log-decisions"], "Decisions to log: off, denied, all."),
        click.Option(
            ["--image-pull-secret"],
            multiple=True,
            metavar="NAME",
            help="A Secret with credentials of registries, in the service's namespace;"
            " without one, docker's config.json has them.",
        ),
        _switch(
            "--allow-insecure-registry",
            "Read images by plain HTTP, too, and without verified certificates.",
        ),
    ],
)
