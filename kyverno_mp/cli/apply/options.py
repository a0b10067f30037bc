"""Define the flags of ``apply``, and reject flags that contradict each other.

Room: cli. Takes: the arguments that click parsed. Gives: Options. Next: command.
May touch: file names (``--crd-paths``). Source: docs/behaviour/cli 2.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec

from kyverno_mp.cli.output.formats import STRUCTURED
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.values.go.duration import parse_duration


class Options(msgspec.Struct):
    """The flags of ``apply`` after splitting comma lists."""

    policies: tuple[str, ...]
    resources: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    exceptions_with_resources: bool = False
    exceptions_within_policies: bool = False
    user_info: str = ""
    set_values: tuple[str, ...] = ()
    values_file: str = ""
    policy_report: bool = False
    output_format: str = "yaml"
    stdin: bool = False
    registry: bool = False
    image_layout: str = ""
    audit_warn: bool = False
    warn_exit_code: int = 0
    warn_no_pass: bool = False
    require_valid: bool = False
    warnings_as_errors: bool = False
    remove_color: bool = False
    detailed_results: bool = False
    table: bool = False
    continue_on_fail: bool = False
    generate_exceptions: bool = False
    generated_exception_ttl: str = "720h0m0s"
    git_branch: str = ""
    username: str = ""
    password: str = ""
    crd_paths: tuple[str, ...] = ()
    target_resources: tuple[str, ...] = ()
    parameter_resources: tuple[str, ...] = ()
    payloads: tuple[str, ...] = ()
    http_payloads: tuple[str, ...] = ()
    envoy_payloads: tuple[str, ...] = ()
    cluster: bool = False
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    cluster_wide_resources: bool = False
    concurrent: int = 1
    batch_size: int = 100
    continue_on_error: bool = True
    show_performance: bool = False
    context_file: str = ""
    output: str = ""
    jobs: int = 0
    shard: str = ""
    distribute: str = ""
    watch: bool = False
    base: str = ""
    head: str = ""
    compare: str = "resources"
    facts: str = ""
    fail_on: tuple[str, ...] = ()

    @property
    def is_structured(self) -> bool:
        """Return whether a format such as SARIF or JUnit replaces the text."""
        return self.output_format in STRUCTURED and not (
            self.policy_report or self.generate_exceptions
        )

    @property
    def is_split(self) -> bool:
        """Return whether the objects are one part of a dump, or are sent in parts."""
        return bool(self.shard or self.distribute)

    @property
    def is_quiet(self) -> bool:
        """Return whether the output is data, so that headings must not be printed."""
        return self.policy_report or self.generate_exceptions or self.is_structured


_NO_OBJECTS = "only objects have parts"
_NOT_SHOWN = ("shard", "distribute", "username", "password")
_USER_OF_URL = re.compile(r"(^[a-z+]+://)[^/@]*@")

LISTS = (
    "resources",
    "exceptions",
    "set_values",
    "target_resources",
    "parameter_resources",
    "payloads",
    "http_payloads",
    "envoy_payloads",
    "crd_paths",
    "fail_on",
)
"""Options that can be repeated or given as comma-separated lists."""


def split(values: Sequence[str]) -> tuple[str, ...]:
    """Return the non-empty items of comma-separated lists."""
    return tuple(part for value in values for part in value.split(",") if part)


def options_of(policies: Sequence[str], **flags: object) -> Options:
    """Return the flags that click parsed."""
    for name in LISTS:
        values = flags[name]
        assert isinstance(values, tuple)
        flags[name] = split(values)
    return Options(policies=split(policies), **flags)  # type: ignore[arg-type]  # click checked the types


def check(options: Options) -> None:
    """Reject contradictory arguments, with upstream's order and messages."""
    if options.facts or options.fail_on or options.compare != "resources":
        raise CommandFailed("--facts, --fail-on and --compare need --base and --head")
    ttl = options.generated_exception_ttl
    if parse_duration(ttl) is None:
        raise CommandFailed(
            f'invalid argument "{ttl}" for "--generated-exception-ttl" flag: time:'
            f' invalid duration "{ttl}"'
        )
    if options.values_file and options.set_values:
        raise CommandFailed("pass the values either using set flag or values_file flag")
    if not options.policies:
        raise CommandFailed("require policy")
    if options.policies[0] == "-" and options.resources[:1] == ("-",):
        raise CommandFailed(
            "a stdin pipe can be used for either policies or resources, not both"
        )
    payloads = options.payloads or options.http_payloads or options.envoy_payloads
    if options.resources and options.payloads:
        raise CommandFailed(
            "both resource and json files can not be used together, use one or the"
            " other"
        )
    if not (options.resources or payloads or options.cluster):
        raise CommandFailed("resource file(s) or cluster required")
    if options.crd_paths and options.kubeconfig:
        raise CommandFailed(
            "crd-paths and kubeconfig flags are mutually exclusive, please use only one"
            " of them"
        )
    _check_ours(options)
    if options.is_split:
        _check_split(options)


def _check_ours(options: Options) -> None:
    for path in options.crd_paths:
        # KYVERNO: files, not folders (docs/behaviour/cli 5).
        if Path(path).suffix.lower() not in (".yaml", ".yml"):
            raise CommandFailed(f"--crd-paths {path}: expected YAML files")
        if not Path(path).is_file():
            raise CommandFailed(f"--crd-paths {path}: no such file")


def _check_split(options: Options) -> None:
    """Reject what a part of the objects cannot give."""
    reasons = {
        "--cluster": (options.cluster, "a cluster changes meanwhile: dump its objects"),
        "--json": (options.payloads, _NO_OBJECTS),
        "--http-payload": (options.http_payloads, _NO_OBJECTS),
        "--envoy-payload": (options.envoy_payloads, _NO_OBJECTS),
        "--output": (options.output, "the shards do not write the objects"),
        "--image-layout": (
            options.distribute and options.image_layout,
            "the workers do not have the folder",
        ),
        "--watch": (options.watch, "a shard is one run"),
    }
    for flag, (value, reason) in reasons.items():
        if value:
            name = "--shard" if options.shard else "--distribute"
            raise CommandFailed(f"{name} and {flag}: {reason}")
    if options.shard and options.distribute:
        raise CommandFailed("--shard and --distribute: a cluster makes the shards")


def arguments_of(context: click.Context) -> tuple[str, ...]:
    """Return the arguments of a command without ``--shard``, to show or repeat them.

    SAFETY: passwords are left out, also those in URLs.
    """
    arguments: list[str] = []
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if value == param.default or not value or param.name in _NOT_SHOWN:
            continue
        names = [] if isinstance(param, click.Argument) else [max(param.opts, key=len)]
        if value is True:
            arguments += names
            continue
        for each in value if isinstance(value, tuple) else (value,):
            arguments += [*names, _USER_OF_URL.sub(r"\1", str(each))]
    return tuple(arguments)


def echo_of(options: Options) -> Callable[[str], None]:
    """Return the printer of notes about a run; if its output is data, none."""
    return _say_nothing if options.is_quiet else click.echo


def _say_nothing(_message: str) -> None:
    pass
