"""``replay``: evaluate recorded reviews with changed policies before they are applied.

Room: cli. Takes: a recording, policy files. Gives: the requests whose verdicts change,
on standard output, and the exit code. Next: recording, verdicts, changes.
May touch: files named by the user, standard output, the clock.
Source: docs/replay.md.
"""

import sys
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.replay.cel import CelPolicies
from kyverno_mp.cli.replay.changes import (
    CHANGES,
    Tables,
    change_of,
    recorded_verdict,
    unchanged_policies,
)
from kyverno_mp.cli.replay.facts import facts_of
from kyverno_mp.cli.replay.output import Facts, as_json, markdown, table
from kyverno_mp.cli.replay.policies import Served, served
from kyverno_mp.cli.replay.recording import (
    Group,
    Groups,
    groups_of,
    named_in,
    recording_of,
)
from kyverno_mp.cli.replay.verdicts import Replayer
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.webhook.recording.format import Line
from kyverno_mp.webhook.route import BOTH, CEL_WEBHOOKS, MUTATE, Route

_NOTHING: Final = "none"
_NO_NAME: Final = "-"
"""No name of a policy; see webhook/route.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags, as click parsed them."""

    recording: str
    policies: tuple[str, ...]
    against: tuple[str, ...]
    facts: str
    output: str
    limit: int
    fail_on: tuple[str, ...]


def called(**flags: Any) -> int:
    """Run the command with the flags that click parsed."""
    lists = flags["fail_on"]
    flags["fail_on"] = tuple(
        part for value in lists for part in value.split(",") if part
    )
    options = Options(**flags)
    for change in options.fail_on:
        if change not in (*CHANGES, _NOTHING):
            names = ", ".join((*CHANGES, _NOTHING))
            raise CommandFailed(f"--fail-on: {change!r} is not one of {names}")
    tables, facts = _run(options)
    if options.output == "json":
        output = as_json(tables, facts)
    else:
        show = markdown if options.output == "markdown" else table
        output = show(tables, facts, options.limit)
    sys.stdout.write(output)
    selected = options.fail_on or CHANGES
    return int(any(tables.changes[change] for change in selected if change != _NOTHING))


def _run(options: Options) -> tuple[Tables, Facts]:
    recording = recording_of(options.recording)
    known = facts_of(options.facts) if options.facts else None
    after = served(options.policies, known)
    before = (
        served(options.against, known) if options.against else Served([], CelPolicies())
    )
    unchanged = unchanged_policies(before.by_key(), after.by_key())
    new = Replayer(after.policies, after.cel, known)
    old = Replayer(before.policies, before.cel, known) if options.against else None
    groups = groups_of(recording.lines())
    tables = Tables()
    with progress("Replaying", len(groups.first), "requests") as advance:
        for number, line in enumerate(recording.lines()):
            group = groups.first.get(number)
            if group is None:
                continue
            body = msgspec.json.encode({"request": line.request})
            route = _route(group, groups, line, both=old is not None)
            new.cel.called = frozenset(groups.named.get(route.webhook, ()))
            verdict = new.verdict(line, body, route)
            recorded = (
                recorded_verdict(group.answer)
                if old is None
                else old.verdict(line, body, route)
            )
            tables.add(change_of(line, route.webhook, recorded, verdict, unchanged))
            advance(1)
    for note in recording.notes:
        say(note, err=True)
    if not tables.requests:
        raise CommandFailed(f"no reviews in {options.recording}")
    against = ", ".join(options.against) or "the recorded answers"
    facts = Facts(groups.start_ms, groups.end_ms, recording.one_of, against)
    return tables, facts


def _route(group: Group, groups: Groups, line: Line, *, both: bool) -> Route:
    """Return the route whose policies are compared.

    A recorded answer is from the policies of its own path. Policies of a path that was
    never called are new, and apply to every review.
    """
    first = group.routes[0]
    if both:
        return Route(first.path, first.webhook, BOTH)
    if first.webhook in CEL_WEBHOOKS:
        places = ("", line.request.get("namespace"))
        policies = [named for route in group.routes for named in named_in(route)]
        names = sorted({name for namespace, name in policies if namespace in places})
        # Without names, a path is for all policies.
        key = "/".join(names) or (_NO_NAME if policies else "")
        return Route(first.path, first.webhook, BOTH, key)
    shared = [route for route in group.routes if not route.policy_key]
    if not shared:
        key = first.policy_key if first.webhook == MUTATE else ""
        return Route(first.path, first.webhook, BOTH, key)
    compared = {
        failure_policy for route in shared for failure_policy in route.failure_policies
    }
    called = {named for webhook, named in groups.paths if webhook == first.webhook}
    return Route(first.path, first.webhook, frozenset(compared | (BOTH - called)))
