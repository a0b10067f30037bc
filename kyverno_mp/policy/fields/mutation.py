"""Declare the bodies of mutate and generate rules.

Room: policy. Takes: nothing. Gives: Mutation, Generation. Next: rules.
Source: docs/behaviour/engine 7; docs/behaviour/controllers 1.2 (Mutation, Generation).
"""

from typing import Literal

from kyverno_mp.policy.fields.conditions import AnyAllConditions
from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.values.jsonvalue import Json


class TargetResourceSpec(Fields, frozen=True):
    """A target of mutate-existing."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    selector: LabelSelector | None = None
    context: tuple[ContextEntry, ...] = ()
    preconditions: Json = None


class ForEachMutation(Fields, frozen=True):
    """One ``foreach`` entry of a mutate rule."""

    list: str = ""
    order: Literal["Ascending", "Descending"] | None = None
    context: tuple[ContextEntry, ...] = ()
    preconditions: AnyAllConditions | None = None
    patch_strategic_merge: Json = None
    patches_json6902: str = ""
    foreach: "tuple[ForEachMutation, ...] | None" = None


class Mutation(Fields, frozen=True):
    """``mutate``; with ``targets``, even if empty, it mutates existing objects."""

    mutate_existing_on_policy_update: bool | None = None
    targets: tuple[TargetResourceSpec, ...] | None = None
    patch_strategic_merge: Json = None
    patches_json6902: str = ""
    foreach: tuple[ForEachMutation, ...] | None = None


class CloneFrom(Fields, frozen=True):
    """The source of a clone."""

    namespace: str = ""
    name: str = ""


class CloneList(Fields, frozen=True):
    """The sources of several clones."""

    namespace: str = ""
    kinds: tuple[str, ...] | None = None
    selector: LabelSelector | None = None


class ForEachGeneration(Fields, frozen=True):
    """One ``foreach`` entry of a generate rule, with a separate target."""

    list: str = ""
    context: tuple[ContextEntry, ...] = ()
    preconditions: AnyAllConditions | None = None
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    data: Json = None
    clone: CloneFrom = CloneFrom()
    clone_list: CloneList = CloneList()


class Generation(Fields, frozen=True):
    """``generate``; at most one of data, clone, cloneList, foreach."""

    generate_existing: bool | None = None
    synchronize: bool = False
    orphan_downstream_on_policy_delete: bool = False
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    data: Json = None
    clone: CloneFrom = CloneFrom()
    clone_list: CloneList = CloneList()
    foreach: tuple[ForEachGeneration, ...] | None = None
