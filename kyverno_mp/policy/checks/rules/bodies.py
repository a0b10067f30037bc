"""Check the bodies of one rule: mutate, validate, generate, verifyImages.

Room: policy. Takes: a Rule, its index, the spec. Gives: problems. Next:
policy/check.py.
Checks of permissions need a cluster: see
policy/checks/cluster.py.
Source: docs/behaviour/engine 10.6 (mutate, validate, foreach, anchors, cel); Kyverno
pkg/policy/{mutate,validate,generate}.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from kyverno_mp.expr.pattern.anchors import parse_anchor
from kyverno_mp.policy.checks.rules.metadata_only import has_string_labels
from kyverno_mp.policy.checks.rules.subject import Problems, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.mutation import ForEachMutation, Generation
from kyverno_mp.policy.fields.validation import CEL, ForEachValidation, Validation
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import contains_wildcard

_ONE_PATCH: Final = "only one of `patchStrategicMerge` or `patchesJson6902` is allowed"
CEL_ONLY: Final = "celPrecondition can only be used with validate.cel"
_PARAM_CHOICE: Final = "one of cel.paramRef.name or cel.paramRef.selector must be set"


def check_bodies(rule: Rule, index: int) -> Problems:
    """Check the body of a rule."""
    rule_path = f"spec.rules[{index}]"
    types = rule.types()
    if "mutate" in types:
        for path, message in _mutate_errors(rule):
            field_path = f"{rule_path}.mutate.{path}"
            yield plain(
                field_path.rstrip("."), rule.name, f"path: {field_path}.: {message}"
            )
    if rule.validate is not None:
        for path, message in _validate_errors(rule, rule.validate):
            field_path = f"{rule_path}.validate.{path}"
            yield plain(
                field_path.rstrip("."), rule.name, f"path: {field_path}.: {message}"
            )
    if rule.generate is not None and "generate" in types:
        for path, message in _generate_errors(rule.generate):
            field_path = f"{rule_path}.generate.{path}"
            yield plain(
                field_path.rstrip("."), rule.name, f"path: {field_path}.: {message}"
            )
    if rule.generate is not None and rule.generate.kind in rule.match.resources.kinds:
        message = "generation kind and match resource kind should not be the same"
        yield plain(f"{rule_path}.generate.kind", rule.name, message)
    if not has_string_labels(rule):
        message = (
            "labels and annotations supports only string values, "
            '"use double quotes around the non string values"'
        )
        yield plain(rule_path, rule.name, message)


def _mutate_errors(rule: Rule) -> Iterator[tuple[str, str]]:
    mutate = rule.mutate
    if mutate is None:
        return
    has_merge = mutate.patch_strategic_merge is not None
    has_patches = bool(mutate.patches_json6902)
    if mutate.foreach:
        if has_merge or has_patches:
            yield (
                "foreach",
                (
                    "only one of `foreach`, `patchStrategicMerge`, or "
                    "`patchesJson6902` is allowed"
                ),
            )
        else:
            yield from _mutate_foreach_errors(mutate.foreach, "")
        return
    if has_merge and has_patches:
        yield "foreach", _ONE_PATCH
    if rule.cel_preconditions is not None:
        yield "", CEL_ONLY


def _mutate_foreach_errors(
    entries: Iterable[ForEachMutation], tag: str
) -> Iterator[tuple[str, str]]:
    for index, entry in enumerate(entries):
        tag = f"{tag}foreach[{index}]"  # KYVERNO: the path grows with each entry
        has_merge = entry.patch_strategic_merge is not None
        has_patches = bool(entry.patches_json6902)
        if entry.foreach:
            has_more = entry.context or entry.preconditions is not None
            if has_more or has_merge or has_patches:
                yield tag, "a nested foreach cannot contain other declarations"
            else:
                yield from _mutate_foreach_errors(entry.foreach, tag)
            # KYVERNO: engine 10.6 - entries after a nested foreach are not checked.
            return
        if has_merge == has_patches:
            yield tag, _ONE_PATCH


def _generate_errors(generate: Generation) -> Iterator[tuple[str, str]]:
    selector = generate.clone_list.selector
    if selector is not None and any(
        contains_wildcard(label)
        for pair in selector.match_labels.items()
        for label in pair
    ):
        yield "selector", "wildcard characters `*/?` not supported"
    # KYVERNO: celPreconditions are only checked in a cluster, in checks/cluster.py.
    if generate.data is not None:
        for path, message in pattern_errors(generate.data, "/", with_anchors=False):
            upstream = f"anchors not supported on generate resources: {message}"
            yield f"data.{path}", upstream


def _validate_errors(rule: Rule, validate: Validation) -> Iterator[tuple[str, str]]:
    yield from _count_errors(validate)
    if validate.pattern is not None:
        for path, message in pattern_errors(validate.pattern, "/"):
            yield f"pattern.{path}", message
    if validate.any_pattern is not None:
        if type(validate.any_pattern) is list:
            for index, pattern in enumerate(validate.any_pattern):
                for path, message in pattern_errors(pattern, "/"):
                    yield f"anyPattern[{index}].{path}", message
        else:
            yield "anyPattern", "failed to deserialize anyPattern, expect array"
    for entry in validate.foreach or ():
        yield from _foreach_errors(entry)
    if rule.cel_preconditions is not None and validate.cel is None:
        yield "", CEL_ONLY
    if validate.cel is not None:
        for message in _cel_errors(validate.cel):
            yield "", message


def _count_errors(validate: Validation) -> Iterator[tuple[str, str]]:
    manifests = validate.manifests
    bodies = (
        validate.pattern is not None,
        validate.any_pattern is not None,
        validate.deny is not None,
        validate.foreach is not None,
        validate.pod_security is not None,
        validate.cel is not None,
        manifests is not None and bool(manifests.attestors),
        validate.assertion is not None,
    )
    names = "pattern, anyPattern, deny, foreach, cel"
    if not any(bodies):
        yield "", f"one of {names} must be specified"
    elif sum(bodies) > 1:
        yield "", f"only one of {names} can be specified"


def _foreach_errors(entry: ForEachValidation) -> Iterator[tuple[str, str]]:
    bodies = (
        entry.pattern is not None,
        entry.any_pattern is not None,
        entry.deny is not None,
        bool(entry.foreach),
    )
    names = "pattern, anyPattern, deny, or a nested foreach"
    if not entry.list:
        yield "", "foreach.list is required"
    elif not any(bodies):
        yield "", f"one of {names} must be specified"
    elif sum(bodies) > 1:
        yield "", f"only one of {names} can be specified"


def pattern_errors(
    pattern: Json, path: str, *, with_anchors: bool = True
) -> Iterator[tuple[str, str]]:
    """Check the anchors of a pattern; ``path`` has upstream's spelling."""
    if type(pattern) is list:
        for index, item in enumerate(pattern):
            item_path = f"{path}{index}/"
            yield from pattern_errors(item, item_path, with_anchors=with_anchors)
        return
    if type(pattern) is not dict:
        return
    for key, value in pattern.items():
        item_path = f"{path}/{key}"
        anchor = parse_anchor(key)
        if anchor is not None and (anchor[0] == "+" or not with_anchors):
            yield item_path, f"unsupported anchor {key}"
        elif anchor is not None and anchor[0] == "^":
            if type(value) is not list:
                yield item_path, "existence anchor should have value of type list"
            elif not value:
                yield item_path, "existence anchor: should have at least one value"
        yield from pattern_errors(value, item_path, with_anchors=with_anchors)


def _cel_errors(cel: CEL) -> Iterator[str]:
    if any(not expression.expression for expression in cel.expressions):
        yield "cel.expressions.expression is required"
    kind, ref = cel.param_kind, cel.param_ref
    if kind is not None:
        if not kind.api_version:
            yield "cel.paramKind.apiVersion is required"
        if not kind.kind:
            yield "cel.paramKind.kind is required"
        if ref is None:
            yield "cel.paramRef is required"
    if ref is not None:
        if bool(ref.name) == (ref.selector is not None):
            yield _PARAM_CHOICE
        if ref.parameter_not_found_action is None:
            yield "cel.paramRef.parameterNotFoundAction is required"
        if kind is None:
            yield "cel.paramKind is required"
    if any(not audit_annotation.key for audit_annotation in cel.audit_annotations):
        yield "cel.auditAnnotation.key is required"
    if any(not annotation.value_expression for annotation in cel.audit_annotations):
        yield "cel.auditAnnotation.valueExpression is required"
