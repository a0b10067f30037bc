"""``replay``: evaluate recorded reviews with changed policies before they are applied.

Room: cli. Takes: a recording, policy files. Gives: the requests whose verdicts change,
on standard output, and the exit code. Next: recording, verdicts, changes.
May touch: files named by the user, standard output, the clock.
Source: docs/replay.md.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.replay.cel import CelPolicies, cel_policies_of
from kyverno_mp.cli.replay.changes import (
    CHANGES,
    Tables,
    change_of,
    recorded_verdict,
    unchanged_policies,
)
from kyverno_mp.cli.replay.facts import ClusterFacts, facts_of
from kyverno_mp.cli.replay.output import Facts, as_json, markdown, table
from kyverno_mp.cli.replay.recording import (
    Group,
    Groups,
    groups_of,
    named_in,
    recording_of,
)
from kyverno_mp.cli.replay.verdicts import Replayer
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.compiled import compile_all
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.leader.servable import servable
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy
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
    after = _compiled(options.policies, known)
    before = (
        _compiled(options.against, known)
        if options.against
        else _Set([], CelPolicies())
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


@dataclass(frozen=True, slots=True)
class _Set:
    """The policies of one side of the comparison."""

    policies: list[CompiledPolicy]
    cel: CelPolicies

    def by_key(self) -> dict[str, list[object]]:
        """Return the policies by key; policies of several kinds can share a key."""
        policies: dict[str, list[object]] = {}
        for policy in (*self.policies, *self.cel.all):
            policies.setdefault(policy.policy.key, []).append(policy)
        return policies


def _compiled(paths: Sequence[str], known: ClusterFacts | None) -> _Set:
    """Load and compile as the server does; raises CommandFailed.

    A policy that cannot be used ends the run. Without the policy, the requests that it
    denies would seem to be allowed.
    """
    policy_set = load_policies(paths)
    if known is not None:
        known.add_exceptions(policy_set)
    compiled = compile_all(policy_set.documents, policy_set.exceptions)
    cel = cel_policies_of(policy_set, compiled)
    lost = [f"{path}: {reason}" for path, reason in policy_set.failed_paths]
    lost += [f"policy {name}: {error.message}" for name, error in compiled.invalid]
    if lost:
        raise CommandFailed("\n".join(lost))
    other_policies = _others(policy_set)
    for name in other_policies:
        say(f"skipped, replay does not evaluate this kind: {name}", err=True)
    served: dict[tuple[str, str, str], CompiledPolicy] = {}
    for candidate in compiled.policies:
        try:
            in_force, lacking = servable(candidate, has_background=True)
        except PolicyInvalid as error:
            say(f"policy {candidate.policy.key}: not in force: {error}", err=True)
            continue
        if lacking:
            say(f"policy {candidate.policy.key}: {lacking}", err=True)
        # As in leader/policy_store.py: the last policy with a name is in force.
        policy = in_force.policy
        served[policy.kind, policy.namespace, policy.name] = in_force
    if not (compiled.policies or cel.all or other_policies):
        raise CommandFailed(f"no policies in {', '.join(paths)}")
    return _Set([served[key] for key in sorted(served)], cel)


def _others(policy_set: PolicySet) -> list[str]:
    return [
        f"{policy.api_version} {policy.kind} {policy.metadata.name}"
        for policy in (*policy_set.cel, *policy_set.images, *policy_set.authorization)
        if not isinstance(policy, MutatingPolicy)
    ]
