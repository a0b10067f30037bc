"""Run one test: load its files, evaluate the policies, compare the results.

Room: cli. Takes: a TestFile. Gives: its TestRun. Next: cli/testing/compare,
cli/testing/checks.
May touch: the files that the test names, the clock.
Source: docs/behaviour/cli 14, 15.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.apply.evaluate import Evaluator, Response
from kyverno_mp.cli.apply.stages.admission_policies import VALIDATING, AdmissionInput
from kyverno_mp.cli.apply.stages.cel_policies import CelInput, Payload
from kyverno_mp.cli.cluster.data import cluster_definitions, load_cluster_data
from kyverno_mp.cli.output.warned import warn, warnings_kept
from kyverno_mp.cli.shell.errors import CommandFailed, NotEvaluated
from kyverno_mp.cli.sources.compiled import (
    Compiled,
    compile_admission,
    compile_all,
    compile_authorizations,
    compile_cel,
    compile_images,
    compile_others,
    require_valid,
)
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
from kyverno_mp.cli.sources.plurals import plurals_of
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.cli.sources.resources import load_resources, parse
from kyverno_mp.cli.sources.user_info import UserInfo, deprecation, load_user_info
from kyverno_mp.cli.sources.values_file import Values, load_values, values_from
from kyverno_mp.cli.testing.checks import check_rows
from kyverno_mp.cli.testing.compare import Key, TestRun, compare, key_of, not_run
from kyverno_mp.cli.testing.files import TestFile
from kyverno_mp.cli.testing.jobs import Echo
from kyverno_mp.ir.cel_policies import AnyCelPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.fields.mutation import CloneFrom
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.result import ERROR
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import DELETING_POLICY


def run_test(
    test: TestFile,
    echo: Echo,
    *,
    registry: bool = False,
    layout: str = "",
    strict: bool = False,
) -> TestRun:
    """Run one test and compare; raises CommandFailed if it cannot be loaded.

    ``strict``: see ``require_valid``. A test that needs a feature which this version
    does not evaluate is skipped. A partial run would prove little, because policies
    change the input of other policies.
    """
    try:
        with warnings_kept() as warnings:
            run = _run_test(test, echo, registry=registry, layout=layout, strict=strict)
    except NotEvaluated as error:
        echo(f"  Skipped: {error.message}")
        return not_run(test, [error.message.partition(": ")[2]])
    except CommandFailed as error:
        message = f"failed to run test ({error.message})"
        raise CommandFailed(message, error.exit_code) from error
    run.warnings = len(warnings)
    return run


def _run_test(
    test: TestFile, echo: Echo, *, registry: bool, layout: str, strict: bool
) -> TestRun:
    echo(f"Loading test  ( {test.path} ) ...")
    echo("  Loading values/variables ...")
    values = _values(test, echo)
    user = _user(test, echo)
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
    echo("  Loading resources ...")
    unread: list[str] = []
    resources = _objects(test, "resources", echo, unread)
    payloads = _payloads(test, echo)
    requests = _requests(test, echo)
    if test.raw.get("clusterResources"):
        echo("Loading Kubernetes resources ...")
    targets = _objects(test, "targetResources", echo, unread)
    cluster_data = load_cluster_data(
        test.paths("clusterResources"),
        folder=test.folder,
        registry=registry,
        layout=layout,
        targets=targets,
        resources=resources,
        context=_context(test),
    )
    definitions = cluster_definitions(test.paths("clusterResources"), test.folder)
    if test.raw.get("apiCallResponses") or test.raw.get("globalContextEntries"):
        from kyverno_mp.cli.testing.mocks import mocked  # rarely needed

        cluster_data = mocked(test, cluster_data)
    echo("  Loading exceptions ...")
    exceptions = load_exceptions(test.paths("exceptions"), are_arguments=False)
    warn_of_conditions(exceptions)
    is_validating = any(policy.kind == VALIDATING for policy in policies.admission)
    if exceptions.of_rules and is_validating:
        raise CommandFailed(
            "error: use of exceptions with ValidatingAdmissionPolicies is not supported"
        )
    compiled = compile_all(policies.documents, exceptions.of_rules, verifies=True)
    cel, other_policies, images = _compiled_cel(policies, exceptions, compiled)
    modes = {request.mode for request in requests}
    authorization = compile_authorizations(policies, exceptions.of_cel, compiled, modes)
    if strict:
        require_valid(policies, compiled)
    count = len(policies.documents) + len(policies.admission)
    count += len(cel) + len(other_policies) + len(images)
    echo(_applying(count, len(resources), exceptions.count))
    evaluator = Evaluator(
        compiled.policies,
        values=values,
        user=user,
        cluster_data=cluster_data,
        clock=clock(),
        sources=_clone_sources(test, policies),
        admission=_admission(test, policies, echo, unread)._replace(
            plurals=plurals_of(definitions)
        ),
        cel=CelInput(
            cel,
            plurals_of(definitions),
            other_policies,
            targets=targets,
            # KYVERNO: there, a policy for existing objects has no result without
            # targets.
            is_target=not targets,
            is_cluster=bool(test.raw.get("clusterResources")),
            images=images,
            uses_docker=registry,
            layout=layout,
            definitions=definitions,
            payload_word="resource",
            authorization=authorization,
        ),
    )
    responses = _responses(test, evaluator, resources)
    _add_payloads(responses[""], evaluator, payloads, requests)
    flat = [
        response
        for of_operation in responses.values()
        for listed in of_operation.values()
        for response in listed
    ]
    for line in _failed_deletions(flat):
        echo(line)
    echo("  Checking results ...")
    invalid = {name: error.message for name, error in compiled.invalid}
    run = compare(test, responses, invalid)
    for row in check_rows(
        test.raw.get("checks", []), flat, policies.raw, str(test.path)
    ):
        run.add_check(row)
    run.unread = unread
    return run


def _responses(
    test: TestFile, evaluator: Evaluator, resources: Sequence[dict[str, Json]]
) -> dict[str, dict[Key, list[Response]]]:
    """Return the responses by the operation that results name; "" is the run's."""
    responses: dict[str, dict[Key, list[Response]]] = {}
    for operation in (
        "",
        *sorted({result.operation for result in test.results} - {""}),
    ):
        evaluator.operation = operation
        of_operation = responses[operation] = {}
        for resource in resources:
            key = key_of(resource)
            of_operation.setdefault(key, []).extend(evaluator.apply(resource))
    evaluator.operation = ""
    return responses


def _add_payloads(
    responses: dict[Key, list[Response]],
    evaluator: Evaluator,
    payloads: dict[str, Payload],
    requests: Sequence[CheckRequest],
) -> None:
    """Add the responses to payloads and requests, whose keys are names of files."""
    for name, payload in payloads.items():
        listed = responses.setdefault(("", "", "", name), [])
        listed.extend(evaluator.apply(payload))
    for request in requests:
        listed = responses.setdefault(("", "", "", request.path), [])
        listed.extend(evaluator.authorize(request.mode, request.request))


def _failed_deletions(responses: Iterable[Response]) -> Iterator[str]:
    """Yield a line for each error of a DeletingPolicy.

    KYVERNO: the line has the name of the object where it says policy.
    """
    for response in responses:
        name = metadata_text(response.resource, "name")
        for rule in response.results:
            if rule.status == ERROR and response.policy.kind in DELETING_POLICY.names:
                yield f"failed to apply policy {name} on resource: {rule.message}"


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


def _compiled_cel(
    policies: PolicySet, exceptions: Exceptions, compiled: Compiled
) -> tuple[
    list[ValidatingPolicyIR], list[AnyCelPolicyIR], list[ImageValidatingPolicyIR]
]:
    """Compile the policies in CEL.

    Raises: CommandFailed for a policy that does not compile; as upstream, the run ends.
    """
    before = len(compiled.invalid)
    validating = compile_cel(policies, exceptions.of_cel, compiled)
    other_policies = compile_others(policies, exceptions.of_cel, compiled)
    images = compile_images(policies, exceptions.of_cel, compiled)
    for name, error in compiled.invalid[before:]:
        raise CommandFailed(f"failed to compile policy {name} ({error.message})")
    return validating, other_policies, images


def _context(test: TestFile) -> ContextFile | None:
    file = test.raw.get("context")
    return load_context(test.folder / file) if file else None


def _payloads(test: TestFile, echo: Echo) -> dict[str, Payload]:
    """Return the JSON payloads by name."""
    listed = [test.raw.get("jsonPayload", ""), *test.raw.get("jsonPayloads", ())]
    names = [name for name in dict.fromkeys(listed) if name]
    if names:
        echo(f"  Loading JSON payload{'s' if len(names) > 1 else ''} ...")
    return {name: Payload(load_payload(test.folder / name)) for name in names}


def _requests(test: TestFile, echo: Echo) -> list[CheckRequest]:
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


def _admission(
    test: TestFile, policies: PolicySet, echo: Echo, unread: list[str]
) -> AdmissionInput:
    # KYVERNO: integers in parameters stay integers, unlike in apply (docs/behaviour/cli
    # 5).
    params = _objects(test, "paramResources", echo, unread, floats=False)
    return AdmissionInput(compile_admission(policies), params)


def _clone_sources(test: TestFile, policies: PolicySet) -> dict[str, list[Json]]:
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
                clone_sources[rule.name] = parse(read_file(path), str(path))
    return clone_sources


def _applying(policies: int, resources: int, exceptions: int) -> str:
    def count(number: int, singular: str, many: str) -> str:
        return f"{number} {singular if number == 1 else many}"

    return (
        f"  Applying {count(policies, 'policy', 'policies')} to"
        f" {count(resources, 'resource', 'resources')} with"
        f" {count(exceptions, 'exception', 'exceptions')} ..."
    )


def _values(test: TestFile, echo: Echo) -> Values:
    if "values" in test.raw:
        return values_from(test.raw["values"])
    if test.raw.get("variables"):
        try:
            return load_values(Path(test.raw["variables"]), echo, test.folder)
        except CommandFailed as error:
            raise CommandFailed(f"failed to decode yaml ({error.message})") from error
    return Values()


def _user(test: TestFile, echo: Echo) -> UserInfo | None:
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


def _objects(
    test: TestFile, name: str, echo: Echo, unread: list[str], *, floats: bool = True
) -> list[dict[str, Json]]:
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
