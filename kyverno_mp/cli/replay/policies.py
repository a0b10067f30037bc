"""Load and compile the policies of one side of a comparison, as the server does.

Room: cli. Takes: policy files, ClusterFacts. Gives: Served. Next: verdicts,
cli/compare/sides. May touch: files named by the user, standard error.
Source: docs/replay.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

from msgspec import structs

from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.replay.cel import CelPolicies, cel_policies_of
from kyverno_mp.cli.replay.facts import ClusterFacts
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.compiled import compile_all, compile_images
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.leader.servable import servable
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of

if TYPE_CHECKING:
    from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR


@dataclass(frozen=True, slots=True)
class Served:
    """The policies of one side of the comparison."""

    policies: list[CompiledPolicy]
    cel: CelPolicies
    image_rules: list[CompiledPolicy] = field(default_factory=list)
    """Policies with their rules that verify images, which need registries."""
    image_policies: "list[ImageValidatingPolicyIR]" = field(default_factory=list)

    def by_key(self) -> dict[str, list[object]]:
        """Return the policies by key; policies of several kinds can share a key."""
        policies: dict[str, list[object]] = {}
        images: list[Any] = [*self.image_rules, *self.image_policies]
        for policy in (*self.policies, *self.cel.all, *self.cel.generating, *images):
            policies.setdefault(policy.policy.key, []).append(policy)
        return policies


def served(
    paths: Sequence[str], known: ClusterFacts | None, *, whole: bool = False
) -> Served:
    """Load and compile the policies. Raises: CommandFailed.

    A policy that cannot be used ends the run. Without the policy, the requests that it
    denies would seem to be allowed. ``whole``: GeneratingPolicies and policies that
    verify images are kept, too, instead of skipped.
    """
    policy_set = load_policies(paths)
    if known is not None:
        known.add_exceptions(policy_set)
    compiled = compile_all(policy_set.documents, policy_set.exceptions, verifies=whole)
    cel = cel_policies_of(policy_set, compiled)
    images = (
        compile_images(policy_set, policy_set.cel_exceptions, compiled) if whole else []
    )
    lost = [f"{path}: {reason}" for path, reason in policy_set.failed_paths]
    lost += [f"policy {name}: {error.message}" for name, error in compiled.invalid]
    if lost:
        raise CommandFailed("\n".join(lost))
    other_policies = _others(policy_set, whole=whole)
    for name in other_policies:
        say(f"skipped, this command does not evaluate this kind: {name}", err=True)
    image_rules: list[CompiledPolicy] = []
    in_force: dict[tuple[str, str, str], CompiledPolicy] = {}
    for compiled_policy in compiled.policies:
        verifying, candidate = _parted(compiled_policy)
        if whole:
            image_rules += [part for part in (verifying,) if part.rules]
            if not candidate.rules:
                continue
        else:
            candidate = compiled_policy
        try:
            evaluated, lacking = servable(candidate, has_background=True)
        except PolicyInvalid as error:
            say(f"policy {candidate.policy.key}: not in force: {error}", err=True)
            continue
        if lacking:
            say(f"policy {candidate.policy.key}: {lacking}", err=True)
        # As in leader/policy_store.py: the last policy with a name is in force.
        policy = evaluated.policy
        in_force[policy.kind, policy.namespace, policy.name] = evaluated
    if not (compiled.policies or cel.all or cel.generating or images or other_policies):
        raise CommandFailed(f"no policies in {', '.join(paths)}")
    policies = [in_force[key] for key in sorted(in_force)]
    return Served(policies, cel, image_rules, images)


def _parted(compiled: CompiledPolicy) -> tuple[CompiledPolicy, CompiledPolicy]:
    """Return the policy with the rules that verify images, and with all others.

    If the first rule that applies ends the evaluation, none of them stands alone.
    """
    verifies = [rule.rule_type == "verifyImages" for rule in compiled.rules]
    if compiled.policy.apply_rules == "One" and any(verifies):
        verifies = [True] * len(verifies)
    return (
        structs.replace(compiled, rules=tuple(compress(compiled.rules, verifies))),
        structs.replace(
            compiled, rules=tuple(compress(compiled.rules, [not v for v in verifies]))
        ),
    )


def _others(policy_set: PolicySet, *, whole: bool) -> list[str]:
    evaluated = ("mutate", "generate") if whole else ("mutate",)
    images = () if whole else policy_set.images
    return [
        f"{policy.api_version} {policy.kind} {policy.metadata.name}"
        for policy in (*policy_set.cel, *images, *policy_set.authorization)
        if rule_type_of(policy.kind) not in evaluated
    ]
