"""Compute the parts of a request that the mutate rules of one plan read.

Room: program. Takes: the policies of a plan, the Shape of the object's kind. Gives:
MutationReads, None if a rule may depend on anything else. Next:
program/recall/mutations.py.
Source: docs/behaviour/engine 7; checked by tests/fuzz/test_mutation_recall_fuzz.py.

The result is valid for rules that matched a CREATE without an old object and run with
linked patches. A rule with any construct that is unknown here is not cacheable.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import InputError
from kyverno_mp.expr.reads import Reads, ReadsUnknown
from kyverno_mp.expr.template.leaves import Hole, Leaves
from kyverno_mp.expr.template.nodes import Mixed, Template, Variable, Whole
from kyverno_mp.ir.match import FilterIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.mutate.json6902 import operations_of
from kyverno_mp.program.mutate.merge_reads import Marks, mark_additions, mark_merge
from kyverno_mp.program.mutate.patch import LinkedPatch
from kyverno_mp.program.mutate.row import OBJECT, path_of
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_additions import Addition, link_additions
from kyverno_mp.values.patches.merge_keys import Shape
from kyverno_mp.values.spending import Spender

_BRACE: Final = "{"
_INDEX: Final = "elementIndex"
_ELEMENT: Final = "element"
_ACCOUNTS: Final = ("serviceAccountName", "serviceAccountNamespace")
_COMPUTED: Final = frozenset({"roles", "clusterRoles"})
_ALIKE: Final = frozenset({"labels", "annotations", "finalizers", "ownerReferences"})
"""Metadata that does not identify the object."""

_RULE_STEPS: Final = 20
_KEY_STEPS: Final = 10
_VARIABLE_STEPS: Final = 80
"""Includes the cost of running the patch again (program/recall/mutations.py)."""
_YAML_STEPS: Final = 2
"""Additional steps per character of YAML."""
_NAMES_MAX: Final = 32
"""Maximum names in a path. No real object is deeper, and later steps are recursive."""

Path = tuple[str, ...]


class MutationReads(NamedTuple):
    """``object``: fields of the new object; ``request``: other paths of the review."""

    object: Reads
    request: tuple[Path, ...]


def mutation_reads(
    policies: Sequence[tuple[PolicyIR, Sequence[LinkedMutation]]],
    shape: Shape,
    spend: Spender,
) -> MutationReads | None:
    """Return everything that the rules read; None if unknown or over the budget.

    It runs on the event loop, without a pace.
    """
    marks = Marks()
    request: dict[Path, None] = {}
    filters: list[FilterIR] = []
    try:
        for policy, rules in policies:
            if policy.match_conditions:
                return None
            for rule in rules:
                if rule.is_existing:
                    continue
                if not rule.is_plain:
                    return None
                spend.charge(_RULE_STEPS)
                filters += _filters(rule.ir)
                read_paths = _mark_rule(rule, shape, marks, spend)
                request.update(dict.fromkeys(read_paths))
    except (ReadsUnknown, InputError):
        return None
    if not _matches_stay(filters, marks.written):
        return None
    marks.object.field("apiVersion")
    marks.object.field("kind")
    marks.end()
    return MutationReads(marks.object, tuple(request))


def _filters(rule: RuleIR) -> Iterator[FilterIR]:
    for block in (rule.match, rule.exclude):
        if block is not None:
            yield from block.filters


def _matches_stay(filters: Iterable[FilterIR], written: set[Path]) -> bool:
    """Return whether the rules' changes affect neither matching nor messages."""
    in_metadata = set()
    for path in written:
        if path[0] in ("apiVersion", "kind"):
            return False
        if path[0] == "metadata":
            in_metadata.add(path[1] if len(path) > 1 else "")
    if not in_metadata <= _ALIKE:
        return False
    return not any(
        ("labels" in in_metadata and resource_filter.selector is not None)
        or ("annotations" in in_metadata and resource_filter.annotations)
        for resource_filter in filters
    )


def _mark_rule(
    rule: LinkedMutation, shape: Shape, marks: Marks, spend: Spender
) -> Iterator[Path]:
    """Mark the object's fields that the rule reads; yield its paths in the request."""
    for patch, path in rule.patches:
        if patch is None or patch.leaves is None:
            raise ReadsUnknown(rule.ir.name)
        _charge(patch.given, spend)
        element = None if path is None else _mark_path(marks.object, path).each
        yield from _mark_patch(patch, patch.leaves, shape, marks, element, spend)


def _charge(patch: Json, spend: Spender) -> None:
    """Charge for all keys and items of a merge before they are visited."""
    waiting = [patch]
    while waiting:
        item = waiting.pop()
        below = item.values() if type(item) is dict else item
        if type(item) is dict or type(item) is list:
            spend.charge(_KEY_STEPS * len(below))
            waiting += below


def _mark_patch(
    patch: LinkedPatch,
    leaves: Leaves,
    shape: Shape,
    marks: Marks,
    element: Reads | None,
    spend: Spender,
) -> Iterator[Path]:
    for template in leaves.templates:
        for variable in _variables(template):
            spend.charge(_VARIABLE_STEPS)
            yield from _mark_variable(variable, marks.object, element)
    strategic_merge, json_patch = patch.given, patch.text
    if type(strategic_merge) is dict and not json_patch:
        mark_merge(strategic_merge, shape, marks)
    elif strategic_merge is None and json_patch:
        patches = _texts(json_patch, leaves)
        mark_additions([_additions(json_text, spend) for json_text in patches], marks)
    else:
        raise ReadsUnknown("patches")


def _variables(template: Template) -> Sequence[Variable]:
    """Return a text's variables, unless substitution could create new variables."""
    if type(template) is Whole:
        return (template.variable,)
    if type(template) is not Mixed:
        raise ReadsUnknown(type(template).__name__)
    before, after = template.texts[:-1], template.texts[1:]
    if any(literal.endswith(_BRACE) for literal in before):
        raise ReadsUnknown(template.source)
    if (
        any(literal.startswith(_BRACE) for literal in after)
        or "" in template.texts[1:-1]
    ):
        raise ReadsUnknown(template.source)
    return template.variables


def _mark_variable(
    variable: Variable, target: Reads, element: Reads | None
) -> Iterator[Path]:
    names = path_of(variable.lookup)
    if names is None:
        raise ReadsUnknown(variable.lookup.text)
    first, *path = names
    if first == OBJECT:
        _mark_path(target, path)
    elif first in _ACCOUNTS:
        yield ("userInfo", "username")
    elif first == "request" and path and path[0] not in _COMPUTED:
        yield tuple(path)
    elif first in (_ELEMENT, "element0") and element is not None:
        _mark_path(element, path)
    elif first not in (_INDEX, "elementIndex0") or element is None:
        raise ReadsUnknown(first)


def _mark_path(reads: Reads, path: Sequence[str]) -> Reads:
    """Mark a path and return its last field."""
    if len(path) > _NAMES_MAX:
        raise ReadsUnknown("a long path")
    for name in path:
        reads = reads.field(name)
    return reads


def _additions(json_patch: str, spend: Spender) -> Sequence[Addition]:
    if not json_patch.startswith("["):
        spend.charge(_YAML_STEPS * len(json_patch))
    linked = link_additions(operations_of(json_patch, spend))
    if linked is None:
        raise ReadsUnknown("operations")
    return linked.all


def _texts(json_patch: Json, leaves: Leaves) -> list[str]:
    """Return the string of a JSON patch; if it contains an index, for two indexes."""
    if type(json_patch) is str:
        return [json_patch]
    if type(json_patch) is not Hole:
        raise ReadsUnknown("text")
    template = leaves.templates[json_patch.number]
    if type(template) is not Mixed:
        raise ReadsUnknown("text")
    for variable in template.variables:
        # SAFETY: any other value could add an operation to the text.
        if path_of(variable.lookup) not in (["elementIndex"], ["elementIndex0"]):
            raise ReadsUnknown("text")
    return [index.join(template.texts) for index in ("0", "1")]
