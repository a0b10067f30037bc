"""Check which variables a rule can use, and in which fields.

Room: policy. Takes: Subject, or a Rule and its index. Gives: problems. Next:
policy/check.py.
Source: docs/behaviour/engine 10.2, 10.3, 10.6 (element); Kyverno MockContext.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import re2

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.references import (
    ReferenceFailed,
    leaves_with_variables,
    resolve_references,
)
from kyverno_mp.expr.template.scan import find_variables, query_of
from kyverno_mp.limits import SUBSTITUTION_DEPTH_MAX, SUBSTITUTION_ROUNDS_MAX
from kyverno_mp.policy.checks.rules.patches import path_has_variables
from kyverno_mp.policy.checks.rules.subject import Problems, Subject, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.fields.match import MatchResources, ResourceFilter
from kyverno_mp.policy.fields.meta import ObjectMeta
from kyverno_mp.policy.fields.mutation import ForEachMutation
from kyverno_mp.policy.fields.validation import ForEachValidation
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_CALL: Final = r"([a-z_0-9]+\()[^{}]"
_USER: Final = "serviceAccountName|serviceAccountNamespace|"
_ELEMENT: Final = r"element|elementIndex|@|images|images\.|image\."
ALLOWED: Final = {
    (False, False): f"request|{_USER}element|elementIndex|@|images|image|{_CALL}",
    (True, False): rf"request\.|{_ELEMENT}|{_CALL}",
    (False, True): rf"request\.|{_USER}{_ELEMENT}|target\.|{_CALL}",
    (True, True): rf"request\.|{_ELEMENT}|target\.|{_CALL}",
}
"""(background mode, mutate with targets) -> pattern of the allowed variables."""

_COMPILED: Final = {key: re2.compile(pattern) for key, pattern in ALLOWED.items()}
_DEEP: Final = re2.compile(r"\{[^}]*\{")
_IN_SECTION: Final = re2.compile(r"\{\{[^{}]*\}\}")
_USER_VARIABLES: Final = re2.compile(
    r"[^\.](serviceAccountName|serviceAccountNamespace"
    r"|request.userInfo|request.roles|request.clusterRoles)\b"
)
_USER_PARTS: Final = ("serviceAccount", "userInfo", "roles", "Roles")
"""Each match of _USER_VARIABLES has one of them."""
_ALLOWED_PART: Final = "request."
"""A query that contains it matches each pattern in ALLOWED."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CHARACTERS_A_STEP: Final = 64
_INVALID: Final = "policy contains invalid variables: "
_BACKGROUND: Final = (
    "only select variables are allowed in background mode. Set spec.background=false "
    "to disable background mode for this policy rule: "
)


class VariableError(NamedTuple):
    """A variable that is not allowed: upstream's message, and its position."""

    text: str
    pointer: str = ""
    column: int = 0


def check_variables(subject: Subject) -> Problems:
    """Check for user info in background mode, then every variable of every rule."""
    if subject.policy.spec.background:
        for path, name, message in user_info_errors(subject.rules):
            reason = f"{_BACKGROUND}{message} "
            yield plain(path, name, reason, "policy.background")
        if not any(_is_mutate_existing(rule) for rule in subject.policy.spec.rules):
            for variable in _user_variables(subject):
                reason = f"{_BACKGROUND}variable {variable} is not allowed "
                yield plain("spec", "", reason, "policy.background")
    for index, rule in enumerate(subject.rules):
        for error in variable_errors(rule, background=subject.policy.spec.background):
            path = f"spec.rules[{index}]{_dotted(error.pointer)}"
            message = f"{_INVALID}{error.text}"
            yield Problem(
                "policy.variable", path, rule.name, message, message, error.column
            )


def check_elements(rule: Rule, index: int) -> Problems:
    """Check that ``element`` is used only inside foreach."""
    if b"element" not in _encoded(rule):
        return
    for leaf, pointer in leaves_with_variables(rule.raw()):
        for variable in find_variables(leaf):
            query, _ = query_of(variable.variable)
            if query.startswith("element") and "/foreach/" not in pointer:
                reason = (
                    f"variable '{query}' present outside of foreach at path {pointer}"
                )
                path = f"spec.rules[{index}]"
                yield plain(path, rule.name, reason, "policy.variable")


def has_variables(subject: Subject) -> bool:
    """Return whether any field of the policy has a variable."""
    return bool(find_variables(_policy_text(subject)))


def syntax_errors(raw: Json) -> Iterator[str]:
    """Return each query in ``raw`` that is not valid JMESPath."""
    for leaf, pointer in leaves_with_variables(raw):
        for query, _ in _queries(leaf):
            problem, _offset = _syntax_error(query, pointer)
            if problem:
                yield problem


def query_faults(raw: Json, path: str) -> Problems:
    """Yield each query below ``path`` that is not valid JMESPath, with its position."""
    for leaf, pointer in leaves_with_variables(raw):
        for query, start in _queries(leaf):
            problem, offset = _syntax_error(query, pointer)
            if problem:
                column = start + offset if start else 0
                leaf_path = f"{path}{_dotted(pointer)}"
                yield Problem("policy.expression", leaf_path, "", problem, "", column)


def queries_of(template: str) -> Iterator[str]:
    """Return the queries of a string's variables, inner queries first."""
    for query, _ in _queries(template):
        yield query


def _is_mutate_existing(rule: Rule) -> bool:
    return rule.mutate is not None and rule.mutate.targets is not None


def user_info_errors(rules: Iterable[Rule]) -> Iterator[tuple[str, str, str]]:
    """Yield (path, rule, text) of each match or exclude block that names users."""
    for index, rule in enumerate(rules):
        for name, block in (("match", rule.match), ("exclude", rule.exclude)):
            if block is None:
                continue
            modes = (("any", block.any), ("all", block.all))
            # KYVERNO: exclude checks ``all`` before ``any`` (10.3).
            ordered = modes if name == "match" else modes[::-1]
            places: list[tuple[str, MatchResources | ResourceFilter]] = [(name, block)]
            places += [
                (f"{name}/{mode}[{i}]", match_filter)
                for mode, filters in ordered
                for i, match_filter in enumerate(filters)
            ]
            for block_path, match_filter in places:
                field = _user_info(match_filter)
                if field:
                    field_path = f"spec/rules[{index}]/{block_path}/{field}"
                    path = f"spec.rules[{index}].{block_path.replace('/', '.')}.{field}"
                    message = f"invalid variable used at path: {field_path}"
                    yield path, rule.name, message


def _user_info(block: MatchResources | ResourceFilter) -> str:
    if block.roles:
        return "roles"
    if block.cluster_roles:
        return "clusterRoles"
    return "subjects" if block.subjects else ""


def _policy_text(subject: Subject) -> str:
    metadata = _without_last_applied(subject.policy.metadata)
    fields = {"metadata": metadata, "spec": subject.policy.spec}
    return msgspec.json.encode(fields).decode()


def _user_variables(subject: Subject) -> Iterator[str]:
    policy = _policy_text(subject)
    if not any(part in policy for part in _USER_PARTS):
        return
    for variable in find_variables(policy):
        if _USER_VARIABLES.search(variable.variable):
            yield variable.variable


def _without_last_applied(metadata: ObjectMeta) -> ObjectMeta:
    annotations = dict(metadata.annotations)
    if annotations.pop(_LAST_APPLIED, None) is None:
        return metadata
    return msgspec.structs.replace(metadata, annotations=annotations)


def variable_errors(rule: Rule, *, background: bool) -> Iterator[VariableError]:
    """Yield each variable that is invalid, or that the rule is not allowed to use."""
    for section in _forbidden_sections(rule):
        message = f'rule "{rule.name}" should not have variables in {section} section'
        yield VariableError(message)
    encoded_rule = _encoded(rule)
    if not (
        b"{{" in encoded_rule or b"$(" in encoded_rule or _may_be_deep(encoded_rule)
    ):
        return
    names = _context_patterns(rule)
    has_targets = _is_mutate_existing(rule)
    raw = _without_attestations(rule.raw())
    if rule.mutate is not None and rule.mutate.targets:
        for index, target in enumerate(rule.mutate.targets):
            encoded = {
                "context": raw.get("context", []),
                "preconditions": raw.get("preconditions"),
                "target": [target.kind, target.namespace, target.name],
            }
            for error in _variable_errors(encoded, (background, False), names):
                message = f"invalid variables defined at mutate.targets[{index}]: "
                yield VariableError(message + error.text)
    failed = f"variable substitution failed for rule {rule.name}: "
    try:
        resolved = resolve_references(raw)
    except ReferenceFailed as failure:
        # KYVERNO: 3.2 - a reference must resolve in the whole rule, too, although only
        # the pattern is searched at run time. So a reference with a leading slash is
        # never valid.
        yield VariableError(f"{failed}{failure}")
        return
    for error in _variable_errors(resolved, (background, has_targets), names):
        yield error._replace(text=f"{failed}{error.text}")


def _encoded(rule: Rule) -> bytes:
    """Return the JSON of a rule, to find out cheaply what it does not contain."""
    encoded = msgspec.json.encode(rule)
    spend(len(encoded) // _CHARACTERS_A_STEP)
    return encoded


def _may_be_deep(encoded: bytes) -> bool:
    """Return whether a document may be too deep for references to be searched."""
    return encoded.count(b"{") + encoded.count(b"[") > SUBSTITUTION_DEPTH_MAX


def _forbidden_sections(rule: Rule) -> Iterator[str]:
    if rule.mutate is not None and path_has_variables(rule.mutate.patches_json6902):
        yield "patchesJson6902 path"
    for name, block in (("exclude", rule.exclude), ("match", rule.match)):
        if block is not None:
            encoded = msgspec.json.encode(block).decode()
            if "{{" in encoded and _IN_SECTION.search(encoded):
                yield name
    for image in rule.verify_images:
        references = (*image.image_references, image.image)
        if any(find_variables(reference) for reference in references):
            yield "image reference"


def _without_attestations(raw: dict[str, Json]) -> dict[str, Json]:
    images = raw.get("verifyImages")
    if not images:
        return raw
    entries = []
    for image in images:
        listed = [
            {key: value for key, value in attestation.items() if key != "conditions"}
            for attestation in image.get("attestations", [])
        ]
        entries.append({**image, "attestations": listed})
    return {**raw, "verifyImages": entries}


def _variable_errors(
    raw: Json, mode: tuple[bool, bool], names: list[str]
) -> Iterator[VariableError]:
    reported: set[str] = set()
    for leaf, pointer in leaves_with_variables(raw):
        for query, start in _queries(leaf):
            if query in reported:
                continue
            reported.add(query)
            error, column = _query_error(query, pointer, mode, names)
            if error:
                yield VariableError(error, pointer, start + column if start else 0)


def _queries(template: str) -> Iterator[tuple[str, int]]:
    """Return the queries of a string with their columns, inner queries first.

    The outer query depends on the value of an inner query, which is unknown here, so
    its column is 0.
    """
    for turn in range(SUBSTITUTION_ROUNDS_MAX):
        variables = find_variables(template)
        if not variables:
            return
        pieces: list[str] = []
        done = 0
        for variable in variables:
            query, is_shallow = query_of(variable.variable)
            yield query, 0 if turn else template.find(query, variable.start) + 1
            pieces += [template[done : variable.start], "null"]
            done = variable.end
        if is_shallow:
            return
        template = "".join([*pieces, template[done:]])


def _query_error(
    query: str, pointer: str, mode: tuple[bool, bool], names: list[str]
) -> tuple[str, int]:
    """Return the error ("" for none) and its offset in the query."""
    problem, offset = _syntax_error(query, pointer)
    if query == "@" or problem:
        return problem, offset
    if query.count("{") > 1 and _DEEP.search(query):
        # Upstream takes a query with braces in braces for text, so it accepts any.
        return "", 0
    bare = query.replace('"', "")
    if (
        _ALLOWED_PART in bare
        or _COMPILED[mode].search(bare)
        or any(matches(name, bare) for name in names)
    ):
        return "", 0
    listed = " ".join(names)
    allowed = f'must match regex "{ALLOWED[mode]}" or patterns [{listed}]'
    return f"variable {bare} {allowed}", 0


def _syntax_error(query: str, pointer: str) -> tuple[str, int]:
    problem, offset = "", 0
    if not query:
        problem = "invalid query (nil)"
    elif query != "@":
        try:
            parse(query)
        except ExpressionInvalid as error:
            problem = f"invalid JMESPath query {query}: {error.message}"
            offset = max(0, error.where.column - 1)
    if not problem:
        return "", 0
    return f"failed to resolve {query} at path {pointer}: {problem}", offset


def _dotted(pointer: str) -> str:
    """Convert ``/any/0/key`` to ``.any[0].key``."""
    parts = pointer.split("/")[1:]
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)


def _context_patterns(rule: Rule) -> list[str]:
    entries: list[ContextEntry] = [*rule.context]
    names = _names_of(entries)
    if any(image.validate is not None for image in rule.verify_images):
        names += [
            f"{attestation.name}*"
            for image in rule.verify_images
            for attestation in image.attestations
        ]
    inner: list[ContextEntry] = []
    if rule.validate is not None:
        inner += _foreach_entries(rule.validate.foreach)
    if rule.mutate is not None:
        inner += _foreach_entries(rule.mutate.foreach)
        for target in rule.mutate.targets or ():
            inner += target.context
    for generation in (rule.generate and rule.generate.foreach) or ():
        inner += generation.context
    return names + _names_of(inner)


def _foreach_entries(
    loops: Iterable[ForEachValidation | ForEachMutation] | None,
) -> Iterator[ContextEntry]:
    """Yield the entries of all levels; upstream knows only those of the first one."""
    for loop in loops or ():
        yield from loop.context
        yield from _foreach_entries(loop.foreach)


def _names_of(entries: Iterable[ContextEntry]) -> list[str]:
    names: list[str] = []
    for entry in entries:
        free = (entry.api_call, entry.global_reference, entry.image_registry)
        if entry.variable is not None or any(name is not None for name in free):
            names.append(f"{entry.name}*")
        if entry.config_map is not None:
            name = entry.name
            names += [f"{name}.data", f"{name}.metadata"]
            names += [f"{name}.data.*", f"{name}.metadata.*"]
    return names
