"""Documents are omitted, paths are dropped, and policies are skipped as in upstream.

Upstream first checks a document against its kind's definition. An unknown field drops
the path, any other fault omits the document, and the exit code is 0 in both cases. A
valid document is then checked as a policy; if this check fails, the policy is skipped,
and the exit code is 1. For every constraint of every definition, a document is tested
that violates only this constraint.
"""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.policy.crd.generate import definition
from kyverno_mp.policy.crd.typed_kinds import KYVERNO_KINDS
from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import LATEST_POLICY, Command

LOADED, LEFT_OUT, LOST = "loaded", "left out", "path lost"
SCHEMAS = {
    (kind.kind, f"{kind.group}/{version['name']}"): version["schema"][
        "openAPIV3Schema"
    ]["properties"]["spec"]
    for kind in KYVERNO_KINDS
    if kind.kind not in ("UpdateRequest", "GlobalContextEntry")
    for version in definition(kind)["spec"]["versions"]
}
WRONG: dict[str, list[Json]] = {
    "object": ["text", 1, []],
    "array": ["text", {}, 1],
    "string": [1, True, {}, []],
    "boolean": ["true", "yes", 1, {}],
    "integer": ["1", 1.5, True, []],
}
RIGHT: dict[str, Json] = {"string": "text", "boolean": True, "integer": 1}
Put = Callable[[Json], Json]
Case = tuple[str, Json, str]


def sound(schema: Json) -> Json:
    """Return the smallest document that satisfies the schema."""
    if "enum" in schema:
        return schema["enum"][0]
    wanted = schema.get("type")
    if wanted == "array":
        return [sound(schema["items"])]
    if wanted == "object":
        names = [*schema.get("required", ())]
        names += [schema["oneOf"][0]["required"][0]] if "oneOf" in schema else []
        return {name: sound(schema["properties"][name]) for name in names}
    return RIGHT.get(wanted, {})


def cases(schema: Json, path: str, put: Put) -> Iterator[Case]:
    """Yield documents that differ from a valid one in a single place."""
    if "type" not in schema:
        return
    least = sound(schema)
    yield f"{path}: sound", put(least), LOADED
    for value in WRONG[schema["type"]]:
        yield f"{path}: {value!r}", put(value), LEFT_OUT
    # A map in place of another type has unknown fields, even within a list.
    for value in ({"zzz": 1}, [{"zzz": 1}], [[{"zzz": None}]]):
        if type(value) is not {"object": dict, "array": list}.get(schema["type"]):
            yield f"{path}: {value!r}", put(value), LOST
    yield from bound_cases(schema, path, put)
    if schema["type"] == "array":
        if "type" in schema["items"]:
            yield f"{path}: null item", put([None]), LEFT_OUT
        yield from cases(schema["items"], f"{path}[]", lambda one: put([one]))
    elif "additionalProperties" in schema:
        yield f"{path}: null value", put({"a": None}), LOADED
        inner = schema["additionalProperties"]
        yield from cases(inner, f"{path}.*", lambda one: put({"a": one}))
    elif "properties" in schema:
        yield from record_cases(schema, path, put)


def bound_cases(schema: Json, path: str, put: Put) -> Iterator[Case]:
    if "enum" in schema:
        for value in ("", "nonsense", schema["enum"][0].swapcase() + " "):
            yield f"{path}: {value!r}", put(value), LEFT_OUT
    if "maxLength" in schema:
        yield f"{path}: too long", put("x" * (schema["maxLength"] + 1)), LEFT_OUT
    if "minimum" in schema:
        yield f"{path}: too low", put(schema["minimum"] - 1), LEFT_OUT


def record_cases(schema: Json, path: str, put: Put) -> Iterator[Case]:
    least = sound(schema)
    given = {name: sound(one) for name, one in schema["properties"].items()}
    if not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{path}: unknown field", put({**least, "zzz": 1}), LOST
        yield f"{path}: unknown and null", put({**least, "zzz": None}), LOST
    for name in schema.get("required", ()):
        without = {key: one for key, one in least.items() if key != name}
        yield f"{path}: without {name}", put(without), LEFT_OUT
        yield f"{path}: {name} null", put({**least, name: None}), LEFT_OUT
    if "not" in schema:
        both = {name: given[name] for name in schema["not"]["required"]}
        yield f"{path}: both of not", put({**least, **both}), LEFT_OUT
        nulls = dict.fromkeys(both)
        yield f"{path}: both null", put({**least, **nulls}), LOADED
        empty = {name: type(one)() for name, one in both.items()}
        yield f"{path}: both empty", put({**least, **empty}), LEFT_OUT
    only = [one["required"][0] for one in schema.get("oneOf", ())]
    rest = {key: one for key, one in least.items() if key not in only}
    if only:
        yield f"{path}: none of oneOf", put(rest), LEFT_OUT
        two = {name: given[name] for name in only[:2]}
        yield f"{path}: two of oneOf", put({**rest, **two}), LEFT_OUT
        one_null = {only[0]: given[only[0]], only[1]: None}
        yield f"{path}: one and a null", put({**rest, **one_null}), LOADED
    for name, inner in schema["properties"].items():
        base = rest if name in only else least
        if name not in schema.get("required", ()) and name not in only:
            yield f"{path}.{name}: null", put({**base, name: None}), LOADED

        def place(one: Json, base: Json = base, name: str = name) -> Json:
            return put({**base, name: one})

        yield from cases(inner, f"{path}.{name}", place)


def document(key: tuple[str, str], spec: Json) -> dict[str, Json]:
    kind, version = key
    metadata = {"name": "p"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def outcome(found: PolicySet) -> str:
    if found.lost_paths:
        return LOST
    loaded = (*found.documents, *found.cleanups, *found.exceptions)
    assert bool(loaded) is not bool(found.failed_paths)
    return LOADED if loaded else LEFT_OUT


@pytest.fixture
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Json], str]:
    file = tmp_path_factory.mktemp("border") / "policy.yaml"

    def call(raw: Json) -> str:
        file.write_text(json.dumps(raw))
        return outcome(load_policies([str(file)]))

    return call


DIFFERENT = {json.dumps(schema): key for key, schema in SCHEMAS.items()}
"""Kinds with equal definitions are tested once."""


@pytest.mark.parametrize("key", DIFFERENT.values(), ids="/".join)
def test_every_constraint_of_every_crd(
    load: Callable[[Json], str], key: tuple[str, str]
) -> None:
    schema = SCHEMAS[key]
    wrong = [
        (name, wanted, got)
        for name, spec, wanted in cases(schema, "spec", lambda one: one)
        if (got := load(document(key, deepcopy(spec)))) != wanted
    ]
    assert not wrong, wrong[:20]


CONDITIONS: list[tuple[Json, str]] = [
    (None, LOADED),
    ([], LOADED),
    ({}, LOADED),
    ({"any": None, "all": []}, LOADED),
    ([None], LOADED),
    ([{"key": "a", "operator": "Nonsense", "value": 1}], LOADED),
    ({"any": [{"key": {"a": 1}, "zzz": 1}], "zzz": 2}, LOADED),
    ("text", LOST),
    (1, LOST),
    ([1], LOST),
    ([[]], LOST),
    ({"all": [1]}, LOST),
    ({"any": {}}, LOST),
    ({"any": "text"}, LOST),
    ([{"operator": 1}], LOST),
    ({"all": [{"message": {}}]}, LOST),
]


def _rule(**body: Json) -> Json:
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    return {"rules": [{"name": "r", "match": match, **body}]}


@pytest.mark.parametrize(("conditions", "wanted"), CONDITIONS, ids=str)
def test_conditions_that_go_cannot_decode_lose_the_path(
    load: Callable[[Json], str], conditions: Json, wanted: str
) -> None:
    """The schema does not restrict conditions; Go's decoder does (cli 4)."""
    key = ("ClusterPolicy", "kyverno.io/v1")
    deny = {"deny": {"conditions": conditions}}
    patch = {"patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}}}
    target = {"apiVersion": "v1", "kind": "Pod", "preconditions": conditions}
    for spec in (
        _rule(preconditions=conditions, validate={"pattern": {}}),
        _rule(validate=deny),
        _rule(validate={"foreach": [{"list": "x", **deny}]}),
        _rule(
            validate={"foreach": [{"list": "x", "foreach": [{"list": "y", **deny}]}]}
        ),
        _rule(mutate={"targets": [target], **patch}),
        _rule(verifyImages=[{"validate": deny}]),
    ):
        assert load(document(key, spec)) == wanted
    free = _rule(validate={"pattern": {"preconditions": conditions, **deny}})
    assert load(document(key, free)) == LOADED


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        # The definition rejects the document, so it is omitted.
        ("failureAction: Enforce", "failureAction: nonsense", 0),
        ("failureAction: Enforce", "failureAction: ''", 0),
        ("- name: tagged", "- name: 1", 0),
        ("- name: tagged", f"- name: {'x' * 64}", 0),
        ("resources: {kinds: [Pod]}", "resources: {kinds: Pod}", 0),
        ("resources: {kinds: [Pod]}", "resources: {name: a, names: [a]}", 0),
        ("spec:\n  rules:", "spec:\n  background: 'true'\n  rules:", 0),
        ("spec:\n  rules:", "spec:\n  failurePolicy: Never\n  rules:", 0),
        ("      any:", "      all: []\n      any:", 0),
        ("    validate:", "    context: [{name: a}]\n    validate:", 0),
        # The whole path is dropped.
        ("failureAction: Enforce", "failureAktion: Enforce", 0),
        ("    validate:", "    preconditions: {all: [1]}\n    validate:", 0),
        # Kyverno rejects the policy, so it is skipped.
        ("      pattern:", "      anyPattern: [{a: 1}]\n      pattern:", 1),
        ("    validate:", "    mutate: {targets: [{kind: a}]}\n    validate:", 1),
        ("resources: {kinds: [Pod]}", "subjects: [{kind: Nobody, name: a}]", 1),
        ("spec:\n  rules:", "spec:\n  webhookTimeoutSeconds: 31\n  rules:", 1),
        ("message: A", "message: '{{ nonsense }} A", 1),
        (
            "    validate:",
            "    preconditions: [{key: a, operator: Nonsense}]\n    validate:",
            1,
        ),
    ],
)
def test_omitted_policies_exit_0_and_skipped_ones_1(
    command: Command, policy_file: Path, pods_file: Path, old: str, new: str, code: int
) -> None:
    text = LATEST_POLICY.replace(old, new, 1)
    assert text != LATEST_POLICY
    if "nonsense }}" in new:
        text = text.replace("is required.", "is required.'")
    policy_file.write_text(text)
    done = command("apply", policy_file, "-r", pods_file)
    assert done.code == code, done
    assert ("Policies Skipped" in done.out) is bool(code)
    assert ("policy path skipped" in done.err) is not bool(code)


def test_invalid_list_item_affects_no_other(command: Command, pods_file: Path) -> None:
    """List items are loaded one by one, even an item that is no policy.

    Source: policy/load.go.
    """
    file = pods_file.parent / "list.yaml"
    good = LATEST_POLICY.replace("\n", "\n  ").strip()
    unknown = good.replace("rules:", "ruels:")
    pod = "apiVersion: v1\n  kind: Pod\n  metadata: {name: a}"
    items = "".join(f"- {one}\n" for one in (unknown, pod, good))
    file.write_text(f"apiVersion: v1\nkind: List\nitems:\n{items}")
    done = command("apply", file, "-r", pods_file)
    assert "pass: 1, fail: 1" in done.out
    assert done.err.count("policy path skipped") == 2


def test_cel_policy_rejected_by_its_schema_is_omitted(
    command: Command, pods_file: Path
) -> None:
    file = pods_file.parent / "cel.yaml"
    text = (
        "apiVersion: policies.kyverno.io/v1\nkind: ValidatingPolicy\n"
        "metadata: {name: v}\nspec: {validations: %s}\n"
    )
    file.write_text(text % "[{expression: 1}]")
    done = command("apply", file, "-r", pods_file)
    assert (done.code, "policy path skipped" in done.err) == (0, True)
    file.write_text(text % "[{expression: 'true'}]")
    done = command("apply", file, "-r", pods_file)
    assert (done.code, done.err) == (0, "")
    assert "Applying 1 policy rule(s)" in done.out
