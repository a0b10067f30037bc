"""Check JSON patches of mutate rules.

Room: policy. Takes: the text of patchesJson6902. Gives: problems. Next: bodies.py.
Source: docs/behaviour/engine 10.6 (JSON patch), 10.2 (patchesJson6902 path section).
"""

from typing import Final

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.expr.template.scan import find_variables
from kyverno_mp.policy.checks.rules.subject import Problems, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json

_OPERATIONS: Final = ("add", "remove", "replace", "move", "copy", "test")
_NEED_VALUE: Final = ("add", "replace", "test")
_NEED_FROM: Final = ("move", "copy")
_STAND_IN: Final = "kyvernojsonpatchvariable"


def operations_of(patch: str) -> tuple[list[dict[str, Json]], str]:
    """Decode a patch text; return its operations, or an error text."""
    if not patch:
        return [], ""
    try:
        documents = load(patch)
    except PolicyInvalid as error:
        return [], error.message
    raw = documents[0].raw if documents else []
    if type(raw) is not list or any(type(operation) is not dict for operation in raw):
        return [], "json: cannot unmarshal patch into a list of operations"
    return raw, ""


def check_patch(rule: Rule, index: int) -> Problems:
    """Check paths, kinds and values of the operations."""
    if rule.mutate is None or not rule.mutate.patches_json6902:
        return
    rule_path = f"spec.rules[{index}]"
    path = f"{rule_path}.mutate.patchesJson6902"
    operations, error = operations_of(_without_variables(rule.mutate.patches_json6902))
    slash = f"path must begin with a forward slash: {rule_path}: "
    if error:
        yield plain(path, rule.name, f"{slash}{error}")
        return
    for operation in operations:
        target = operation.get("path")
        if type(target) is not str:
            message = "operation missing path field: missing value"
            yield plain(path, rule.name, f"{slash}{message}")
        elif not target.startswith("/"):
            yield plain(path, rule.name, f"{slash}{target}")
        if operation.get("op") in _NEED_FROM and type(operation.get("from")) is not str:
            message = (
                "failed to decode 'from': operation, missing from field: missing value"
            )
            yield plain(path, rule.name, f"{slash}{message}")
    for operation in operations:
        kind = operation.get("op", "unknown")
        if kind not in _OPERATIONS:
            yield plain(path, rule.name, f"unexpected kind: {rule_path}: {kind}")
        elif kind in _NEED_VALUE and "value" not in operation:
            message = "operation, missing value field: missing value"
            yield plain(path, rule.name, f"invalid value: {rule_path}: {message}")


def path_has_variables(patch: str) -> bool:
    """Return whether the path of an operation contains a variable."""
    operations, _ = operations_of(patch)
    return any(
        find_variables(str(operation.get("path", ""))) for operation in operations
    )


def _without_variables(patch: str) -> str:
    pieces: list[str] = []
    done = 0
    for variable in find_variables(patch):
        pieces += [patch[done : variable.start], _STAND_IN]
        done = variable.end
    return "".join([*pieces, patch[done:]])
