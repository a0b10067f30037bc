"""Compare generated objects with stored ones, by the parts that rules determine.

Room: background. Takes: objects as wanted and as stored. Gives: replacements, digests.
Next: background/objects/downstream.py, background/generate/preview.py.
Source: docs/behaviour/controllers 5.4 (table).
"""

import hashlib
from typing import Final

import msgspec

from kyverno_mp.kube.apply import key_of
from kyverno_mp.kube.resource import Resource
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same

OF_THE_SERVER: Final = (
    "uid",
    "selfLink",
    "creationTimestamp",
    "managedFields",
    "resourceVersion",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_OF_NO_OBJECT: Final = "1"
_ABSENT: Final = object()
_OF_OTHERS: Final = ("finalizers", "ownerReferences")
"""Fields set by other controllers; an update keeps them unless the rule sets them."""


def over(live: Json, raw: Json) -> Json:
    """Return the new version of a live object, with its resourceVersion and uid."""
    metadata = dict(raw["metadata"])
    for name in (*_OF_OTHERS, "resourceVersion", "uid"):
        if name in live["metadata"]:
            metadata.setdefault(name, live["metadata"][name])
    return {**raw, "metadata": metadata}


def at_version(live: Json | None, raw: Json) -> Json:
    """Return what to apply server-side, for a live object or for none.

    K8S: the API server rejects it with a conflict if the object has another version or
    uid. It ignores the version of an object that it creates, and no stored object has
    version 1, so the content for no live object is rejected if an object exists. A POST
    would reject that, too, but its fields would belong to an update: later applies
    would not remove them. Neither field counts as applied, so neither gets an owner.
    """
    preconditions = {"resourceVersion": _OF_NO_OBJECT}
    if live is not None:
        preconditions = {
            name: live["metadata"][name] for name in ("resourceVersion", "uid")
        }
    return {**raw, "metadata": {**raw["metadata"], **preconditions}}


def bare(raw: Json, determined: Json) -> Json:
    """Return the parts of an object that a rule determines."""
    metadata = {
        name: value
        for name, value in raw["metadata"].items()
        if name not in OF_THE_SERVER and value not in ({}, None)
    }
    rest = {
        name: value
        for name, value in raw.items()
        if name not in ("metadata", "apiVersion", "kind")
        and (name != "status" or "status" in determined)
    }
    return {**rest, "metadata": metadata}


def has_same_content(live: Json, after: Json, determined: Json) -> bool:
    """Return whether two objects are equal in the parts that a rule determines."""
    return same(bare(live, determined), bare(after, determined))


def is_applied(live: Json, raw: Json, manager: str) -> bool:
    """Return whether applying an object again would change nothing.

    K8S: ``managedFields`` has the fields of the last apply of each manager. They must
    be the object's fields, because an apply also removes those it no longer has, and
    the stored values must be its values. In doubt, e.g. for a list element that is
    identified by a default value, the answer is no.
    """
    entries = [
        entry
        for entry in live["metadata"].get("managedFields") or ()
        if (entry.get("manager"), entry.get("operation")) == (manager, "Apply")
        and not entry.get("subresource")
    ]
    if len(entries) != 1 or entries[0].get("apiVersion") != raw["apiVersion"]:
        return False
    applied = {
        name: value for name, value in raw.items() if name not in ("apiVersion", "kind")
    }
    metadata = {
        name: value
        for name, value in raw["metadata"].items()
        if name not in (*OF_THE_SERVER, "name", "namespace")
    }
    applied.pop("metadata")
    if metadata:
        applied["metadata"] = metadata
    return _is_owned(entries[0].get("fieldsV1") or {}, applied, live)


def _is_owned(fields: Json, applied: Json, live: Json) -> bool:
    """Return whether a manager's fields are those of a value, and have its content."""
    parts = {key: below for key, below in fields.items() if key != "."}
    if not parts:
        return same(applied, live)
    if type(applied) is not type(live) or type(applied) not in (dict, list):
        return False
    if len(parts) != len(applied):
        return False
    return all(
        (field := _part(key, applied)) is not _ABSENT
        and (stored := _part(key, live)) is not _ABSENT
        and _is_owned(below, field, stored)
        for key, below in parts.items()
    )


def _part(key: str, value: Json) -> Json:
    """Return the part of an object or a list that a key of ``fieldsV1`` names."""
    form, _, part_value = key.partition(":")
    if form == "f" and type(value) is dict:
        return value.get(part_value, _ABSENT)
    if form not in ("k", "v") or type(value) is not list:
        return _ABSENT
    key_fields = msgspec.json.decode(part_value)
    for item in value:
        if form == "v" and same(item, key_fields):
            return item
        if form == "k" and type(item) is dict and key_fields.items() <= item.items():
            return item
    return _ABSENT


def digest(raw: Json) -> bytes:
    """Return a hash of the content."""
    return hashlib.blake2b(
        msgspec.json.encode(raw, order="sorted"), digest_size=16
    ).digest()


def version_of(raw: Json) -> str:
    """Return the resource version, "" if there is none."""
    return str((raw.get("metadata") or {}).get("resourceVersion") or "")


def last_manager(raw: Json) -> str:
    """Return the field manager that last changed an object, "" if unknown."""
    entries = (raw.get("metadata") or {}).get("managedFields") or ()
    newest: Json = max(
        entries, key=lambda entry: str(entry.get("time") or ""), default={}
    )
    return str(newest.get("manager") or "")


def shown(resource: Resource, raw: Json) -> str:
    """Return the name of an object for messages."""
    return "/".join((resource.kind, *key_of(raw)))
