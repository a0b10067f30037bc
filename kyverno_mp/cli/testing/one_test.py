"""Run one test: evaluate the policies, compare the results.

Room: cli. Takes: a TestFile. Gives: its TestRun. Next: cli/testing/compare,
cli/testing/checks. May touch: the clock; through cli/testing/inputs, files.
Source: docs/behaviour/cli 14, 15.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.apply.evaluate import Evaluator, Response
from kyverno_mp.cli.apply.stages.admission_policies import AdmissionInput
from kyverno_mp.cli.apply.stages.cel_policies import CelInput, Payload
from kyverno_mp.cli.cluster.data import cluster_definitions, load_cluster_data
from kyverno_mp.cli.output.warned import warnings_kept
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
from kyverno_mp.cli.sources.exceptions import Exceptions
from kyverno_mp.cli.sources.payloads import CheckRequest
from kyverno_mp.cli.sources.plurals import plurals_of
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.testing.checks import check_rows
from kyverno_mp.cli.testing.compare import Key, TestRun, compare, key_of, not_run
from kyverno_mp.cli.testing.files import TestFile
from kyverno_mp.cli.testing.inputs import (
    load_clone_sources,
    load_objects,
    load_payloads,
    load_requests,
    load_test_context,
    load_test_exceptions,
    load_test_policies,
    load_test_user,
    load_test_values,
)
from kyverno_mp.cli.testing.jobs import Echo
from kyverno_mp.ir.cel_policies import AnyCelPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.result import ERROR
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CLEANUP_POLICY, IN_CEL

_DELETES: Final = IN_CEL[CLEANUP_POLICY.name].names


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
    values = load_test_values(test, echo)
    user = load_test_user(test, echo)
    policies = load_test_policies(test, echo)
    echo("  Loading resources ...")
    unread: list[str] = []
    resources = load_objects(test, "resources", echo, unread)
    payloads = load_payloads(test, echo)
    requests = load_requests(test, echo)
    if test.raw.get("clusterResources"):
        echo("Loading Kubernetes resources ...")
    targets = load_objects(test, "targetResources", echo, unread)
    cluster_data = load_cluster_data(
        test.paths("clusterResources"),
        folder=test.folder,
        registry=registry,
        layout=layout,
        targets=targets,
        resources=resources,
        context=load_test_context(test),
    )
    definitions = cluster_definitions(test.paths("clusterResources"), test.folder)
    if test.raw.get("apiCallResponses") or test.raw.get("globalContextEntries"):
        from kyverno_mp.cli.testing.mocks import mocked  # rarely needed

        cluster_data = mocked(test, cluster_data)
    exceptions = load_test_exceptions(test, policies, echo)
    compiled = compile_all(policies.documents, exceptions.of_rules, verifies=True)
    cel, other_policies, images = _compiled_cel(policies, exceptions, compiled)
    modes = {request.mode for request in requests}
    authorization = compile_authorizations(policies, exceptions.of_cel, compiled, modes)
    if strict:
        require_valid(policies, compiled)
    count = len(policies.documents) + len(policies.admission)
    count += len(cel) + len(other_policies) + len(images)
    echo(_applying(count, len(resources), exceptions.count))
    plurals = plurals_of(definitions)
    evaluator = Evaluator(
        compiled.policies,
        values=values,
        user=user,
        cluster_data=cluster_data,
        clock=clock(),
        sources=load_clone_sources(test, policies),
        admission=_admission(test, policies, echo, unread)._replace(plurals=plurals),
        cel=CelInput(
            cel,
            plurals,
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
    run = _checked(test, policies, compiled, responses, echo)
    run.unread = unread
    return run


def _checked(
    test: TestFile,
    policies: PolicySet,
    compiled: Compiled,
    responses: dict[str, dict[Key, list[Response]]],
    echo: Echo,
) -> TestRun:
    """Compare the responses with the expected results and checks."""
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
    checks = test.raw.get("checks", [])
    for row in check_rows(checks, flat, policies.raw, str(test.path)):
        run.add_check(row)
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
            if rule.status == ERROR and response.policy.kind in _DELETES:
                yield f"failed to apply policy {name} on resource: {rule.message}"


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


def _admission(
    test: TestFile, policies: PolicySet, echo: Echo, unread: list[str]
) -> AdmissionInput:
    # KYVERNO: integers in parameters stay integers, unlike in apply (docs/behaviour/cli
    # 5).
    params = load_objects(test, "paramResources", echo, unread, floats=False)
    return AdmissionInput(compile_admission(policies), params)


def _applying(policies: int, resources: int, exceptions: int) -> str:
    def count(number: int, singular: str, many: str) -> str:
        return f"{number} {singular if number == 1 else many}"

    return (
        f"  Applying {count(policies, 'policy', 'policies')} to"
        f" {count(resources, 'resource', 'resources')} with"
        f" {count(exceptions, 'exception', 'exceptions')} ..."
    )
