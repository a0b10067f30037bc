"""``create``: write the small files that the other commands read.

Room: cli. Takes: flags. Gives: YAML on standard output or in a file.
May touch: the file named by ``--output``, standard output. Source: docs/behaviour/cli
17. Upstream writes tests, values and user files that it then rejects; here they follow
the current schema.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from kyverno_mp.cli.commands.declare import Example, Group
from kyverno_mp.cli.fix.test_file import API_VERSION
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.values.jsonvalue import Json

_VERBS: Final = ("create", "get", "update", "delete", "list", "watch")
_FILTER_FIELDS: Final = {
    "kind": "kinds",
    "name": "names",
    "namespace": "namespaces",
    "operation": "operations",
}
_Command = Callable[..., Any]


_EXAMPLE: Final = Example(
    "Write an exception for one Pod",
    "create exception web --policy-rules no-latest,tagged --any kind=Pod,name=web",
)
command = Group(
    "create",
    (_EXAMPLE,),
    help="Writes tests, values, exceptions and other files.",
)


def _output_option(function: _Command) -> _Command:
    return click.option("-o", "--output", default="", help="File to write.")(function)


def _many(*names: str, description: str) -> Callable[[_Command], _Command]:
    return click.option(*names, multiple=True, help=description)


def _write(document: dict[str, Json], output: str) -> None:
    from kyverno_mp.cli.output.yaml_text import dump_plain

    rendered = dump_plain(document, sort_keys=False)
    if not output:
        click.echo(rendered, nl=False)
        return
    Path(output).write_text(rendered, encoding="utf-8")


def _parts(argument: str, count: int, form: str) -> list[str]:
    """Split a comma list; raises CommandFailed if it has less than ``count`` parts."""
    parts = [part.strip() for part in argument.split(",")]
    if len(parts) < count:
        raise CommandFailed(f"{argument}: expected {form}")
    return parts


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Parse ``k=v`` strings; raises CommandFailed for any other string."""
    pairs = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise CommandFailed(f"{argument}: expected key=value")
        pairs[key.strip()] = value.strip()
    return pairs


@command.command(
    "create exception", examples=(_EXAMPLE,), help="Writes a PolicyException."
)
@click.argument("name")
@_many("--policy-rules", description="Exempted rules: policy,rule,...")
@_many(
    "--any",
    "any_of",
    description="Exempted objects: kind=..,name=..,namespace=..,operation=..",
)
@_many("--all", "all_of", description="Like --any, but all filters must match.")
@click.option("--namespace", default="default", help="Namespace of the exception.")
@click.option(
    "-b",
    "--background",
    default=True,
    type=bool,
    help="Whether it also applies to background scans.",
)
@_output_option
def exception(  # noqa: PLR0913 - one parameter for each flag
    name: str,
    policy_rules: tuple[str, ...],
    any_of: tuple[str, ...],
    all_of: tuple[str, ...],
    namespace: str,
    *,
    background: bool,
    output: str,
) -> None:
    """Write a PolicyException; reject filters with items other than ``key=value``."""
    if not policy_rules:
        raise CommandFailed('required flag(s) "policy-rules" not set')
    targets: list[Json] = []
    for argument in policy_rules:
        policy, *rules = _parts(argument, 2, "policy,rule")
        targets.append({"policyName": policy, "ruleNames": rules})
    match = {
        kind: [{"resources": _filter(argument)} for argument in arguments]
        for kind, arguments in (("any", any_of), ("all", all_of))
        if arguments
    }
    spec = {"background": background, "match": match, "exceptions": targets}
    _write(
        {
            "apiVersion": "kyverno.io/v2",
            "kind": "PolicyException",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        },
        output,
    )


def _filter(argument: str) -> dict[str, Json]:
    resources: dict[str, Json] = {}
    for part in argument.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _FILTER_FIELDS:
            fields = ", ".join(_FILTER_FIELDS)
            raise CommandFailed(f"{part}: expected key=value with one of {fields}")
        resources.setdefault(_FILTER_FIELDS[key], []).append(value)
    return resources


@command.command(
    "create metrics-config",
    examples=(
        Example("Exclude two namespaces", "create metrics-config -e dev -e test"),
    ),
    help="Writes the ConfigMap that configures the metrics.",
)
@click.option("-n", "--name", default="kyverno-metrics", help="Name of the ConfigMap.")
@click.option("--namespace", default="kyverno", help="Namespace of the ConfigMap.")
@_many("-i", "--include", description="Namespaces to include.")
@_many("-e", "--exclude", description="Namespaces to exclude.")
@_output_option
def metrics_config(
    name: str,
    namespace: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    output: str,
) -> None:
    """Write the ConfigMap."""
    namespaces = {"include": _listed(include), "exclude": _listed(exclude)}
    _write(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": {"namespaces": json.dumps(namespaces, indent=2)},
        },
        output,
    )


def _listed(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in value.split(",") if part]


@command.command(
    "create test",
    examples=(
        Example(
            "Write a test with one expected result",
            "create test -p policy.yaml -r pod.yaml --fail no-latest,tagged,web,,Pod",
        ),
    ),
    help="Writes a test file in the current schema.",
)
@click.option("-n", "--name", default="test-name", help="Name of the test.")
@_many("-p", "--policy", "policies", description="Policy files.")
@_many("-r", "--resource", "resources", description="Resource files.")
@click.option("-f", "--values", "--values-file", default="", help="Values file.")
@_many(
    "--pass",
    "passing",
    description="Results that pass: policy,rule,resource,namespace,kind[,patched].",
)
@_many("--fail", "failing", description="Results that fail, like --pass.")
@_many("--skip", "skipping", description="Results that are skipped, like --pass.")
@_output_option
def test(  # noqa: PLR0913 - one parameter for each flag
    name: str,
    policies: tuple[str, ...],
    resources: tuple[str, ...],
    values: str,
    *,
    passing: tuple[str, ...],
    failing: tuple[str, ...],
    skipping: tuple[str, ...],
    output: str,
) -> None:
    """Write the test file."""
    document: dict[str, Json] = {
        "apiVersion": API_VERSION,
        "kind": "Test",
        "metadata": {"name": name},
        "policies": _listed(policies),
        "resources": _listed(resources),
    }
    if values:
        document["variables"] = values
    document["results"] = [
        _result(argument, word)
        for arguments, word in (
            (passing, "pass"),
            (failing, "fail"),
            (skipping, "skip"),
        )
        for argument in arguments
    ]
    _write(document, output)


def _result(argument: str, word: str) -> dict[str, Json]:
    form = "policy,rule,resource,namespace,kind[,patched]"
    policy, rule, resource, namespace, kind, *patched = _parts(argument, 5, form)
    result: dict[str, Json] = {"policy": policy, "rule": rule}
    result["resources"] = [f"{namespace}/{resource}" if namespace else resource]
    result["kind"] = kind
    if patched:
        result["patchedResources"] = patched[0]
    return {**result, "result": word}


@command.command(
    "create user-info",
    examples=(
        Example("Write a user with a group", "create user-info -u amy -g developers"),
    ),
    help="Writes a user file in the current schema.",
)
@click.option("-u", "--username", default="", help="Name of the user.")
@_many("-r", "--role", "roles", description="Roles, namespace:name.")
@_many("-c", "--cluster-role", "cluster_roles", description="Cluster roles.")
@_many("-g", "--group", "groups", description="Groups.")
@_output_option
def user_info(
    username: str,
    roles: tuple[str, ...],
    cluster_roles: tuple[str, ...],
    groups: tuple[str, ...],
    output: str,
) -> None:
    """Write the user file."""
    document: dict[str, Json] = {
        "apiVersion": API_VERSION,
        "kind": "UserInfo",
        "metadata": {"name": "user-info"},
    }
    if roles:
        document["roles"] = _listed(roles)
    if cluster_roles:
        document["clusterRoles"] = _listed(cluster_roles)
    user: dict[str, Json] = {"username": username}
    if groups:
        user["groups"] = _listed(groups)
    _write({**document, "userInfo": user}, output)


@command.command(
    "create values",
    examples=(
        Example(
            "Set a variable for all policies",
            "create values -g request.operation=UPDATE",
        ),
    ),
    help="Writes a values file in the current schema.",
)
@_many(
    "-n",
    "--ns-selector",
    "namespaces",
    description="Labels of a namespace: namespace,label=value,...",
)
@_many(
    "-g", "--global", "global_values", description="Values for all policies: key=value."
)
@_many("--rule", "rules", description="Values for a rule: policy,rule,key=value,...")
@_many(
    "--resource",
    "resources",
    description="Values for an object: policy,resource,key=value,...",
)
@_output_option
def values(
    namespaces: tuple[str, ...],
    global_values: tuple[str, ...],
    rules: tuple[str, ...],
    resources: tuple[str, ...],
    output: str,
) -> None:
    """Write the values file."""
    document: dict[str, Json] = {
        "apiVersion": API_VERSION,
        "kind": "Values",
        "metadata": {"name": "values"},
    }
    if global_values:
        document["globalValues"] = _pairs(_listed(global_values))
    policies: dict[str, dict[str, Json]] = {}
    for field, arguments in (("rules", rules), ("resources", resources)):
        for argument in arguments:
            policy, name, *pairs = _parts(argument, 3, f"policy,{field[:-1]},key=value")
            entry = {"name": name, "values": _pairs(pairs)}
            policy_values = policies.setdefault(policy, {"name": policy})
            policy_values.setdefault(field, []).append(entry)
    if policies:
        document["policies"] = list(policies.values())
    if namespaces:
        selectors: list[Json] = []
        for argument in namespaces:
            name, *labels = _parts(argument, 2, "namespace,label=value")
            selectors.append({"name": name, "labels": _pairs(labels)})
        document["namespaceSelector"] = selectors
    _write(document, output)


@command.command(
    "create cluster-role",
    examples=(
        Example(
            "Allow generate rules to create Secrets",
            "create cluster-role secrets -g '' --resources secrets --verbs all",
        ),
    ),
    help="Writes a ClusterRole for more permissions of a controller.",
)
@click.argument("name")
@_many("-g", "--api-groups", description="API groups.")
@_many("--verbs", description="Verbs; all: every verb.")
@_many("--resources", description="Resources.")
@_many("--controllers", description="Controllers; by default background-controller.")
@_output_option
def cluster_role(
    name: str,
    api_groups: tuple[str, ...],
    verbs: tuple[str, ...],
    resources: tuple[str, ...],
    controllers: tuple[str, ...],
    output: str,
) -> None:
    """Write a ClusterRole; as in upstream, commas do not separate values."""
    flags = {"api-groups": api_groups, "verbs": verbs, "resources": resources}
    missing = [f'"{flag}"' for flag, values in flags.items() if not values]
    if missing:
        raise CommandFailed(f"required flag(s) {', '.join(missing)} not set")
    labels = {
        f"rbac.kyverno.io/aggregate-to-{controller}": "true"
        for controller in controllers or ("background-controller",)
    }
    rule = {
        "apiGroups": list(api_groups),
        "resources": list(resources),
        "verbs": list(_VERBS if "all" in verbs else verbs),
    }
    _write(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": f"kyverno-{name}-permission", "labels": labels},
            "rules": [rule],
        },
        output,
    )
