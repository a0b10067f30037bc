"""Find errors that depend on several documents of one run.

Room: cli. Takes: the documents that lint has decoded. Gives: Findings. Next: command.
Source: docs/behaviour/engine 8.7 (the names in exceptions).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kyverno_mp.cli.lint.kinds import KnownKinds
from kyverno_mp.cli.output import sarif
from kyverno_mp.cli.output.sarif import Finding
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.values.wildcard import matches


@dataclass(slots=True)
class Known:
    """The documents of one run, and the kinds that a cluster may serve."""

    policies: dict[str, list[tuple[AnyPolicy, Finding]]] = field(default_factory=dict)
    exceptions: list[tuple[PolicyException, Finding]] = field(default_factory=list)
    for_server: bool = True
    kinds: KnownKinds = field(default_factory=KnownKinds)


def across(linted: Known) -> Iterator[Finding]:
    """Yield errors that depend on several files."""
    for key, members in linted.policies.items():
        for _, origin in members[1:]:
            first = members[0][1]
            message = f"policy {key} is also in {first.file}, line {first.line}"
            yield _at(origin, "lint.duplicate_name", message)
    if not linted.policies:
        return
    for exception, origin in linted.exceptions:
        for target in exception.spec.exceptions:
            members = linted.policies.get(target.policy_name, [])
            if not members:
                name = target.policy_name
                message = f"the exception names policy {name}, which is not in the set"
                yield _at(origin, "lint.exception_unused", message)
                continue
            names = _computed_names(members[0][0])
            for rule_name in target.rule_names:
                if not any(matches(rule_name, name) for name in names):
                    message = f"policy {target.policy_name} has no rule {rule_name}"
                    yield _at(origin, "lint.exception_unused", message)


def _computed_names(policy: AnyPolicy) -> list[str]:
    try:
        return [rule.name for rule in compile_policy(policy, verifies=True).rules]
    except PolicyInvalid:
        return [rule.name for rule in policy.spec.rules]


def _at(finding: Finding, code: str, message: str) -> Finding:
    return Finding(
        code,
        sarif.WARNING,
        message,
        finding.file,
        finding.line,
        finding.column,
        finding.subject,
    )
