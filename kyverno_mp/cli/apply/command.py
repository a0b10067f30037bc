"""``apply``: evaluate policies on objects.

Room: cli. Takes: the flags of upstream's apply. Gives: text, a table or reports on
standard output, and the exit code. Next: none.
May touch: files named by the user, standard input and output, the clock.
Source: docs/behaviour/cli 2, 3, 9-13.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.apply.finish import Remainder, finish
from kyverno_mp.cli.apply.given import Given, Loaded
from kyverno_mp.cli.apply.options import (
    Options,
    arguments_of,
    check,
    echo_of,
    options_of,
)
from kyverno_mp.cli.apply.output import print_invalid
from kyverno_mp.cli.apply.rounds import evaluate_all, shown_of
from kyverno_mp.cli.apply.scene import Scene
from kyverno_mp.cli.apply.stages.cel_policies import Payload
from kyverno_mp.cli.apply.work import Work
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
from kyverno_mp.cli.sources.resources import (
    GLOBAL_ENTRY,
    Location,
    load_resources,
    texts,
)
from kyverno_mp.cli.sources.user_info import UserInfo, deprecation, load_user_info
from kyverno_mp.cli.sources.values_file import Values, load_values, parse_set
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.reading.decode import decode

if TYPE_CHECKING:
    from kyverno_mp.cli.sources.payloads import CheckRequest, ContextFile


class Prepared(NamedTuple):
    """A run before its first evaluation."""

    work: Work
    compiled: Compiled
    policies: PolicySet
    scene: Scene
    requests: "Sequence[CheckRequest]"


def run(options: Options, arguments: Sequence[str] = ()) -> int:
    """Run ``apply``, print the results, and return the exit code.

    ``arguments``: the flags as the user can repeat them, for the records of a shard.
    """
    check(options)
    with warnings_kept() as warnings:
        if options.shard:
            return _run_shard(options, arguments, warnings)
        code = _run(options, _run_far if options.distribute else _run_in)
    if not code:
        refuse_warnings(len(warnings), as_errors=options.warnings_as_errors)
    return code


def _run_shard(
    options: Options, arguments: Sequence[str], warnings: Sequence[str]
) -> int:
    """Write the records of a shard; all else that is printed becomes part of them."""
    from kyverno_mp.cli.apply.shard import write_shard  # only for --shard

    show, heading = sys.stdout.write, StringIO()

    def write(prepared: Prepared) -> int:
        rest = partial(_remainder, prepared, options)
        said = (heading.getvalue, warnings)
        write_shard(prepared.work, prepared.scene, rest, show, arguments, said)
        return 0

    with redirect_stdout(heading):
        return _run(options, write)


def _run(options: Options, end: "Callable[[Prepared], int]") -> int:
    user = _user(options)
    values = _values(options)
    git = GitAccess(options.git_branch, options.username, options.password)
    policies = load_policies(options.policies, git)
    _print_failed_paths(policies)
    requests = _requests(options)
    context = _context(options)
    with _scene(options, policies, context) as scene:
        _say_nothing_given(options, policies, scene)
        exceptions = _exceptions(options, policies, scene.resources)
        warn_of_conditions(exceptions)
        modes = {request.mode for request in requests}
        compiled, work = _compile(options, policies, exceptions, scene, modes)
        work.values, work.user = values, user
        work.context = None if context is None else asdict(context)
        if not (options.is_quiet or options.stdin):
            _banner(policies, compiled, scene.resources, exceptions)
        return end(Prepared(work, compiled, policies, scene, requests))


def _compile(
    options: Options,
    policies: PolicySet,
    exceptions: Exceptions,
    scene: Scene,
    modes: set[str],
) -> tuple[Compiled, Work]:
    compiled = compile_all(
        policies.documents, exceptions.of_rules, policies.cleanups, verifies=True
    )
    work = Work(
        options=options,
        policies=compiled.policies,
        cleanups=compiled.cleanups,
        admission=compile_admission(policies),
        validating=compile_cel(policies, exceptions.of_cel, compiled),
        others=compile_others(policies, exceptions.of_cel, compiled),
        images=compile_images(policies, exceptions.of_cel, compiled),
        authorization=compile_authorizations(
            policies, exceptions.of_cel, compiled, modes
        ),
        params=scene.params,
        plurals=scene.plurals,
        definitions=scene.definitions,
        targets=scene.targets,
    )
    return compiled, work


def _run_in(prepared: Prepared) -> int:
    """Evaluate the objects in this process and its own workers, and end the run."""
    work, scene = prepared.work, prepared.scene
    options = work.options
    evaluator = work.evaluator(scene.cluster_data)
    counts = Counts()
    located: list[tuple[Response, Location]] = []
    rounds = evaluate_all(evaluator, work, scene.resources, options)
    for position, responses in enumerate(rounds):
        location = scene.resources.location(position)
        shown = shown_of(responses, counts, options)
        located.extend((response, location) for response in shown)
    for request in prepared.requests:
        for response in evaluator.authorize(request.mode, request.request):
            counts.add(response, audit_warn=options.audit_warn)
            located.append((response, Location(request.path, 0, -1, 1)))
    return finish(located, counts, _remainder(prepared, options), options)


def _run_far(prepared: Prepared) -> int:
    """Let a cluster evaluate the objects, and end the run."""
    from kyverno_mp.cli.apply.fleet import evaluate_far  # only for --distribute

    options = prepared.work.options
    located, counts = evaluate_far(prepared.work, prepared.scene.resources)
    return finish(located, counts, _remainder(prepared, options), options)


def _remainder(prepared: Prepared, options: Options) -> Remainder:
    policies, compiled = prepared.policies, prepared.compiled
    lines: list[str] = []
    print_invalid(compiled, lines.append)
    failure = ""
    if options.require_valid:
        try:
            require_valid(policies, compiled)
        except CommandFailed as error:
            failure = error.message
    return Remainder(
        len(compiled.invalid) + prepared.scene.errors,
        "".join(f"{line}\n" for line in lines),
        failure,
        (*policies.unread, *prepared.scene.unread),
    )


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
    unread: list[str] = []
    load = partial(load_resources, echo=echo_of(options), unread=unread)
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
    with _given(options, unread) as given:
        if isinstance(given, Loaded) and any(
            raw.get("kind") == GLOBAL_ENTRY for raw in given.objects
        ):
            from kyverno_mp.cli.cluster.given_entries import with_entries  # rarely used

            cluster_data = with_entries(given.objects, plurals, cluster_data)
        yield Scene(
            given,
            cluster_data,
            load(options.parameter_resources),
            plurals,
            unread=unread,
            definitions=definitions,
            targets=targets,
        )


@contextmanager
def _given(options: Options, unread: list[str]) -> Iterator[Given]:
    """Yield the objects of the given files; of a shard, only its own."""
    echo = echo_of(options)
    if options.is_split:
        from kyverno_mp.cli.cluster.dump import kept, part_of  # only for shards

        sources = texts(options.resources, echo=echo, unread=unread)
        with kept(sources, part_of(options.shard or "1/1")) as given:
            yield given
        return
    locations: list[Location] = []
    objects = load_resources(
        options.resources, locations=locations, echo=echo, unread=unread
    )
    if options.payloads:
        from kyverno_mp.cli.sources.payloads import load_payload  # rarely needed

        for path in options.payloads:
            objects.append(Payload(load_payload(Path(path))))
            locations.append(Location(path, 0, -1, 1))
    yield Loaded(objects, locations)


def _say_nothing_given(options: Options, policies: PolicySet, scene: Scene) -> None:
    """Warn about a run without policies or objects. KYVERNO: it still succeeds."""
    loaded = (policies.documents, policies.cleanups, policies.admission)
    of_cel = (policies.validating, policies.cel, policies.images)
    if not any((*loaded, *of_cel, policies.authorization, policies.failed_paths)):
        say(f"no policies in {', '.join(options.policies)}", err=True)
    is_given = options.http_payloads or options.envoy_payloads
    if not (scene.resources.total or is_given or scene.errors or scene.unread):
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
        for raw in resources.exceptions():
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
        f"\nApplying {rules} policy rule(s) to {resources.total} resource(s){tail}..."
    )


def called(policies: tuple[str, ...], **flags: object) -> int:
    """Run the command with the flags that click parsed."""
    options = options_of(policies, **flags)
    if options.is_split or not options.watch:
        return run(options, arguments_of(click.get_current_context()))
    from kyverno_mp.cli.watch import watch  # only for --watch

    paths = (*options.policies, *options.resources, *options.exceptions)
    requests = (*options.payloads, *options.http_payloads, *options.envoy_payloads)
    named = (options.values_file, options.user_info)
    return watch((*paths, *requests, *named), lambda: run(options))
