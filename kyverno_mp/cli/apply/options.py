"""The flags of ``apply``: their names, their help, and their contradictions.

Room: cli. Takes: the arguments that click parsed. Gives: Options. Next: command.
May touch: file names (``--crd-path``). Source: docs/behaviour/cli 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.values.duration import parse_duration

STRUCTURED: Final = ("sarif", "junit", "markdown")
"""Formats in place of text; yaml and json are formats of reports and exceptions."""

_IDLE: Final = "Checked; policies that read it are not evaluated by this version."
_CONCURRENT_MAX: Final = 32
_BATCH_MAX: Final = 20_000


@dataclass(slots=True)
class Options:
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
    audit_warn: bool = False
    warn_exit_code: int = 0
    warn_no_pass: bool = False
    remove_color: bool = False
    detailed_results: bool = False
    table: bool = False
    continue_on_fail: bool = False
    generate_exceptions: bool = False
    generated_exception_ttl: str = "720h0m0s"
    git_branch: str = ""
    username: str = ""
    password: str = ""
    crd_path: str = ""
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
    watch: bool = False

    @property
    def is_structured(self) -> bool:
        """Tell whether SARIF, JUnit or markdown takes the place of text."""
        return self.output_format in STRUCTURED and not (
            self.policy_report or self.generate_exceptions
        )

    @property
    def is_quiet(self) -> bool:
        """Tell whether the output is data, so that no banner may precede it."""
        return self.policy_report or self.generate_exceptions or self.is_structured


LISTS: Final = (
    "resources",
    "exceptions",
    "set_values",
    "target_resources",
    "parameter_resources",
    "payloads",
    "http_payloads",
    "envoy_payloads",
)
"""Options given several times or as comma lists."""


def split(values: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of comma lists, empty ones left out."""
    return tuple(part for value in values for part in value.split(",") if part)


def check(options: Options) -> None:
    """Refuse contradictory arguments, with upstream's order and messages."""
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
    if options.crd_path and options.kubeconfig:
        raise CommandFailed(
            "crdpath and kubeconfig flags are mutually exclusive, please use only one"
            " of them"
        )
    _check_ours(options)


def _check_ours(options: Options) -> None:
    if options.crd_path:
        # KYVERNO: one file, no folder (docs/behaviour/cli 5).
        file = Path(options.crd_path)
        if file.suffix not in (".yaml", ".yml") or not file.is_file():
            raise CommandFailed(f"crd-path: {file}: expected one YAML file")


def options_of_apply() -> list[click.Option]:
    """Return the options in the order of the help."""
    many: dict[str, Any] = {"multiple": True, "type": str}
    flag: dict[str, Any] = {"is_flag": True}
    text: dict[str, Any] = {"default": ""}
    return [
        click.Option(
            ["-r", "--resource", "--resources", "resources"],
            **many,
            help="Objects: files, one folder, or - for standard input.",
        ),
        click.Option(
            ["-e", "--exception", "--exceptions", "exceptions"],
            **many,
            help="PolicyException files.",
        ),
        click.Option(
            [
                "--exceptions-with-resources",
                "--exceptions-within-resources",
                "exceptions_with_resources",
            ],
            **flag,
            help="Take exceptions from the resources.",
        ),
        click.Option(
            ["--exceptions-within-policies"],
            **flag,
            help="Take exceptions from the policy files.",
        ),
        click.Option(["-u", "--userinfo", "user_info"], **text, help="UserInfo file."),
        click.Option(["-s", "--set", "set_values"], **many, help="Values, k=v."),
        click.Option(["-f", "--values-file"], **text, help="Values file."),
        click.Option(
            ["-p", "--policy-report"], **flag, help="Print reports in place of text."
        ),
        click.Option(
            ["--output-format"],
            default="yaml",
            help="yaml, json for reports; sarif, junit, markdown in place of text.",
        ),
        click.Option(["-i", "--stdin"], **flag, help="Print no banner."),
        click.Option(["--registry"], **flag, help="Allow look-ups in registries."),
        click.Option(
            ["--audit-warn"],
            **flag,
            help="Count failures of Audit policies as warnings.",
        ),
        click.Option(
            ["--warn-exit-code"],
            default=0,
            type=int,
            help="Exit code when there are only warnings.",
        ),
        click.Option(
            ["--warn-no-pass"],
            **flag,
            help="Use the warn exit code when nothing passed.",
        ),
        click.Option(["--remove-color"], **flag, help="Print without colours."),
        click.Option(["--detailed-results"], **flag, help="Add messages to the table."),
        click.Option(["-t", "--table"], **flag, help="Print a table."),
        click.Option(
            ["--continue-on-fail"],
            **flag,
            help="Go on after an object that cannot be judged.",
        ),
        click.Option(
            ["--generate-exceptions"],
            **flag,
            help="Print a PolicyException for each failure.",
        ),
        click.Option(
            ["--generated-exception-ttl"],
            default="720h0m0s",
            help="Their time to live; 0 for none.",
        ),
        click.Option(
            ["-b", "--git-branch"],
            **text,
            help="Branch of git sources; the URL's rest is a folder.",
        ),
        click.Option(["--username"], **text, help="User of git sources."),
        click.Option(["--password"], **text, help="Password of git sources."),
        click.Option(
            ["--crd-path"], **text, help="One file of CustomResourceDefinitions."
        ),
        click.Option(
            ["--jobs"],
            default=0,
            type=click.IntRange(0),
            help="Worker processes; 0: as many as are worth while, at most one a core.",
        ),
        click.Option(["--watch"], **flag, help="Run again whenever a file changes."),
        click.Option(
            ["-o", "--output"],
            **text,
            help="File or folder for objects that policies changed.",
        ),
        click.Option(
            ["--target-resource", "--target-resources", "target_resources"],
            **many,
            help="Files of objects that rules with targets may change.",
        ),
        click.Option(
            ["--parameter-resource", "parameter_resources"],
            **many,
            help="Parameters of Validating- and MutatingAdmissionPolicies.",
        ),
        click.Option(
            ["--json", "payloads"], **many, help=f"JSON or YAML payloads. {_IDLE}"
        ),
        click.Option(
            ["--http-payload", "http_payloads"], **many, help=f"HTTP requests. {_IDLE}"
        ),
        click.Option(
            ["--envoy-payload", "envoy_payloads"],
            **many,
            help=f"Requests of Envoy. {_IDLE}",
        ),
        click.Option(["--context-file"], **text, help=f"Context file. {_IDLE}"),
        *_options_of_clusters(),
    ]


def _options_of_clusters() -> list[click.Option]:
    """Return the options that say which objects of a cluster, and how to get them."""
    flag: dict[str, Any] = {"is_flag": True}
    text: dict[str, Any] = {"default": ""}
    return [
        click.Option(
            ["-c", "--cluster"],
            **flag,
            help="Take objects of the kinds that policies match from the cluster;"
            " -r then names some of them.",
        ),
        click.Option(["--kubeconfig"], **text, help="Kubeconfig file."),
        click.Option(["--context"], **text, help="Context of the kubeconfig."),
        click.Option(
            ["-n", "--namespace"], **text, help="Objects of this namespace only."
        ),
        click.Option(
            ["--cluster-wide-resources"],
            **flag,
            help="Objects outside namespaces only.",
        ),
        click.Option(
            ["--concurrent"],
            default=1,
            type=click.IntRange(1, _CONCURRENT_MAX),
            help="Kinds that are listed at the same time.",
        ),
        click.Option(
            ["--batch-size"],
            default=100,
            type=click.IntRange(1, _BATCH_MAX),
            help="Objects per call.",
        ),
        click.Option(
            ["--continue-on-error"],
            is_flag=False,
            flag_value="true",
            type=bool,
            default=True,
            help="Go on when a kind cannot be listed, and count an error.",
        ),
        click.Option(
            ["--show-performance"], **flag, help="Tell how long the loading took."
        ),
    ]
