"""Detect by labels that an admission changes a clone source or a generated object.

Room: program. Takes: an allowed Request. Gives: Change, which webhook/triggers records.
Next: webhook/review/validating.py.
Source: docs/behaviour/controllers 5.2 (row 3), 5.5.

The old object's labels are used, so an edit that removes them is detected, too. The
background pool checks whether the rule synchronises.
"""

from typing import Final

import msgspec

from kyverno_mp.program.generate.labels import (
    CLONE_SOURCE,
    Origin,
    TriggerIdentity,
    origin_of,
    trigger_identity,
)
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import labels_of
from kyverno_mp.values.patches.json_equal import same

SOURCE: Final = "source"
DOWNSTREAM: Final = "downstream"
_OPERATIONS: Final = frozenset({"UPDATE", "DELETE"})
_OF_WRITES: Final = ("managedFields", "resourceVersion", "generation")


class Change(msgspec.Struct, frozen=True):
    """A change of a clone source or a generated object; ``role``: SOURCE or DOWNSTREAM.

    ``origin`` and ``trigger`` describe a generated object; None for a source.
    """

    role: str
    origin: Origin | None = None
    trigger: TriggerIdentity | None = None


def change_of(request: Request, background_user: str) -> Change | None:
    """Return the change; None if the object is neither a source nor generated.

    Writes by the pool itself are ignored, so it never triggers itself.
    """
    if request.operation not in _OPERATIONS or request.subresource:
        return None
    if request.username == background_user:
        return None
    change = _labelled(labels_of(metadata_of(request.old_object).get("labels")))
    if change is None or (request.object and _unchanged(request)):
        return None
    return change


def _labelled(labels: dict[str, str]) -> Change | None:
    origin = origin_of(labels)
    if origin is not None:
        # KYVERNO: a generated object that is also a source counts as generated only.
        trigger = trigger_identity(labels)
        return None if trigger is None else Change(DOWNSTREAM, origin, trigger)
    return Change(SOURCE) if CLONE_SOURCE in labels else None


def _unchanged(request: Request) -> bool:
    return same(_content(request.old_object), _content(request.object))


def _content(raw: dict[str, Json]) -> dict[str, Json]:
    metadata = {
        name: value
        for name, value in metadata_of(raw).items()
        if name not in _OF_WRITES
    }
    return {**raw, "metadata": metadata}
