"""End a run of ``apply``: print its results, and choose the exit code.

Room: cli. Takes: Responses with their locations, Counts, what else the run found.
Gives: standard output and error, the exit code. Next: output.
May touch: standard output and error. Source: docs/behaviour/cli 9.
"""

from collections.abc import Sequence

import click
import msgspec

from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.apply.options import Options
from kyverno_mp.cli.apply.output import print_errors, print_objects, print_responses
from kyverno_mp.cli.apply.stages.cel_policies import Payload
from kyverno_mp.cli.apply.words import LocatedResponses
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.program import result
from kyverno_mp.values.kubernetes.policy_kinds import (
    CLEANUP_POLICY,
    DELETING_POLICY,
    IMAGE_VALIDATING_POLICY,
)

_LAST = {
    name: position
    for position, row in enumerate(
        (IMAGE_VALIDATING_POLICY, DELETING_POLICY, CLEANUP_POLICY), 1
    )
    for name in row.names
}


class Remainder(msgspec.Struct):
    """What a run found besides the results for its objects."""

    errors: int = 0
    """Policies that do not compile, and kinds that could not be listed."""
    invalid: str = ""
    """What is printed about policies that do not compile."""
    failure: str = ""
    """Why the run fails after it has printed everything, "" if it does not."""
    unread: tuple[str, ...] = ()
    """Folders, or files in them, that could not be read."""


def finish(
    located: LocatedResponses, counts: Counts, rest: Remainder, options: Options
) -> int:
    """Print everything, and return the exit code. Raises: CommandFailed."""
    counts.errors += rest.errors
    # Results of DeletingPolicies come last (docs/behaviour/cli 3).
    located = sorted(located, key=lambda each: _LAST.get(each[0].policy.kind, 0))
    responses = [response for response, _ in located]
    print_objects(responses, options)
    if options.continue_on_fail:
        _print_failed_deletions(responses, options)
    click.echo(rest.invalid, nl=False, err=options.is_quiet)
    print_responses(located, counts, options)
    print_errors(located)
    if rest.failure:
        raise CommandFailed(rest.failure)
    return _exit_code(options, counts, rest.unread)


def _print_failed_deletions(responses: list[Response], options: Options) -> None:
    """Print the errors of DeletingPolicies; as upstream, not without the option."""
    for response in responses:
        if response.policy.kind not in DELETING_POLICY.names:
            continue
        word = "json" if isinstance(response.resource, Payload) else "resource"
        for rule in response.results:
            if rule.status == result.ERROR:
                click.echo(
                    f"failed to apply deleting policies on {word}: {rule.message}",
                    err=options.is_quiet,
                )


def _exit_code(options: Options, counts: Counts, unread: Sequence[str]) -> int:
    if counts.failed or counts.errors:
        return 1
    if unread:
        # Upstream exits with 0; here an unreadable folder is an error.
        raise CommandFailed(f"could not be read: {', '.join(unread)}")
    if counts.warned and options.warn_exit_code:
        message = f"exit as warnExitCode is {options.warn_exit_code}"
        click.echo(message, nl=False, err=options.is_quiet)
        return options.warn_exit_code
    if not counts.passed and options.warn_no_pass:
        click.echo("exit as no objects satisfied policy", err=options.is_quiet)
        return options.warn_exit_code
    return 0
