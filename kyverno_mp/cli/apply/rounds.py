"""Apply the policies of a run to its objects, in one process or in several.

Room: cli. Takes: a linked Evaluator, the given objects, the flags. Gives: the responses
of each object. Next: command. May touch: worker processes of its own, standard error.
Source: docs/behaviour/cli 2, 6.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Evaluator, Response, resource_path
from kyverno_mp.cli.apply.given import Given, Loaded
from kyverno_mp.cli.apply.options import Options
from kyverno_mp.cli.apply.output import needs_response
from kyverno_mp.cli.apply.work import Work
from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.errors import Error, NamespaceGone
from kyverno_mp.values.jsonvalue import Json

_EVALUATIONS_PER_JOB: Final = 100_000
"""Evaluations (rules x objects) that one core does in about 0.5 s. For fewer, a fork
costs more than it saves."""


def evaluate_all(
    evaluator: Evaluator, work: Work, resources: Given, options: Options
) -> Iterator[list[Response] | None]:
    """Yield the responses for each object, None if it could not be evaluated."""
    rules = sum(len(policy.rules) for policy in work.policies)
    jobs = _jobs(options, len(resources) * rules)
    # PERF: the results of a whole cluster are kept in memory, its objects are not.
    is_elsewhere = not isinstance(resources, Loaded)

    def evaluate(
        position: int, identity: dict[str, Json], hide: Callable[[], None] = _nothing
    ) -> list[Response] | None:
        try:
            responses = evaluator.apply(resources.object(position))
        except NamespaceGone as error:
            if not is_elsewhere:
                raise CommandFailed(error.message) from error
            # The objects of a deleted namespace are deleted, too: nothing to evaluate.
            hide()
            path = resource_path(identity)
            say(f"skipped, its namespace was deleted: {path}", err=True)
            return []
        except Error as error:
            if not options.continue_on_fail:
                raise
            path = resource_path(identity)
            hide()
            say(f"not evaluated: {path}: {error.message}", err=True)
            return None
        for response in responses:
            if response.patched is None and is_elsewhere:
                response.resource = identity
        return responses

    with progress("Evaluating", len(resources), "objects") as advance:
        if jobs == 1:
            for position in range(len(resources)):
                yield evaluate(position, resources.identity(position), advance.hide)
                advance(1)
            return

        # PERF: faster start of the CLI: only runs with worker processes need these.
        from kyverno_mp.cli.apply.wire import Wire
        from kyverno_mp.cli.shell.jobs import run_steps

        wire = Wire([*work.irs()])

        def step(position: int) -> bytes:
            identity = resources.identity(position)
            return wire.encode(evaluate(position, identity), identity)

        sent = run_steps(len(resources), step, jobs, advance)
        for position, data in enumerate(sent):
            yield wire.decode(data, resources.identity(position))


def shown_of(
    responses: Sequence[Response] | None, counts: Counts, options: Options
) -> list[Response]:
    """Count the responses for one object; return those that the output shows."""
    counts.errors += responses is None
    shown = []
    for response in responses or ():
        counts.add(response, audit_warn=options.audit_warn)
        # PERF: in a large cluster, most responses only name rules that passed.
        if needs_response(response, options):
            shown.append(response)
    return shown


def _nothing() -> None:
    """Do nothing: a worker process has no progress line to hide."""


def _jobs(options: Options, evaluations: int) -> int:
    worth = evaluations // _EVALUATIONS_PER_JOB
    # The shards of a run are its processes; one process alone keeps no results.
    if options.jobs or worth <= 1 or options.is_split:
        return options.jobs or 1
    from kyverno_mp.settings.machine import cores  # a short run does without it

    return min(cores(), worth)
