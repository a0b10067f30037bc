"""Declare ``apply``.

Room: cli. Takes: the arguments that click parsed. Gives: the command.
Next: cli/apply/command.py, cli/compare/command.py.
Source: docs/behaviour/cli 2.
"""

from typing import Any, Final

import click

from kyverno_mp.cli.commands.declare import Command, Example
from kyverno_mp.cli.output.formats import OF_APPLY
from kyverno_mp.values.go.yaml_int import INT64_MAX, INT64_MIN, yaml_int

_JSON_EACH: Final = "one in JSON per file; instead of -r."
_CONCURRENT_MAX: Final = 32
_BATCH_MAX: Final = 20_000
_FLAG: Final[dict[str, Any]] = {"is_flag": True}
_TEXT: Final[dict[str, Any]] = {"default": ""}
_MANY: Final[dict[str, Any]] = {"multiple": True, "type": str}


class _GoInteger(click.types.IntParamType):
    """GO: an int flag takes literals of all bases within 64 bits: 0x10, 010, 1_000."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        number = value if isinstance(value, int) else yaml_int(value)
        if number is None or not INT64_MIN <= number <= INT64_MAX:
            self.fail(f"{value!r} is not a valid integer.", param, ctx)
        return number


def _run(**flags: Any) -> int:
    # Imported late: help pages do not need the engine.
    if flags["base"] or flags["head"]:
        from kyverno_mp.cli.compare.command import called
    else:
        from kyverno_mp.cli.apply.command import called
    return called(**flags)


_OPTIONS_OF_INPUT: Final = (
    click.Option(
        ["-r", "--resource", "--resources", "resources"],
        **_MANY,
        help="Files with objects, one folder, or - for standard input.",
    ),
    click.Option(
        ["-e", "--exception", "--exceptions", "exceptions"],
        **_MANY,
        help="Files with PolicyExceptions.",
    ),
    click.Option(
        [
            "--exceptions-with-resources",
            "--exceptions-within-resources",
            "exceptions_with_resources",
        ],
        **_FLAG,
        help="Use the PolicyExceptions among the objects.",
    ),
    click.Option(
        ["--exceptions-within-policies"],
        **_FLAG,
        help="Use the PolicyExceptions in the policy files.",
    ),
    click.Option(
        ["-u", "--userinfo", "user_info"], **_TEXT, help="File with a UserInfo."
    ),
    click.Option(
        ["-s", "--set", "set_values"], **_MANY, help="Values of variables: name=value."
    ),
    click.Option(["-f", "--values-file"], **_TEXT, help="File with Values."),
)

_OPTIONS_OF_OUTPUT: Final = (
    click.Option(
        ["-p", "--policy-report"], **_FLAG, help="Print reports instead of text."
    ),
    click.Option(
        ["--output-format"],
        default="yaml",
        type=click.Choice(OF_APPLY),
        help="Format of reports and exceptions (yaml, json), or of all output (other"
        " formats).",
    ),
    click.Option(["-i", "--stdin"], **_FLAG, help="Print no heading."),
    click.Option(["--registry"], **_FLAG, help="Allow access to image registries."),
    click.Option(
        ["--image-layout"],
        **_TEXT,
        help="OCI image layout folder to read instead of registries.",
    ),
    click.Option(
        ["--audit-warn"],
        **_FLAG,
        help="Count failures of Audit policies as warnings.",
    ),
    click.Option(
        ["--warn-exit-code"],
        default=0,
        type=_GoInteger(),
        help="Exit code if there are only warnings.",
    ),
    click.Option(
        ["--warn-no-pass"],
        **_FLAG,
        help="Exit with the code of --warn-exit-code if nothing passed.",
    ),
    click.Option(
        ["--warnings-as-errors"],
        **_FLAG,
        help="Exit with 1 if a warning was printed.",
    ),
    click.Option(
        ["--require-valid"],
        **_FLAG,
        help="Fail if a policy or a policy file cannot be used, instead of skipping.",
    ),
    click.Option(["--remove-color"], **_FLAG, help="Print without colours."),
    click.Option(["--detailed-results"], **_FLAG, help="Add messages to the table."),
    click.Option(["-t", "--table"], **_FLAG, help="Print a table."),
    click.Option(
        ["--continue-on-fail"],
        **_FLAG,
        help="Continue after an object that cannot be evaluated.",
    ),
    click.Option(
        ["--generate-exceptions"],
        **_FLAG,
        help="Print a PolicyException for each failure.",
    ),
    click.Option(
        ["--generated-exception-ttl"],
        default="720h0m0s",
        help="Time to live of these PolicyExceptions; 0: unlimited.",
    ),
)

_OPTIONS_OF_SOURCES: Final = (
    click.Option(
        ["-b", "--git-branch"],
        **_TEXT,
        help="Branch of git repositories; the end of the URL is then a folder.",
    ),
    click.Option(["--username"], **_TEXT, help="User name for git repositories."),
    click.Option(["--password"], **_TEXT, help="Password for git repositories."),
    click.Option(
        ["--crd-paths", "--crd-path", "crd_paths"],
        **_MANY,
        help="Files with CustomResourceDefinitions.",
    ),
    click.Option(
        ["--jobs"],
        default=0,
        type=click.IntRange(0),
        help="Worker processes; 0: chosen by the amount of work, at most one per core.",
    ),
    click.Option(
        ["--shard"],
        **_TEXT,
        help="I/N: evaluate the I-th of N parts of the objects, and print records for"
        " the command merge.",
    ),
    click.Option(
        ["--distribute"],
        **_TEXT,
        help="dask://HOST:PORT or tls://HOST:PORT: a Dask cluster evaluates the objects"
        " (extra fleet).",
    ),
    click.Option(["--watch"], **_FLAG, help="Run again whenever a file changes."),
    click.Option(
        ["-o", "--output"],
        **_TEXT,
        help="File or folder for objects that policies changed.",
    ),
    click.Option(
        ["--target-resource", "--target-resources", "target_resources"],
        **_MANY,
        help="Files with objects that rules with targets can change.",
    ),
    click.Option(
        ["--parameter-resource", "parameter_resources"],
        **_MANY,
        help="Files with parameters of ValidatingAdmissionPolicies and"
        " MutatingAdmissionPolicies.",
    ),
    click.Option(
        ["--json", "payloads"],
        **_MANY,
        help="Files with JSON or YAML payloads, for policies in JSON evaluation mode;"
        " instead of -r.",
    ),
    click.Option(
        ["--http-payload", "http_payloads"],
        **_MANY,
        help=f"Files with requests for policies in HTTP evaluation mode, {_JSON_EACH}",
    ),
    click.Option(
        ["--envoy-payload", "envoy_payloads"],
        **_MANY,
        help=f"Files with requests for policies in Envoy evaluation mode, {_JSON_EACH}",
    ),
    click.Option(
        ["--context-file"],
        **_TEXT,
        help="File with a Context: objects and image data that policies in CEL read"
        " without a cluster.",
    ),
)

_OPTIONS_OF_CLUSTERS: Final = (
    click.Option(
        ["-c", "--cluster"],
        **_FLAG,
        help="Evaluate the cluster's objects of the kinds that the policies match;"
        " -r then names some of them.",
    ),
    click.Option(["--kubeconfig"], **_TEXT, help="Kubeconfig file."),
    click.Option(["--context"], **_TEXT, help="Context of the kubeconfig."),
    click.Option(
        ["-n", "--namespace"], **_TEXT, help="Only objects in this namespace."
    ),
    click.Option(
        ["--cluster-wide-resources"],
        **_FLAG,
        help="Only cluster-scoped objects.",
    ),
    click.Option(
        ["--concurrent"],
        default=1,
        type=click.IntRange(1, _CONCURRENT_MAX),
        help="Number of kinds that are listed at the same time.",
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
        help="Continue if a kind cannot be listed, and count an error.",
    ),
    click.Option(
        ["--show-performance"], **_FLAG, help="Print how long loading the objects took."
    ),
)

_OPTIONS_OF_COMPARISONS: Final = (
    click.Option(
        ["--base"], **_TEXT, help="Folder or file before a change; needs --head."
    ),
    click.Option(
        ["--head"],
        **_TEXT,
        help="Folder or file after the change. Shows what policies then decide, mutate"
        " and generate differently when the objects are created.",
    ),
    click.Option(
        ["--compare"],
        default="resources",
        type=click.Choice(["resources", "policies"]),
        help="What --base and --head have: manifests, or policies for the manifests of"
        " -r.",
    ),
    click.Option(
        ["--facts"],
        **_TEXT,
        help="File of the command facts, for --base and --head: what policies read from"
        " the cluster.",
    ),
    click.Option(
        ["--fail-on"],
        **_MANY,
        help="Exit with 1 on these differences of --base and --head: denied,"
        " undecidable, audited, mutated, generated, allowed, or none. Default: denied"
        " and undecidable.",
    ),
)

command = Command(
    "apply",
    (
        Example("Evaluate a folder of policies", "apply policies/ -r pods.yaml"),
        Example(
            "Evaluate a rendered chart",
            "apply policies/ -r - < rendered.yaml",
        ),
        Example(
            "Annotate the lines of a pull request on GitHub",
            "apply policies/ -r manifests/ --output-format github",
        ),
        Example("Evaluate the objects of a cluster", "apply policies/ --cluster"),
        Example(
            "Show what policies say about a pull request",
            "apply policies/ --base main/ --head change/ --output-format markdown",
        ),
    ),
    callback=_run,
    params=[
        click.Argument(["policies"], nargs=-1),
        *_OPTIONS_OF_INPUT,
        *_OPTIONS_OF_OUTPUT,
        *_OPTIONS_OF_SOURCES,
        *_OPTIONS_OF_CLUSTERS,
        *_OPTIONS_OF_COMPARISONS,
    ],
    help="Applies policies to objects.\n\nPOLICIES are files, folders, - for standard"
    " input, or git URLs (http, https, file).",
)
