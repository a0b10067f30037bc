"""Load what one test names: policies, exceptions, objects, payloads and values.

Room: cli. Takes: a TestFile. Gives: what its fields name, in the order of the messages
that upstream prints. Next: one_test. May touch: the files that the test names.
Source: docs/behaviour/cli 14, 15.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kyverno_mp.cli.apply.stages.admission_policies import VALIDATING
from kyverno_mp.cli.apply.stages.cel_policies import Payload
from kyverno_mp.cli.output.warned import warn
from kyverno_mp.cli.shell.errors import CommandFailed, NotEvaluated
from kyverno_mp.cli.sources.exceptions import (
    Exceptions,
    load_exceptions,
    warn_of_conditions,
)
from kyverno_mp.cli.sources.payloads import (
    CheckRequest,
    ContextFile,
    load_check_request,
    load_context,
    load_payload,
)
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.cli.sources.resources import Text, load_resources, parse
from kyverno_mp.cli.sources.user_info import UserInfo, deprecation, load_user_info
from kyverno_mp.cli.sources.values_file import Values, load_values, values_from
from kyverno_mp.cli.testing.compare import key_of
from kyverno_mp.cli.testing.files import TestFile
from kyverno_mp.cli.testing.jobs import Echo
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.fields.mutation import CloneFrom
from kyverno_mp.values.jsonvalue import Json


def load_test_policies(test: TestFile, echo: Echo) -> PolicySet:
    """Load the policies.

    Raises: CommandFailed; NotEvaluated for a rule that this version cannot evaluate.
    """
    echo("  Loading policies ...")
    policies = load_policies(test.paths("policies"), are_arguments=False)
    if policies.lost_paths:
        raise CommandFailed(
            f"error: failed to load policies ({policies.lost_paths[0]})"
        )
    for path, reason in policies.failed_paths:
        echo(f"  ERROR: {path}: {reason}")
    if lacking := list(_lacking_rules(test, policies)):
        rules = ", ".join(lacking)
        raise NotEvaluated(f"not evaluated by this version: {rules}")
    return policies


def _lacking_rules(test: TestFile, policies: PolicySet) -> Iterator[str]:
    """Yield the rules of expected results that this version does not evaluate."""
    for policy in policies.documents:
        rule_names = {
            expected.rule
            for expected in test.results
            if expected.policy_name == policy.metadata.name
        }
        for rule in policy.spec.rules:
            lacking = missing_capability(rule, verifies=True)
            if lacking and {"", rule.name} & rule_names:
                subject = f"policy {policy.metadata.name}, rule {rule.name}"
                yield f"{subject}: {lacking}"


def load_test_exceptions(test: TestFile, policies: PolicySet, echo: Echo) -> Exceptions:
    """Load the exceptions. Raises: CommandFailed."""
    echo("  Loading exceptions ...")
    exceptions = load_exceptions(test.paths("exceptions"), are_arguments=False)
    warn_of_conditions(exceptions)
    is_validating = any(policy.kind == VALIDATING for policy in policies.admission)
    if exceptions.of_rules and is_validating:
        raise CommandFailed(
            "error: use of exceptions with ValidatingAdmissionPolicies is not supported"
        )
    return exceptions


def load_test_values(test: TestFile, echo: Echo) -> Values:
    """Load the values of variables, those of the test itself first."""
    if "values" in test.raw:
        return values_from(test.raw["values"])
    if test.raw.get("variables"):
        try:
            return load_values(Path(test.raw["variables"]), echo, test.folder)
        except CommandFailed as error:
            raise CommandFailed(f"failed to decode yaml ({error.message})") from error
    return Values()


def load_test_user(test: TestFile, echo: Echo) -> UserInfo | None:
    """Load who sends the requests, None if unknown. Raises: CommandFailed."""
    if not test.raw.get("userinfo"):
        return None
    echo("  Loading user infos ...")
    path = test.folder / test.raw["userinfo"]
    try:
        user = load_user_info(path)
    except CommandFailed as error:
        message = f"error: failed to load request info ({error.message})"
        raise CommandFailed(message) from error
    if user.deprecated:
        echo(deprecation("user infos", path))
        raise CommandFailed(
            f"userInfo file {test.raw['userinfo']} uses a deprecated schema — please"
            " migrate to the latest format"
        )
    return user


def load_objects(
    test: TestFile, name: str, echo: Echo, unread: list[str], *, floats: bool = True
) -> list[dict[str, Json]]:
    """Load the objects of the field ``name``, each only once.

    ``unread`` takes the files that could not be read. Raises: CommandFailed.
    """
    by_key: dict[tuple[str, str, str, str], dict[str, Json]] = {}
    try:
        objects = load_resources(
            test.paths(name),
            floats=floats,
            echo=echo,
            unread=unread,
            are_arguments=False,
        )
    except CommandFailed as error:
        raise CommandFailed(f"error: {error.message}") from error
    for raw in objects:
        api_version, kind, namespace, name = key_of(raw)
        key = (api_version.rpartition("/")[0], kind, namespace, name)
        if key in by_key:
            message = f"found duplicated resource {kind} {name} {namespace}"
            warn(f"  warning: {message}", echo)
        else:
            by_key[key] = raw
    return list(by_key.values())


def load_test_context(test: TestFile) -> ContextFile | None:
    """Load what CEL libraries read, None if the test names no such file."""
    file = test.raw.get("context")
    return load_context(test.folder / file) if file else None


def load_payloads(test: TestFile, echo: Echo) -> dict[str, Payload]:
    """Return the JSON payloads by name."""
    listed = [test.raw.get("jsonPayload", ""), *test.raw.get("jsonPayloads", ())]
    names = [name for name in dict.fromkeys(listed) if name]
    if names:
        echo(f"  Loading JSON payload{'s' if len(names) > 1 else ''} ...")
    return {name: Payload(load_payload(test.folder / name)) for name in names}


def load_requests(test: TestFile, echo: Echo) -> list[CheckRequest]:
    """Return the requests for policies in the evaluation modes HTTP and Envoy."""
    requests: list[CheckRequest] = []
    for field, word in (("httpPayloads", "HTTP"), ("envoyPayloads", "Envoy")):
        if not test.raw.get(field):
            continue
        echo(f"  Loading {word} payloads ...")
        for path in test.paths(field):
            try:
                requests.append(load_check_request(word, path))
            except CommandFailed as error:
                message = f"failed to load {word} payloads from path {path}"
                raise CommandFailed(f"{message} ({error.message})") from error
    return requests


def load_clone_sources(test: TestFile, policies: PolicySet) -> dict[str, list[Json]]:
    """Return the clone sources by rule name.

    KYVERNO: the first result with a rule name counts, for all policies with such a
    rule. A foreach has no sources, and an unreadable file is ignored.
    """
    clone_sources: dict[str, list[Json]] = {}
    for policy in policies.documents:
        for rule in policy.spec.rules:
            generate = rule.generate
            if generate is None or not (
                generate.clone_list.kinds or generate.clone != CloneFrom()
            ):
                continue
            first = next((e for e in test.results if e.rule == rule.name), None)
            if first is None:
                continue
            path = test.folder / first.clone_source
            clone_sources.pop(rule.name, None)
            with suppress(OSError):
                clone_sources[rule.name] = parse(Text(read_file(path), str(path)))
    return clone_sources
