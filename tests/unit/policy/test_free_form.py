"""Free-form blocks are read with the names that Go's encoding/json would find in them.

A name in another case that is skipped makes a condition vacuous: a denial passes.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.policy.crd.typed_kinds import KYVERNO_KINDS
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import Decoded, examine

_CONDITION = {"key": "{{ x }}", "operator": "Equals", "value": {"Any": 1}}
_ANY_ALL = {"any": [{**_CONDITION, "message": "m"}], "all": [_CONDITION]}
_DENY = {"conditions": _ANY_ALL}
_FOREACH = {
    "list": "request.object.spec.containers",
    "elementScope": False,
    "context": [{"name": "n", "variable": {"value": {"Key": 1}, "jmesPath": "a"}}],
    "preconditions": _ANY_ALL,
    "deny": _DENY,
}
_PATCHES = {
    "list": "request.object.spec.containers",
    "order": "Ascending",
    "preconditions": _ANY_ALL,
    "patchStrategicMerge": {"Metadata": {"Labels": {"A": "b"}}},
}
_ATTESTORS = {"count": 1, "entries": [{"keys": {"publicKeys": "k"}, "repository": "r"}]}
_DATA_NAMES = frozenset({"value", "patchStrategicMerge"})
"""Fields whose content has the author's own names."""
_SETS = [{"entries": [{"attestor": _ATTESTORS}]}]
_IMAGES = {
    "imageReferences": ["*"],
    "attestors": _SETS,
    "attestations": [{"type": "t", "attestors": _SETS}],
    "validate": {"deny": _DENY},
}
_MATCH = {"any": [{"resources": {"kinds": ["Pod"]}}]}
PLACES: dict[str, tuple[dict[str, Any], Any]] = {
    "preconditions": ({"preconditions": "*"}, _ANY_ALL),
    "preconditions, the deprecated list": ({"preconditions": "*"}, [_CONDITION]),
    "deny": ({"validate": {"deny": {"conditions": "*"}}}, _ANY_ALL),
    "deny in foreach": (
        {"validate": {"foreach": [{"list": "x", "deny": {"conditions": "*"}}]}},
        _ANY_ALL,
    ),
    "foreach in foreach": (
        {"validate": {"foreach": [{"list": "x", "foreach": "*"}]}},
        [{**_FOREACH, "foreach": [_FOREACH]}],
    ),
    "targets": (
        {"mutate": {"targets": [{"kind": "Pod", "preconditions": "*"}]}},
        _ANY_ALL,
    ),
    "foreach in foreach of a mutation": (
        {"mutate": {"foreach": [{"list": "x", "foreach": "*"}]}},
        [{**_PATCHES, "foreach": [_PATCHES]}],
    ),
    "deny of images": (
        {"verifyImages": [{"validate": {"deny": {"conditions": "*"}}}]},
        _ANY_ALL,
    ),
    "attestor": (
        {"verifyImages": [{"attestors": [{"entries": [{"attestor": "*"}]}]}]},
        {"entries": [{"attestor": _ATTESTORS}]},
    ),
    "attestor of an attestation": (
        {
            "verifyImages": [
                {"attestations": [{"attestors": [{"entries": [{"attestor": "*"}]}]}]}
            ]
        },
        _ATTESTORS,
    ),
    "attestor of manifests": (
        {"validate": {"manifests": {"attestors": [{"entries": [{"attestor": "*"}]}]}}},
        _ATTESTORS,
    ),
}
"""Each free-form block: a rule with a star in its place, and the block."""


def _filled(template: Any, block: Any) -> Any:
    if template == "*":
        return block
    if isinstance(template, dict):
        return {name: _filled(each, block) for name, each in template.items()}
    if isinstance(template, list):
        return [_filled(each, block) for each in template]
    return template


def _policy(rule: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{"name": "r", "match": _MATCH, **rule}]},
    }


def _recased(block: Any, chance: random.Random) -> Any:
    """Return the block with names of fields in another case; data stays."""
    if isinstance(block, list):
        return [_recased(each, chance) for each in block]
    if not isinstance(block, dict):
        return block
    found = {}
    for name, each in block.items():
        written = "".join(chance.choice((c.upper(), c.lower())) for c in name)
        found[written] = each if name in _DATA_NAMES else _recased(each, chance)
    return found


def _read(rule: dict[str, Any]) -> Decoded:
    decoded = examine(_policy(rule))
    assert not decoded.problems
    return decoded


@pytest.mark.parametrize("place", PLACES)
def test_names_in_any_case_are_the_declared_names(place: str) -> None:
    """A policy with ``Any`` or ``KEY`` is the policy with ``any`` and ``key``."""
    template, block = PLACES[place]
    wanted = _read(_filled(template, block))
    for seed in range(20):
        chance = random.Random(seed)
        decoded = _read(_filled(template, _recased(block, chance)))
        assert decoded.document == wanted.document
        assert decoded.ignored == ()


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_name_is_reported_and_not_read(place: str) -> None:
    """A stored policy keeps its meaning; each name without effect is told."""
    template, block = PLACES[place]
    inner = block[0] if isinstance(block, list) else block
    wanted = _read(_filled(template, block))
    changed = {**inner, "Anny": []}
    decoded = _read(
        _filled(template, [changed, *block[1:]] if block is not inner else changed)
    )
    assert decoded.document == wanted.document
    assert len(decoded.ignored) == 1
    assert decoded.ignored[0].code == "policy.ignored_name"
    assert decoded.ignored[0].path.endswith(".Anny")
    assert '"Anny"' in str(decoded.ignored[0])


def test_the_first_conditions_of_a_foreach_have_exact_names() -> None:
    """Upstream decodes them with the CRD's type, so that ``Any`` has no effect."""
    rule = {"validate": {"foreach": [{"list": "x", "preconditions": {"Any": []}}]}}
    decoded = _read(rule)
    assert isinstance(decoded.document, ClusterPolicy)
    validate = decoded.document.spec.rules[0].validate
    assert validate is not None
    assert validate.foreach is not None
    conditions = validate.foreach[0].preconditions
    assert conditions is not None
    assert conditions.any is None
    assert [one.path for one in decoded.ignored] == [
        "spec.rules[0].validate.foreach[0].preconditions.Any"
    ]


def _conditions(block: Any) -> Any:
    document = _read({"preconditions": block}).document
    assert isinstance(document, ClusterPolicy)
    return document.spec.rules[0].preconditions


def test_the_last_of_two_spellings_wins() -> None:
    """GO: a map is written with sorted names, so the declared name is the last one."""
    twice = [{"Key": "a", "key": "b", "Operator": "Equals", "Value": 1, "value": None}]
    assert _conditions(twice) == [{"key": "b", "operator": "Equals", "value": None}]
    # A later list is decoded into the elements of the earlier one.
    lists = {"ALL": [{"key": "a", "message": "m"}], "all": [{"key": "b"}]}
    assert _conditions(lists) == {"all": [{"key": "b", "message": "m"}]}


def test_letters_fold_one_by_one_as_in_go() -> None:
    """The Kelvin sign is a k, the long s is an s; a letter that folds to two is not."""
    assert _conditions([{"\N{KELVIN SIGN}ey": "a"}]) == [{"key": "a"}]
    assert _conditions([{"me\N{LATIN SMALL LETTER LONG S}sage": "m"}]) == [
        {"message": "m"}
    ]
    assert _conditions([{"me\N{LATIN SMALL LETTER SHARP S}age": "m"}]) == [{}]


_READ_HERE = frozenset({"preconditions", "conditions", "foreach", "attestor"})
_DATA = frozenset(
    {
        "anyPattern",
        "assert",
        "data",
        "default",
        "key",
        "object",
        "oldObject",
        "options",
        "patchStrategicMerge",
        "pattern",
        "value",
    }
)


def _free_fields(schema: dict[str, Any]) -> Iterator[str]:
    for name, each in (schema.get("properties") or {}).items():
        if each.get("x-kubernetes-preserve-unknown-fields"):
            yield name
        yield from _free_fields(each)
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from _free_fields(schema[inner])


def test_every_free_form_field_is_data_or_is_read_here() -> None:
    """A new free-form field must be read by names, or be known as data."""
    found = set()
    for kind in KYVERNO_KINDS:
        for version in kind.versions:
            for each in dict(version.all_fields()).values():
                found |= set(_free_fields({"properties": {"x": each}}))
    assert found - {"x"} <= _DATA | _READ_HERE
    assert found >= _READ_HERE
