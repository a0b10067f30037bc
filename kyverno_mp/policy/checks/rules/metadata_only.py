"""Determine whether a rule uses only metadata, and whether labels are strings.

Room: policy. Takes: a Rule. Gives: bool. Next: policy/checks/rules/kinds.py, bodies.py.
Source: docs/behaviour/engine 10.6; Kyverno ruleOnlyDealsWithResourceMetaData,
isLabelAndAnnotationsString.
"""

import msgspec

from kyverno_mp.policy.checks.rules.patches import operations_of
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.values.jsonvalue import Json


def touches_metadata_only(rule: Rule) -> bool:
    """Return whether patterns and patches touch only metadata."""
    blocks: list[Json] = []
    if rule.mutate is not None:
        blocks.append(rule.mutate.patch_strategic_merge)
        for operation in _operations_in_json(rule.mutate.patches_json6902):
            if not str(operation.get("path", "")).startswith("/metadata"):
                return False
    if rule.validate is not None:
        blocks.append(rule.validate.pattern)
        alternatives = rule.validate.any_pattern
        if alternatives is not None and type(alternatives) is not list:
            return False
        blocks.extend(alternatives or ())
    return all(set(block) <= {"metadata"} for block in blocks if type(block) is dict)


def _operations_in_json(patch: str) -> list[dict[str, Json]]:
    """KYVERNO: a patch in YAML is not decoded here, so it touches nothing."""
    try:
        msgspec.json.decode(patch)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return []
    return operations_of(patch)[0]


def has_string_labels(rule: Rule) -> bool:
    """Return whether all labels and annotations in patterns and patches are strings.

    KYVERNO: only the first foreach entry that has a pattern is checked.
    """
    if rule.validate is not None:
        entries = rule.validate.foreach
        if entries is not None:
            patterns = [
                entry.pattern for entry in entries if type(entry.pattern) is dict
            ]
            return _is_sound(patterns[0]) if patterns else True
        if type(rule.validate.pattern) is dict:
            return _is_sound(rule.validate.pattern)
        alternatives = rule.validate.any_pattern
        if alternatives is not None:
            if type(alternatives) is not list:
                return False
            return all(
                _is_sound(alternative)
                for alternative in alternatives
                if type(alternative) is dict
            )
    if rule.mutate is not None:
        foreach = rule.mutate.foreach
        patches = (
            [rule.mutate.patch_strategic_merge]
            if foreach is None
            else [entry.patch_strategic_merge for entry in foreach]
        )
        patches = [patch for patch in patches if type(patch) is dict]
        return _is_sound(patches[0], deletes=True) if patches else True
    return True


def _is_sound(pattern: dict[str, Json], *, deletes: bool = False) -> bool:
    """Return whether labels and annotations are strings; null deletes in a patch."""
    metadata = pattern.get("metadata")
    if type(metadata) is not dict:
        metadata = pattern
        for key in ("spec", "template", "metadata"):
            metadata = metadata.get(key) if type(metadata) is dict else None
    if type(metadata) is not dict:
        return True
    for key in ("labels", "annotations"):
        values = metadata.get(key)
        if type(values) is dict and any(
            type(value) is not str and not (deletes and value is None)
            for value in values.values()
        ):
            return False
    return True
