"""Check context entries of one rule.

Room: policy. Takes: a Rule and its index. Gives: problems. Next: policy/check.py.
Source: docs/behaviour/engine 10.6 (context).
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.scan import find_variables
from kyverno_mp.policy.checks.rules.subject import Problems, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.context import ContextEntry, Variable
from kyverno_mp.values.kubernetes.image import parse_image

RESERVED: Final = (
    "images",
    "request",
    "serviceAccountName",
    "serviceAccountNamespace",
    "element",
    "elementIndex",
)
_ONE_SOURCE: Final = (
    "exactly one of configMap or apiCall or imageRegistry or variable is required for "
    "context entries"
)


def check_context(rule: Rule, index: int) -> Problems:
    """Check the rule's own entries; upstream ignores entries of foreach."""
    rule_path = f"spec.rules[{index}]"
    if not rule.context:
        return
    if rule.validate is not None and rule.validate.cel is not None:
        message = (
            "context variables are not supported for CEL expressions in validate rules"
        )
        yield plain(f"{rule_path}.context", rule.name, f"path: {rule_path}: {message}")
    is_assert = rule.validate is not None and bool(rule.validate.assertion)
    for position, entry in enumerate(rule.context):
        path = f"{rule_path}.context[{position}]"
        for message in (
            *_name_errors(entry.name, is_assert=is_assert),
            *_errors(entry),
        ):
            yield plain(
                path, rule.name, f"path: {rule_path}: {message}", "policy.context"
            )


def _name_errors(name: str, *, is_assert: bool) -> Iterator[str]:
    if not name:
        yield "a name is required for context entries"
    elif is_assert and not (name.isascii() and name.replace("_", "a").isalnum()):
        yield (
            f"context entry name {name} is invalid, it must be a single word when the "
            "validation rule uses `assert`"
        )
    for reserved in RESERVED:
        if name == reserved or name.startswith(f"{reserved}."):
            yield (
                f"entry name {name} is invalid as it conflicts with a pre-defined "
                f"variable {reserved}"
            )


def _errors(entry: ContextEntry) -> Iterator[str]:
    sources = (
        entry.config_map,
        entry.api_call,
        entry.image_registry,
        entry.variable,
        entry.global_reference,
    )
    if sum(source is not None for source in sources) != 1:
        yield _ONE_SOURCE
        return
    if entry.config_map is not None:
        for name in ("name", "namespace"):
            if not getattr(entry.config_map, name):
                yield f"a {name} is required for configMap context entry"
    if entry.api_call is not None:
        if entry.api_call.url_path and entry.api_call.service is not None:
            yield "a URLPath cannot be used for service API calls"
        yield from _query_errors(entry.api_call.jmes_path)
    if entry.global_reference is not None:
        yield from _query_errors(entry.global_reference.jmes_path)
    if entry.image_registry is not None:
        yield from _image_errors(entry.image_registry.reference)
        yield from _query_errors(entry.image_registry.jmes_path)
    if entry.variable is not None:
        yield from _variable_errors(entry.variable)


def _variable_errors(variable: Variable) -> Iterator[str]:
    yield from _query_errors(variable.jmes_path)
    if variable.jmes_path:
        return
    if variable.value is None:
        yield "a variable must define a value or a jmesPath expression"
    if variable.default is not None:
        yield (
            "a variable must define a default value only when a jmesPath expression is "
            "defined"
        )


def _query_errors(query: str) -> Iterator[str]:
    if not query or find_variables(query):
        return
    try:
        parse(query)
    except ExpressionInvalid as error:
        yield f"failed to parse JMESPath {query}: {error.message}"


def _image_errors(reference: str) -> Iterator[str]:
    if not reference:
        yield "a ref is required for imageRegistry context entry"
    elif not find_variables(reference):
        try:
            parse_image(reference)
        except ExpressionFailed as error:
            yield f"bad image: {reference}: {error.message.rpartition(': ')[2]}"
