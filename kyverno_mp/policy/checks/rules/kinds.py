"""Check the kinds in match and exclude.

Room: policy. Takes: Subject. Gives: problems. Next: policy/check.py.
Unknown kinds need a cluster: see policy/checks/cluster.py.
Source: docs/behaviour/engine 10.6 (kinds ``*``), 1.3.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.policy.checks.rules.metadata_only import touches_metadata_only
from kyverno_mp.policy.checks.rules.subject import Problems, Subject, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.problems import Problem

_BACKGROUND: Final = (
    "wildcard policy not allowed in background mode. Set spec.background=false to "
    "disable background mode for this policy rule "
)
METADATA_ONLY: Final = (
    "policy can only deal with the metadata field of the resource if the rule does not "
    "match any kind"
)


def check_kinds(subject: Subject) -> Problems:
    """Check wildcard kinds, which only some rules can use."""
    background = subject.policy.spec.background
    for index, rule in enumerate(subject.rules):
        for kinds_path, kinds in kinds_of(rule):
            message = _wildcard_error(kinds, rule, background=background)
            if message:
                path = f"spec.rules[{index}].{kinds_path}.kinds"
                reason = f"path: {path}: {message}"
                yield Problem("policy.kind", path, rule.name, message, reason)


def kinds_of(rule: Rule) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return each list of kinds of a rule with its position, in upstream's order."""
    for name, block in (("match", rule.match), ("exclude", rule.exclude)):
        if block is None:
            continue
        for mode, filters in (("any", block.any), ("all", block.all)):
            for index, entry in enumerate(filters):
                yield f"{name}.{mode}[{index}]", entry.resources.kinds
        yield name, block.resources.kinds


def check_matches_a_kind(rule: Rule, index: int) -> Problems:
    """Check that every filter of match names a kind."""
    filters = rule.match.any or rule.match.all
    blocks = [entry.resources for entry in filters] or [rule.match.resources]
    if all(block.kinds for block in blocks):
        return
    message = METADATA_ONLY
    if touches_metadata_only(rule):
        message = (
            "at least one element must be specified in a kind block, the kind "
            "attribute is mandatory when working with the resources element"
        )
    yield plain(f"spec.rules[{index}].match", rule.name, message)


def _wildcard_error(kinds: tuple[str, ...], rule: Rule, *, background: bool) -> str:
    if "*" not in kinds:
        return ""
    if background:
        return _BACKGROUND
    if len(kinds) > 1:
        return "wildcard policy can not deal with more than one kind"
    validate, types = rule.validate, rule.types()
    if (
        "generate" in types
        or "verifyImages" in types
        or (validate is not None and validate.foreach is not None)
    ):
        return "wildcard policy does not support rule type"
    has_pattern = validate is not None and (
        validate.pattern is not None or validate.any_pattern is not None
    )
    if (has_pattern or "mutate" in types) and not touches_metadata_only(rule):
        return METADATA_ONLY
    return METADATA_ONLY if _denies_by_spec(rule) else ""


def _denies_by_spec(rule: Rule) -> bool:
    deny = rule.validate.deny if rule.validate is not None else None
    conditions = deny.conditions if deny is not None else None
    if type(conditions) is not list:
        return False
    keys = [condition.get("key") for condition in conditions if type(condition) is dict]
    return any(not _is_metadata_key(key) for key in keys if type(key) is str)


def _is_metadata_key(key: str) -> bool:
    if "request.object.metadata." in key:
        return True
    opened = key.replace(" ", "")
    named = ("{{request.", "{{serviceAccountName", "{{serviceAccountNamespace")
    return any(name in opened for name in named) and "request.object.spec" not in key
