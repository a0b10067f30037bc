"""``apply``: evaluate policies on objects.

Room: cli. Takes: the flags of upstream's apply. Gives: text, a table or reports on
standard output, and the exit code. Next: none.
May touch: files named by the user, standard input and output, the clock.
Source: docs/behaviour/cli 2, 3, 9-13.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Evaluator, Response
from kyverno_mp.cli.apply.given import Given, Loaded, all_objects
from kyverno_mp.cli.apply.options import Options, check, echo_of, options_of
from kyverno_mp.cli.apply.output import (
    needs_messages,
    needs_response,
    print_errors,
    print_invalid,
    print_objects,
    print_responses,
)
from kyverno_mp.cli.apply.rounds import evaluate_all
from kyverno_mp.cli.apply.scene import Scene
from kyverno_mp.cli.apply.stages.admission_policies import AdmissionInput
from kyverno_mp.cli.apply.stages.cel_policies import CelInput, Payload
from kyverno_mp.cli.cluster.data import load_cluster_data
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.output.warned import refuse_warnings, warn, warnings_kept
from kyverno_mp.cli.shell.errors import CommandFailed
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
from kyverno_mp.cli.sources.git import GitAccess
from kyverno_mp.cli.sources.plurals import load_definitions, plurals_of
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.sources.resources import Location, load_resources
from kyverno_mp.cli.sources.user_info import UserInfo, deprecation, load_user_info
from kyverno_mp.cli.sources.values_file import Values, load_values, parse_set
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program import result
from kyverno_mp.values.kubernetes.policy_kinds import (
    CLEANUP_POLICY,
    DELETING_POLICY,
    IMAGE_VALIDATING_POLICY,
)

if TYPE_CHECKING:
    from kyverno_mp.cli.sources.payloads import CheckRequest, ContextFile

_LAST = {
    name: position
    for position, row in enumerate(
        (IMAGE_VALIDATING_POLICY, DELETING_POLICY, CLEANUP_POLICY), 1
    )
    for name in row.names
}
_GLOBAL_ENTRY = "GlobalContextEntry"


def run(options: Options) -> int:
    """Run ``apply``, print the results, and return the exit code."""
    check(options)
    with warnings_kept() as warnings:
        code = _run(options)
    if not code:
        refuse_warnings(len(warnings), as_errors=options.warnings_as_errors)
    return code


def _run(options: Options) -> int:
    user = _user(options)
    values = _values(options)
    git = GitAccess(options.git_branch, options.username, options.password)
    policies = load_policies(options.policies, git)
    _print_failed_paths(policies)
    requests = _requests(options)
    context = _context(options)
    with _scene(options, policies, context) as scene:
        _say_nothing_given(options, policies, scene)
        return _run_in(scene, options, policies, (values, user), requests)


def _run_in(
    scene: Scene,
    options: Options,
    policies: PolicySet,
    values_and_user: tuple[Values, UserInfo | None],
    requests: "Sequence[CheckRequest]",
) -> int:
    values, user = values_and_user
    exceptions = _exceptions(options, policies, scene.resources)
    warn_of_conditions(exceptions)
    compiled = compile_all(
        policies.documents, exceptions.of_rules, policies.cleanups, verifies=True
    )
    cel = compile_cel(policies, exceptions.of_cel, compiled)
    other_policies = compile_others(policies, exceptions.of_cel, compiled)
    images = compile_images(policies, exceptions.of_cel, compiled)
    authorization = compile_authorizations(
        policies, exceptions.of_cel, compiled, {request.mode for request in requests}
    )
    if not (options.is_quiet or options.stdin):
        _banner(policies, compiled, scene.resources, exceptions)
    evaluator = Evaluator(
        compiled.policies,
        values=values,
        user=user,
        cluster_data=scene.cluster_data,
        clock=clock(),
        cleanups=compiled.cleanups,
        admission=AdmissionInput(
            compile_admission(policies),
            scene.params,
            scene.plurals,
            in_cluster=options.cluster,
        ),
        cel=CelInput(
            cel,
            scene.plurals,
            other_policies,
            is_cluster=options.cluster,
            images=images,
            uses_docker=options.registry,
            layout=options.image_layout,
            definitions=scene.definitions,
            authorization=authorization,
        ),
        with_messages=needs_messages(options),
    )
    counts = Counts(errors=len(compiled.invalid) + scene.errors)
    located = []
    policy_irs = [policy.policy for policy in compiled.policies] + [
        ir.policy for ir in (*cel, *other_policies, *images)
    ]
    rounds = evaluate_all(evaluator, compiled, policy_irs, scene.resources, options)
    for position, responses in enumerate(rounds):
        counts.errors += responses is None
        location = scene.resources.location(position)
        for response in responses or ():
            counts.add(response, audit_warn=options.audit_warn)
            # PERF: in a large cluster, most responses only name rules that passed.
            if needs_response(response, options):
                located.append((response, location))
    for request in requests:
        for response in evaluator.authorize(request.mode, request.request):
            counts.add(response, audit_warn=options.audit_warn)
            located.append((response, Location(request.path, 0, -1, 1)))
    # Results of DeletingPolicies come last (docs/behaviour/cli 3).
    located.sort(key=lambda each: _LAST.get(each[0].policy.kind, 0))
    print_objects([response for response, _ in located], options)
    if options.continue_on_fail:
        _print_failed_deletions([response for response, _ in located], options)
    print_invalid(compiled, _printer(options))
    print_responses(located, counts, options)
    print_errors(located)
    if options.require_valid:
        require_valid(policies, compiled)
    return _exit_code(options, counts, policies, scene.unread)


@contextmanager
def _scene(
    options: Options, policies: PolicySet, context: "ContextFile | None"
) -> Iterator[Scene]:
    """Yield the Scene of the given files or of a cluster."""
    if options.cluster:
        # Imported late: the client takes 60 ms, and only --cluster needs it.
        from kyverno_mp.cli.apply.from_cluster import cluster_scene

        with cluster_scene(options, policies) as scene:
            yield scene
        return
    locations: list[Location] = []
    unread: list[str] = []
    load = partial(load_resources, echo=echo_of(options), unread=unread)
    objects = load(options.resources, locations=locations)
    if options.payloads:
        from kyverno_mp.cli.sources.payloads import load_payload  # rarely needed

        for path in options.payloads:
            objects.append(Payload(load_payload(Path(path))))
            locations.append(Location(path, 0, -1, 1))
    targets = load(options.target_resources)
    definitions = load_definitions(options.crd_paths)
    plurals = plurals_of(definitions)
    cluster_data = load_cluster_data(
        (),
        registry=options.registry,
        layout=options.image_layout,
        targets=targets,
        context=context,
        plurals=plurals,
    )
    if any(raw.get("kind") == _GLOBAL_ENTRY for raw in objects):
        from kyverno_mp.cli.cluster.given_entries import with_entries  # rarely needed

        cluster_data = with_entries(objects, plurals, cluster_data)
    yield Scene(
        Loaded(objects, locations),
        cluster_data,
        load(options.parameter_resources),
        plurals,
        unread=unread,
        definitions=definitions,
    )


def _say_nothing_given(options: Options, policies: PolicySet, scene: Scene) -> None:
    """Warn about a run without policies or objects. KYVERNO: it still succeeds."""
    loaded = (policies.documents, policies.cleanups, policies.admission)
    of_cel = (policies.validating, policies.cel, policies.images)
    if not any((*loaded, *of_cel, policies.authorization, policies.failed_paths)):
        say(f"no policies in {', '.join(options.policies)}", err=True)
    is_given = options.http_payloads or options.envoy_payloads
    if not (len(scene.resources) or is_given or scene.errors or scene.unread):
        places = ", ".join(options.resources) or "the cluster"
        say(f"no objects in {places}", err=True)


def _context(options: Options) -> "ContextFile | None":
    if not options.context_file:
        return None
    from kyverno_mp.cli.sources.payloads import load_context  # rarely needed

    return load_context(Path(options.context_file), is_argument=True)


def _requests(options: Options) -> "list[CheckRequest]":
    paths = [("HTTP", path) for path in options.http_payloads]
    paths += [("Envoy", path) for path in options.envoy_payloads]
    if not paths:
        return []
    from kyverno_mp.cli.sources.payloads import load_check_request  # rarely needed

    return [load_check_request(mode, path) for mode, path in paths]


def _values(options: Options) -> Values:
    values = Values()
    if options.values_file:
        try:
            values = load_values(Path(options.values_file), _printer(options))
        except CommandFailed as error:
            raise CommandFailed(f"failed to decode yaml ({error.message})") from error
    values.set_values = parse_set(options.set_values)
    return values


def _user(options: Options) -> UserInfo | None:
    if not options.user_info:
        return None
    try:
        user = load_user_info(Path(options.user_info), is_argument=True)
    except CommandFailed as error:
        message = f"failed to load request info ({error.message})"
        raise CommandFailed(message) from error
    if user.deprecated:
        warn(deprecation("user infos", options.user_info), _printer(options))
    return user


def _printer(options: Options) -> Callable[[str], None]:
    """Return the printer of progress messages; it uses stderr if the output is data."""
    return partial(click.echo, err=options.is_quiet)


def _print_failed_deletions(responses: list[Response], options: Options) -> None:
    """Print the errors of DeletingPolicies; as upstream, not without the option."""
    echo = _printer(options)
    for response in responses:
        if response.policy.kind not in DELETING_POLICY.names:
            continue
        word = "json" if isinstance(response.resource, Payload) else "resource"
        for rule in response.results:
            if rule.status == result.ERROR:
                echo(f"failed to apply deleting policies on {word}: {rule.message}")


def _print_failed_paths(policies: PolicySet) -> None:
    for path, reason in policies.failed_paths:
        say(f"policy path skipped: {path}: {reason}", err=True)
    for policy in policies.documents:
        for rule in policy.spec.rules:
            if lacking := missing_capability(rule, verifies=True):
                subject = f"policy {policy.metadata.name}, rule {rule.name}"
                say(f"{subject}: not evaluated: {lacking}", err=True)


def _exceptions(options: Options, policies: PolicySet, resources: Given) -> Exceptions:
    if options.exceptions_with_resources:
        exceptions = []
        for raw in all_objects(resources):
            if raw.get("kind") == "PolicyException" and str(
                raw.get("apiVersion", "")
            ).startswith("kyverno.io/"):
                decoded = decode(raw)
                assert isinstance(decoded, PolicyException)
                exceptions.append(decoded)
        # KYVERNO: exceptions of policies.kyverno.io are ignored (behaviour/cli 12).
        return Exceptions(exceptions)
    loaded = load_exceptions(options.exceptions)
    if options.exceptions_within_policies:
        loaded.of_rules.extend(policies.exceptions)
        loaded.of_cel.extend(policies.cel_exceptions)
    return loaded


def _banner(
    policies: PolicySet,
    compiled: Compiled,
    resources: Given,
    exceptions: Exceptions,
) -> None:
    rules = sum(len(policy.rules) for policy in compiled.policies)
    rules += compiled.invalid_rules  # KYVERNO: rejected later (behaviour/cli 3)
    rules += len(compiled.cleanups)
    rules += len(policies.admission) + len(policies.validating) + len(policies.cel)
    rules += len(policies.images) + len(policies.authorization)
    count = exceptions.count
    tail = f" with {count} exception(s)" if count else ""
    click.echo(
        f"\nApplying {rules} policy rule(s) to {len(resources)} resource(s){tail}..."
    )


def _exit_code(
    options: Options, counts: Counts, policies: PolicySet, unread: Sequence[str]
) -> int:
    if counts.failed or counts.errors:
        return 1
    lost = [*policies.unread, *unread]
    if lost:
        # Upstream exits with 0; here an unreadable folder is an error.
        raise CommandFailed(f"could not be read: {', '.join(lost)}")
    if counts.warned and options.warn_exit_code:
        message = f"exit as warnExitCode is {options.warn_exit_code}"
        click.echo(message, nl=False, err=options.is_quiet)
        return options.warn_exit_code
    if not counts.passed and options.warn_no_pass:
        _printer(options)("exit as no objects satisfied policy")
        return options.warn_exit_code
    return 0


def called(policies: tuple[str, ...], **flags: object) -> int:
    """Run the command with the flags that click parsed."""
    options = options_of(policies, **flags)
    if not options.watch:
        return run(options)
    from kyverno_mp.cli.watch import watch  # only for --watch

    paths = (*options.policies, *options.resources, *options.exceptions)
    requests = (*options.payloads, *options.http_payloads, *options.envoy_payloads)
    named = (options.values_file, options.user_info)
    return watch((*paths, *requests, *named), lambda: run(options))
