"""Compute what the mutate rules of one plan read of a request.

Room: program. Takes: the policies of a plan, the Shape of the object's kind. Gives:
MutationReads, None if a rule may depend on anything else. Next: mutation_recall.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 7; checked by tests/fuzz/test_mutation_recall_fuzz.py.

Applies to rules that matched a CREATE without an old object and run by the linked forms
of their patches. A rule with any construct that is unknown here is not cacheable.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kyverno_mp.errors import InputError
from kyverno_mp.expr.reads import Reads, ReadsUnknown
from kyverno_mp.expr.template.document import parse_lookup
from kyverno_mp.expr.template.leaves import Hole, Leaves, link_leaves
from kyverno_mp.expr.template.nodes import Mixed, Template, Variable, Whole
from kyverno_mp.ir.match import FilterIR
from kyverno_mp.ir.rules import MutateForEachIR, PatchIR, PolicyIR, RuleIR
from kyverno_mp.program.mutate.json6902 import operations_of
from kyverno_mp.program.mutate.merge_reads import Marks, mark_additions, mark_merge
from kyverno_mp.program.mutate.row import OBJECT, object_path, path_of
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.values.json_additions import Addition, link_additions
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.merge_keys import Shape
from kyverno_mp.values.spending import FREE

_BRACE: Final = "{"
_INDEX: Final = "elementIndex"
_ELEMENT: Final = "element"
_ACCOUNTS: Final = ("serviceAccountName", "serviceAccountNamespace")
_COMPUTED: Final = frozenset({"roles", "clusterRoles"})
_ALIKE: Final = frozenset({"labels", "annotations", "finalizers", "ownerReferences"})
"""Metadata that does not tell which object it is."""

Path = tuple[str, ...]


class MutationReads(NamedTuple):
    """``object``: of the new object; ``request``: paths into the rest of the review."""

    object: Reads
    request: tuple[Path, ...]


def mutation_reads(
    policies: Sequence[tuple[PolicyIR, Sequence[LinkedMutation]]], shape: Shape
) -> MutationReads | None:
    """Return what the rules read together."""
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
                filters += _filters(rule.ir)
                request.update(dict.fromkeys(_mark_rule(rule.ir, shape, marks)))
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
    """Return whether no change makes another rule match, or another message."""
    in_metadata = set()
    for path in written:
        if path[0] in ("apiVersion", "kind"):
            return False
        if path[0] == "metadata":
            in_metadata.add(path[1] if len(path) > 1 else "")
    if not in_metadata <= _ALIKE:
        return False
    return not any(
        ("labels" in in_metadata and one.selector is not None)
        or ("annotations" in in_metadata and one.annotations)
        for one in filters
    )


def _mark_rule(rule: RuleIR, shape: Shape, marks: Marks) -> Iterator[Path]:
    """Mark what the rule reads of the object; yield what it reads of the request."""
    mutate = rule.mutate
    if mutate is None:
        raise ReadsUnknown(rule.name)
    if mutate.foreach is not None:
        for entry in mutate.foreach:
            yield from _mark_entry(entry, shape, marks)
    elif mutate.patch is not None:
        yield from _mark_patch(mutate.patch, shape, marks, None)


def _mark_entry(entry: MutateForEachIR, shape: Shape, marks: Marks) -> Iterator[Path]:
    path = object_path(parse_lookup(entry.list_query))
    if path is None or entry.patch is None:
        raise ReadsUnknown(entry.list_query)
    place = marks.object
    for name in path:
        place = place.field(name)
    yield from _mark_patch(entry.patch, shape, marks, place.each)


def _mark_patch(
    patch: PatchIR, shape: Shape, marks: Marks, element: Reads | None
) -> Iterator[Path]:
    leaves = link_leaves(patch.document)
    if leaves is None:
        raise ReadsUnknown("shape")
    for template in leaves.templates:
        for variable in _variables(template):
            yield from _mark_variable(variable, marks.object, element)
    found: Json = leaves.shape
    for key in patch.place:
        found = found[key]
    given, text = found.get("patchStrategicMerge"), found.get("patchesJson6902")
    if type(given) is dict and not text:
        mark_merge(given, shape, marks)
    elif given is None and text:
        mark_additions([_additions(one) for one in _texts(text, leaves)], marks)
    else:
        raise ReadsUnknown("patches")


def _variables(template: Template) -> Sequence[Variable]:
    """Return the variables of a text, around which no new variable can appear."""
    if type(template) is Whole:
        return (template.variable,)
    if type(template) is not Mixed:
        raise ReadsUnknown(type(template).__name__)
    before, after = template.texts[:-1], template.texts[1:]
    if any(text.endswith(_BRACE) for text in before):
        raise ReadsUnknown(template.source)
    if any(text.startswith(_BRACE) for text in after) or "" in template.texts[1:-1]:
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


def _mark_path(place: Reads, path: Iterable[str]) -> None:
    for name in path:
        place = place.field(name)


def _additions(text: str) -> Sequence[Addition]:
    linked = link_additions(operations_of(text, FREE))
    if linked is None:
        raise ReadsUnknown("operations")
    return linked.all


def _texts(text: Json, leaves: Leaves) -> list[str]:
    """Return the text of a JSON patch; if it contains an index, for two of them."""
    if type(text) is str:
        return [text]
    if type(text) is not Hole:
        raise ReadsUnknown("text")
    template = leaves.templates[text.number]
    if type(template) is not Mixed:
        raise ReadsUnknown("text")
    for variable in template.variables:
        # SAFETY: any other value could add an operation to the text.
        if path_of(variable.lookup) not in (["elementIndex"], ["elementIndex0"]):
            raise ReadsUnknown("text")
    return [index.join(template.texts) for index in ("0", "1")]
