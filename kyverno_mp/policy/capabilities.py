"""Name the features of a rule that this version cannot evaluate yet.

Room: policy. Takes: a Rule. Gives: the missing capability's name. Next:
the compiler marks such rules, the CLI and the status report it. May touch: nothing
outside its arguments. Source: docs/behaviour/engine 6 and 7 (what the bodies of rules
are).
"""

from kyverno_mp.policy.cluster_policy import Rule


def missing_capability(rule: Rule) -> str:
    """Return the capability that ``rule`` lacks, "" when it can be evaluated."""
    types = rule.types()
    if "verifyImages" in types:
        return "verifyImages"
    body = rule.validate
    if body is not None and body.manifests is not None and body.manifests.attestors:
        return "validate.manifests"
    return ""
