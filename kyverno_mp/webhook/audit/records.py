"""Convert the policy responses of one review into records for the leader.

Room: webhook. Takes: a Request and its PolicyResponses. Gives: queues.records.
Next: sink writes them to this worker's journal.
Source: docs/behaviour/controllers 9.1 (which responses make events), 2.7 (merged by
policy).

Only results that become events are recorded: failures and errors with all rules of
their policies, skips by PolicyExceptions, and, if requested, successes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from kyverno_mp.limits import EVENT_NOTE_CHARACTERS_MAX
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS, SKIP, PolicyResponse
from kyverno_mp.program.secrecy import hides_values
from kyverno_mp.queues.records import ObjectRecord, PolicyRecord, RuleRecord
from kyverno_mp.telemetry.families import OVERFLOW
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of

WithMessages = Callable[[PolicyResponse], PolicyResponse]
"""Adds the results of the rules that the fast program evaluated."""
_EVENT: Final = ("Event", frozenset({"", "events.k8s.io"}))
_MADE_BY_HAND: Final = frozenset({"validate", "verifyImages"})


def space_of(request: Request) -> str:
    """Return the namespace for labels and shares; all that do not exist share one."""
    return request.namespace if request.namespace_known else OVERFLOW


def object_record(request: Request) -> ObjectRecord | None:
    """Return the object of the events, None if the review must cause none.

    KYVERNO: an object without a name yet (generateName) gets no event (9.1). An event
    about an Event could cause another one, and so on.
    """
    if request.kind == _EVENT[0] and request.group in _EVENT[1]:
        return None
    resource = request.object or request.old_object
    metadata = resource.get("metadata")
    if type(metadata) is not dict:
        return None
    found = ObjectRecord(
        _text(resource.get("apiVersion")),
        _text(resource.get("kind")),
        _text(metadata.get("name")),
        _text(metadata.get("namespace")),
        _text(metadata.get("uid")),
    )
    return found if found.name else None


def is_redacted(request: Request) -> bool:
    """Return whether to omit rule messages, which can quote values of a Secret."""
    return hides_values(request.kind)


def policy_records(
    responses: Iterable[PolicyResponse],
    *,
    blocked: bool,
    redacted: bool,
    with_passes: bool,
) -> Iterator[PolicyRecord]:
    """Yield the policies that become events.

    A policy without rules was applied successfully.
    """
    for response in responses:
        rules = _reported_rules(response, blocked=blocked, redacted=redacted)
        if rules or (with_passes and is_applied(response)):
            yield _policy(response, tuple(rules))


def is_successful(response: PolicyResponse) -> bool:
    """Return whether no rule failed or ended in an error."""
    return not any(found.status in (FAIL, ERROR) for found in response.results)


def is_applied(response: PolicyResponse) -> bool:
    """Return whether any rule was evaluated, and none failed or was skipped."""
    if response.skipped or not (response.passed or response.results):
        return False
    return is_successful(response) and not any(
        found.status == SKIP for found in response.results
    )


def merged(
    enforced: Sequence[PolicyResponse],
    audited: Sequence[PolicyResponse],
    with_messages: WithMessages,
) -> list[PolicyResponse]:
    """Return one response per policy: audited rules first, failed ones with messages.

    Kyverno merges by name only, and therefore merges a Policy with a ClusterPolicy of
    the same name (docs/behaviour/controllers 14.10). We do not copy that.
    """
    enforcing = {response.policy.key: response for response in enforced}
    found = []
    for response in audited:
        other = enforcing.pop(response.policy.key, None)
        parts = (response,) if other is None else (response, other)
        found.append(_joined(parts, with_messages))
    found += [_joined((response,), with_messages) for response in enforcing.values()]
    return found


def _joined(
    parts: Sequence[PolicyResponse], with_messages: WithMessages
) -> PolicyResponse:
    if not all(map(is_successful, parts)):
        # KYVERNO: if one rule fails, every rule is reported (9.1) with its message.
        parts = [
            with_messages(part) if part.passed or part.skipped else part
            for part in parts
        ]
    if len(parts) == 1:
        return parts[0]
    return PolicyResponse(
        parts[0].policy,
        [found for part in parts for found in part.results],
        parts[0].action,
        tuple(name for part in parts for name in part.passed),
        tuple(name for part in parts for name in part.skipped),
    )


def _reported_rules(
    response: PolicyResponse, *, blocked: bool, redacted: bool
) -> list[RuleRecord]:
    if is_successful(response):
        if blocked or not response.results:
            return []
        return [
            RuleRecord(found.rule, SKIP, "", found.exceptions)
            for found in response.results
            if found.status == SKIP and found.exceptions
        ]
    rules = [
        RuleRecord(
            found.rule,
            found.status,
            "" if redacted else found.message[:EVENT_NOTE_CHARACTERS_MAX],
        )
        for found in response.results
        if not blocked or found.status in (FAIL, ERROR)
    ]
    if not blocked:
        rules += [RuleRecord(name, PASS) for name in response.passed]
        rules += [RuleRecord(name, SKIP) for name in response.skipped]
    return rules


def _policy(response: PolicyResponse, rules: tuple[RuleRecord, ...]) -> PolicyRecord:
    policy = response.policy
    types = {rule_type for _, rule_type, _ in policy.rule_actions}
    mutates = "mutate" in types and not types & _MADE_BY_HAND
    # A policy in CEL has no rules.
    mutates = mutates or rule_type_of(policy.kind) == "mutate"
    return PolicyRecord(
        policy.kind, policy.name, policy.namespace, policy.uid, mutates, rules
    )


def _text(value: object) -> str:
    return value if type(value) is str else ""
