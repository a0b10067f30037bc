"""Derive autogen copies of a MutatingPolicy on Pods for Pod controllers.

Room: compiler. Takes: the spec of a MutatingPolicy. Gives: copies with rewritten
expressions and match constraints. Next: compiler/cel_kinds/mutating_policy.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 7; Kyverno pkg/cel/policies/mpol/autogen.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from kyverno_mp.compiler.autogen.cel import copied_constraints
from kyverno_mp.policy.cel_kinds.admission_policy import Mutation
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicySpec

_MOVED: Final = (
    ("object.spec", "spec"),
    ("Object.spec", "spec"),
    ("object.metadata.labels", "metadata.labels"),
    ("Object.metadata.labels", "metadata.labels"),
    ("object.metadata.annotations", "metadata.annotations"),
    ("Object.metadata.annotations", "metadata.annotations"),
)


def copies_of(spec: MutatingPolicySpec) -> Iterator[tuple[str, MutatingPolicySpec]]:
    """Yield (configuration name, spec) of each copy.

    KYVERNO: JSON patches and variables are copied unchanged.
    """
    wanted = None
    if spec.autogen is not None and spec.autogen.pod_controllers is not None:
        wanted = spec.autogen.pod_controllers.controllers
    for name, constraints, prefix in copied_constraints(spec.match_constraints, wanted):
        if constraints is None:
            # Without constraints the copy would match everything; upstream's process
            # panics.
            continue
        conditions = tuple(
            msgspec.structs.replace(one, expression=_moved(one.expression, prefix))
            for one in spec.match_conditions
        )
        yield (
            name,
            msgspec.structs.replace(
                spec,
                match_constraints=constraints,
                match_conditions=conditions,
                mutations=tuple(_mutation(one, prefix) for one in spec.mutations),
            ),
        )


def _mutation(given: Mutation, prefix: str) -> Mutation:
    body = given.apply_configuration
    if body is None:
        return given
    moved = msgspec.structs.replace(body, expression=_moved(body.expression, prefix))
    return msgspec.structs.replace(given, apply_configuration=moved)


def _moved(text: str, prefix: str) -> str:
    """Replace the paths of the Pod, and nest the constructed object."""
    for path, rest in _MOVED:
        root = path.partition(".")[0]
        text = text.replace(path, f"{root}.{prefix}.{rest}")
    stripped = text.strip()
    if not stripped.startswith("Object{"):
        return text
    content = stripped.removeprefix("Object{")
    end = _closing(content)
    if not end:
        return text
    head, path = "", "Object"
    fields = prefix.split(".")
    for field in fields:
        head += f"{path}{{{field}: "
        path += f".{field}"
    closing = "}" * (len(fields) + 1)
    return f"{head}{path}{{{content[:end]}{closing}{content[end + 1 :]}"


def _closing(content: str) -> int:
    """Return the position of the brace that closes the object, 0 if it is missing.

    KYVERNO: braces within strings are counted, too.
    """
    depth = 1
    for place, char in enumerate(content):
        depth += (char == "{") - (char == "}")
        if not depth:
            return place
    return 0
