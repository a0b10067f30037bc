"""The policies in force after each change of the policies folder."""

import copy
import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest
import yaml

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.ir.index import part_of
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.leader import loop
from kyverno_mp.leader.compile_cache import (
    CompileCache,
    read_compile_cache,
    write_compile_cache,
)
from kyverno_mp.leader.documents import compiling as compile_module
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.limits import POLICY_RULES_MAX, WATCHED_FILE_BYTES_MAX
from kyverno_mp.policy.cel_kinds.served import SERVED_CEL_KINDS
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.queues import pace
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.publish import Publisher
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder


def policy(name: str, kind: str = "ClusterPolicy", **validate: object) -> str:
    body = validate or {"message": "m", "pattern": {"metadata": {"name": "?*"}}}
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
        "validate": body,
    }
    document = {
        "apiVersion": "kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"validationFailureAction": "Enforce", "rules": [rule]},
    }
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper)) + "---\n"


def exception(name: str, of: str, namespace: str = "ex") -> str:
    document = {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "exceptions": [{"policyName": of, "ruleNames": ["r"]}],
            "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
        },
    }
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper)) + "---\n"


class Shelf:
    """A policy store, and short methods that change it."""

    def __init__(self, honoured: str = "*") -> None:
        self.policy_store = PolicyStore(lambda namespace: honoured in ("*", namespace))

    def write(self, **files: str) -> PolicySet:
        changed = {name: text.encode() for name, text in files.items()}
        return self.policy_store.update(Changes(changed, ()))

    def remove(self, name: str) -> PolicySet:
        return self.policy_store.update(Changes({}, (name,)))


def names(policy_set: PolicySet) -> list[str]:
    return [encoded.key for encoded in policy_set.encoded]


def test_policies_are_ordered_and_have_a_status() -> None:
    policy_set = Shelf().write(x=policy("b") + policy("a"), y=policy("c", "Policy"))
    assert names(policy_set) == ["a", "b", "default/c"]
    status = policy_set.policies[0]
    assert (status.ready, status.rule_count, status.mode) == (True, 1, "enforce")
    assert [rule.name for rule in status.rules] == ["r"]
    assert [change for change, _ in policy_set.changes] == ["created"] * 3


def test_rejected_policy_keeps_its_last_valid_version() -> None:
    shelf = Shelf()
    good = shelf.write(x=policy("a"))
    bad = shelf.write(x=policy("a", patern={}))
    assert bad.encoded == good.encoded
    assert (bad.policies[0].ready, bad.policies[0].code) == (
        False,
        "policy.unknown_field",
    )
    assert "the last valid version stays in force" in bad.policies[0].message
    again = shelf.write(x=policy("a"))
    assert (again.policies[0].ready, again.policies[0].code) == (True, "")
    assert [change for change, _ in again.changes] == ["updated"]


def test_policy_with_a_name_that_nothing_reads_stays_in_force_with_a_warning() -> None:
    """Kyverno 1.18 stored it without a word, so it must not disappear here."""
    policy_set = Shelf().write(x=policy("a", deny={"conditions": {"Anny": []}}))
    status = policy_set.policies[0]
    assert (status.ready, status.code) == (True, "")
    assert "spec.rules[0].validate.deny.conditions.Anny" in status.message


def test_policy_that_was_never_valid_affects_no_other() -> None:
    policy_set = Shelf().write(x=policy("a", patern={}) + policy("b"))
    assert names(policy_set) == ["b"]
    assert [(p.name, p.ready) for p in policy_set.policies] == [
        ("a", False),
        ("b", True),
    ]


@pytest.mark.parametrize("api_version", ["kyverno.io/v1", "policies.kyverno.io/v1"])
@pytest.mark.parametrize("kind", [["ClusterPolicy"], {"a": 1}, 1, None])
def test_document_whose_kind_is_no_text_affects_no_policy(
    kind: object, api_version: str
) -> None:
    odd = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}}
    policy_set = Shelf().write(x=yaml.safe_dump(odd), y=policy("b"))
    assert names(policy_set) == ["b"]
    assert len(policy_set.problems) == 1


@pytest.mark.parametrize("kind", sorted(SERVED_CEL_KINDS))
@pytest.mark.parametrize("metadata", ["a", None, ["a"]])
def test_metadata_that_are_no_object_are_the_authors_error(
    kind: str, metadata: object
) -> None:
    odd = {"apiVersion": "policies.kyverno.io/v1", "kind": kind, "metadata": metadata}
    policy_set = Shelf().write(x=yaml.safe_dump({**odd, "spec": {}}), y=policy("b"))
    assert names(policy_set) == ["b"]
    codes = {one.code for one in policy_set.policies}
    assert codes <= {"", "policy.wrong_type", "policy.required"}
    assert len(codes) > 1


def test_unsupported_rule_is_rejected_by_name() -> None:
    keys = {"keys": {"kms": "k"}}
    manifests = {"attestors": [{"entries": [keys]}]}
    policy_set = Shelf().write(x=policy("a", manifests=manifests))
    assert names(policy_set) == []
    assert "rule r needs validate.manifests" in policy_set.policies[0].message
    assert policy_set.policies[0].code == "leader.unsupported"


TARGET = {"apiVersion": "v1", "kind": "Secret", "name": "s", "namespace": "ns"}


EXISTING = {"mutate": {"targets": [TARGET], "patchStrategicMerge": {"data": {}}}}


@pytest.mark.parametrize(
    ("body", "needed"),
    [
        ({"generate": {**TARGET, "data": {}}}, "generate"),
        (EXISTING, "mutate existing"),
    ],
)
def test_status_names_rules_that_no_process_runs(
    body: dict[str, object], needed: str
) -> None:
    document = yaml.safe_load(policy("a").removesuffix("---\n"))
    rules = document["spec"]["rules"]
    other = {"name": "other", "match": rules[0]["match"], **body}

    rules.append(other)
    policy_set = Shelf().write(x=yaml.safe_dump(document))
    assert names(policy_set) == ["a"]
    (status,) = policy_set.policies
    assert [rule.name for rule in status.rules] == ["r"]
    assert (status.ready, status.rule_count) == (False, 2)
    assert (
        f"rule other needs {needed} (no background pool: KYVERNO_MP_BACKGROUND_WORKERS)"
        in status.message
    )
    assert status.message.endswith("; its other rules are in force")

    document["spec"]["applyRules"] = "One"
    assert names(Shelf().write(x=yaml.safe_dump(document))) == []

    rules[:] = [other]
    policy_set = Shelf().write(x=yaml.safe_dump(document))
    assert names(policy_set) == []
    assert policy_set.policies[0].message.endswith(
        f"rule other needs {needed} (no background pool: KYVERNO_MP_BACKGROUND_WORKERS)"
    )


@pytest.mark.parametrize("body", [{"generate": {**TARGET, "data": {}}}, EXISTING])
def test_background_pool_runs_every_rule(body: dict[str, object]) -> None:
    document = yaml.safe_load(policy("a").removesuffix("---\n"))
    rules = document["spec"]["rules"]
    rules.append({"name": "other", "match": rules[0]["match"], **body})
    changes = Changes({"x": yaml.safe_dump(document).encode()}, ())
    found = PolicyStore(lambda _: True, has_background=True).update(changes)
    (status,) = found.policies
    assert status.ready
    assert [rule.name for rule in status.rules] == ["r", "other"]


def test_failures_of_all_policies_can_be_ignored() -> None:
    """The policies' webhooks call the Ignore path.

    No policy with Fail is evaluated there. See docs/behaviour/controllers 2.5
    (forceFailurePolicyIgnore).
    """
    changes = Changes({"x": policy("a").encode()}, ())
    for forced, expected in ((False, "Fail"), (True, "Ignore")):
        policy_store = PolicyStore(lambda _: True, force_ignore=forced)
        (encoded,) = policy_store.update(changes).encoded
        head = msgspec.msgpack.decode(
            part_of(memoryview(encoded.content), 0), type=PolicyIR
        )
        assert head.failure_policy == expected


def test_status_names_its_version() -> None:
    document = yaml.safe_load(policy("a").removesuffix("---\n"))
    document["metadata"]["generation"] = 3
    shelf = Shelf()
    assert shelf.write(x=yaml.safe_dump(document)).policies[0].generation == 3
    document["metadata"]["generation"] = 4
    document["spec"]["rules"][0]["validate"] = {"patern": {}}
    (status,) = shelf.write(x=yaml.safe_dump(document)).policies
    assert (status.ready, status.generation) == (False, 4)


def test_status_of_a_rejected_version_names_the_active_one() -> None:
    """Webhooks are registered for this version, so its requests must still arrive."""
    shelf = Shelf()
    assert shelf.write(x=policy("a")).policies[0].in_force == ""
    good = yaml.safe_load(policy("a").removesuffix("---\n"))
    bad = copy.deepcopy(good)
    bad["spec"]["rules"][0]["validate"] = {"patern": {}}
    for name in ("first", "second"):
        bad["spec"]["rules"][0]["name"] = name
        (status,) = shelf.write(x=yaml.safe_dump(bad)).policies
        assert json.loads(status.in_force) == good
    assert shelf.write(x=policy("a")).policies[0].in_force == ""
    (fresh,) = Shelf().write(x=yaml.safe_dump(bad)).policies
    assert fresh.in_force == ""


def test_half_written_file_keeps_its_policies() -> None:
    shelf = Shelf()
    shelf.write(x=policy("a"))
    for half in ("", "kind: [", "a: b: c"):
        policy_set = shelf.write(x=half)
        assert names(policy_set) == ["a"]
        assert policy_set.policies[0].ready is True
        assert len(policy_set.problems) == 1
    assert names(shelf.remove("x")) == []


def test_non_policy_document_is_reported() -> None:
    policy_set = Shelf().write(
        x="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
    )
    assert policy_set.problems == ("x, line 1: ConfigMap is not a policy",)
    own = "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingAdmissionPolicy\n"
    policy_set = Shelf().write(x=own + "metadata: {name: a}\n")
    text = "MutatingAdmissionPolicy: the API server evaluates it, not this service"
    assert policy_set.problems == (f"x, line 1: {text}",)
    cleanup = "apiVersion: kyverno.io/v2\nkind: ClusterCleanupPolicy\n"
    spec = "spec: {match: {any: [{resources: {kinds: [Pod]}}]}, schedule: '@daily'}\n"
    (refused,) = Shelf().write(x=cleanup + "metadata: {name: a}\n" + spec).policies
    assert "not read from folders, only in a cluster" in refused.message
    kind = "apiVersion: policies.kyverno.io/v1\nkind: DeletingPolicy\n"
    policy_set = Shelf().write(x=kind + "metadata: {name: a}\n")
    text = "DeletingPolicy: clean-up runs only in a cluster"
    assert policy_set.problems == (f"x, line 1: {text}",)
    kind = "apiVersion: policies.kyverno.io/v1\nkind: OtherPolicy\n"
    policy_set = Shelf().write(x=kind + "metadata: {name: a}\n")
    text = "the server does not evaluate policies.kyverno.io/v1 OtherPolicy"
    assert policy_set.problems == (f"x, line 1: {text}",)


@pytest.mark.parametrize("mode", ["HTTP", "Envoy"])
def test_policies_that_authorize_requests_are_no_policies_of_reviews(mode: str) -> None:
    """A change of the mode takes the policy out of force, and is reported."""
    text = (
        "apiVersion: policies.kyverno.io/v1\nkind: ValidatingPolicy\n"
        "metadata: {name: a}\nspec:\n  matchConstraints: {resourceRules: [{apiGroups:"
        " [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}\n"
        "  validations: [{expression: 'false'}]\n"
    )
    shelf = Shelf()
    (status,) = shelf.write(x=text).policies
    assert status.ready
    changed = shelf.write(x=f"{text}  evaluation: {{mode: {mode}}}\n")
    assert changed.policies == ()
    (problem,) = changed.problems
    assert problem == (
        "x, line 1: the server does not evaluate policies.kyverno.io/v1"
        f" ValidatingPolicy in evaluation mode {mode}"
    )


def test_later_of_two_policies_with_one_name_wins() -> None:
    policy_set = Shelf().write(x=policy("a"), y=policy("a"))
    assert names(policy_set) == ["a"]
    assert policy_set.problems == (
        "y, line 1: overrides ClusterPolicy/a from x, line 1",
    )


def test_exceptions_change_the_named_policies() -> None:
    shelf = Shelf()
    bare = shelf.write(x=policy("a") + policy("b"))
    exempt = shelf.write(y=exception("e", "a"))
    assert exempt.encoded[0] != bare.encoded[0]
    assert exempt.encoded[1] == bare.encoded[1]
    assert exempt.changes == ()
    assert shelf.remove("y").encoded == bare.encoded


def test_exceptions_of_other_namespaces_have_no_effect() -> None:
    shelf = Shelf(honoured="only")
    bare = shelf.write(x=policy("a"))
    policy_set = shelf.write(y=exception("e", "a"))
    assert policy_set.encoded == bare.encoded
    assert "PolicyException ex/e is ignored" in policy_set.problems[0]


def test_only_changed_policies_are_compiled() -> None:
    shelf = Shelf()
    before = shelf.write(x=policy("a"), y=policy("b"))
    after = shelf.write(y=policy("b", message="new", pattern={"kind": "?*"}))
    assert after.encoded[0] is before.encoded[0]
    assert after.encoded[1] != before.encoded[1]


def test_invalid_name_is_rejected() -> None:
    """Names appear in logs, metrics and answers; an API server has validated them."""
    for name in ("b\x1b[31m", "B_b", "b" * 300, "{{ x }}"):
        policy_set = Shelf().write(x=policy(name), y=policy("a"))
        assert names(policy_set) == ["a"]
        assert any("RFC 1123" in p.message for p in policy_set.policies)


def test_too_many_rules_are_rejected_before_compilation() -> None:
    """One policy must not prevent the leader from compiling the others."""
    document = yaml.safe_load(policy("many").removesuffix("---\n"))
    document["spec"]["rules"] *= POLICY_RULES_MAX + 1
    policy_set = Shelf().write(x=json.dumps(document), y=policy("a"))
    assert names(policy_set) == ["a"]
    assert "more than 1000 rules" in policy_set.policies[1].message
    assert policy_set.policies[1].code == "leader.rules"


def test_status_messages_are_truncated() -> None:
    """Every reader of GET /policies receives the status."""
    policy_set = Shelf().write(
        x=policy("a", message="{{ " + "(" * 100_000 + " }}", pattern={"a": "b"})
    )
    assert not policy_set.policies[0].ready
    assert len(policy_set.policies[0].message) < 3000


def test_oversized_file_is_not_read() -> None:
    policy_set = Shelf().write(x="# " + " " * WATCHED_FILE_BYTES_MAX, y=policy("a"))
    assert names(policy_set) == ["a"]
    assert policy_set.problems[0].endswith(
        f" {WATCHED_FILE_BYTES_MAX} [leader.too_large]"
    )


def costly(name: str, count: int = 5) -> str:
    """Return a policy that exceeds its steps."""
    texts = [" || ".join([f"object.a{i}.b == 1"] * 3000) for i in range(count)]
    return policy(name, cel={"expressions": [{"expression": text} for text in texts]})


def test_policy_over_its_budget_is_rejected_and_its_last_version_kept() -> None:
    shelf = Shelf()
    before = shelf.write(x=policy("a"), y=policy("b")).encoded
    policy_set = shelf.write(x=costly("a"))
    assert policy_set.encoded == before
    status = policy_set.policies[0]
    assert (status.ready, status.code) == (False, "policy.too_costly")
    assert "steps" in status.message
    assert "the last valid version stays in force" in status.message
    assert shelf.write(x=policy("a", pattern={"a": "b"})).policies[0].ready


def test_defect_affects_only_its_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Types deeper than the interpreter's stack used to crash every leader."""

    def broken(
        document: ClusterPolicy, exceptions: object, *, verifies: bool, unusable: object
    ) -> CompiledPolicy:
        assert verifies
        if document.metadata.name == "b":
            raise RecursionError
        return compile_policy(document)

    monkeypatch.setattr(compile_module, "compile_policy", broken)
    policy_set = Shelf().write(x=policy("a") + policy("b") + policy("c"))
    assert names(policy_set) == ["a", "c"]
    assert [one.code for one in policy_set.policies] == ["", "leader.defect", ""]


def test_exception_recompiles_only_the_named_policies() -> None:
    shelf = Shelf()
    shelf.write(x=policy("a") + policy("b") + policy("c"))
    assert shelf.policy_store.compiled_count == 3
    shelf.write(e=exception("e", "b"))
    assert shelf.policy_store.compiled_count == 4
    shelf.write(f=exception("f", "nobody"))
    assert shelf.policy_store.compiled_count == 4
    shelf.remove("e")
    assert shelf.policy_store.compiled_count == 5


def test_late_policies_wait_and_small_ones_come_first() -> None:
    shelf = Shelf()
    large = policy("a", pattern={f"k{i}": "v" for i in range(50)})
    changes = Changes({"x": (policy("z", "Policy") + large + policy("b")).encode()}, ())
    policy_set = shelf.policy_store.update(changes, lambda: True)
    assert (names(policy_set), policy_set.waiting) == (["b"], 2)
    assert policy_set.awaits_cluster_wide
    policy_set = shelf.policy_store.update(Changes({}, ()), lambda: True)
    assert (names(policy_set), policy_set.waiting) == (["a", "b"], 1)
    assert not policy_set.awaits_cluster_wide
    policy_set = shelf.policy_store.update(Changes({}, ()), lambda: True)
    assert (names(policy_set), policy_set.waiting) == (["a", "b", "default/z"], 0)
    assert shelf.policy_store.compiled_count == 3


def test_a_late_set_is_published_only_with_all_cluster_wide_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a pod that is ready allows what an administrator's policy forbids."""
    for limit in ("COMPILE_SLICE_S", "COMPILE_FIRST_SLICE_S", "FIRST_PUBLICATION_S"):
        monkeypatch.setattr(loop, limit, -1.0)
    monkeypatch.setattr(pace, "_SLICE_S_MAX", -1.0)
    folder = tmp_path / "policies"
    for path in (folder, tmp_path / loop.PAGES, tmp_path / loop.SNAPSHOT):
        path.mkdir(mode=0o700)
    documents = policy("y", "Policy") + policy("z", "Policy") + policy("a")
    (folder / "all.yaml").write_text(documents + policy("b"))
    page = Page.claim(tmp_path / loop.PAGES, "leader")
    leader = loop.Leader(
        Settings(policies_dir=str(folder)),
        tmp_path,
        Publisher(tmp_path / loop.SNAPSHOT),
        Recorder(page, 1000),
    )
    are_published: list[bool] = []
    while leader.has_pending or not are_published:
        leader.step()
        are_published.append(leader.generation > 0)
    assert are_published[:2] == [False, True]


def test_waiting_policy_keeps_its_last_version_active() -> None:
    shelf = Shelf()
    first = shelf.write(x=policy("a") + policy("b")).encoded
    changed = policy("a", pattern={"a": "1"}) + policy("b", pattern={"b": "1"})
    policy_set = shelf.policy_store.update(
        Changes({"x": changed.encode()}, ()), lambda: True
    )
    assert policy_set.waiting == 1
    assert [a == b for a, b in zip(policy_set.encoded, first, strict=True)] == [
        False,
        True,
    ]


def test_heartbeat_continues_during_costly_policies() -> None:
    beats: list[int] = []
    policy_store = PolicyStore(lambda _: True, on_progress=lambda: beats.append(1))
    some = "".join(policy(f"p{i}") for i in range(10))
    policy_store.update(Changes({"x": some.encode()}, ()))
    assert len(beats) >= 10
    beats.clear()
    policy_store.update(Changes({"y": costly("c").encode()}, ()))
    assert len(beats) >= 5


def test_costly_results_are_kept_for_the_next_leader(tmp_path: Path) -> None:
    """Refusals are also kept; cheap policies are compiled again."""
    tmp_path.chmod(0o700)
    middle = policy("m", pattern={f"k{i}": "a|b|c|d|e|f" for i in range(300)})
    changes = Changes({"x": (middle + costly("c") + policy("p")).encode()}, ())
    first = PolicyStore(lambda _: True, cache=read_compile_cache(tmp_path))
    before = first.update(changes)
    assert first.compiled_count == 3
    write_compile_cache(tmp_path, first.costly_outcomes())
    second = PolicyStore(lambda _: True, cache=read_compile_cache(tmp_path))
    after = second.update(changes)
    assert (after.encoded, after.policies) == (before.encoded, before.policies)
    assert second.compiled_count == 1
    assert second.costly_outcomes() == first.costly_outcomes()


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_corrupt_result_file_costs_only_time(
    tmp_path: Path, content: bytes | None
) -> None:
    tmp_path.chmod(0o700)
    write_compile_cache(tmp_path, {b"0123456789abcdef": b"no message"})
    if content is not None:
        (tmp_path / "compiled.segment").write_bytes(content)
    policy_store = PolicyStore(lambda _: True, cache=read_compile_cache(tmp_path))
    assert names(policy_store.update(Changes({"x": policy("a").encode()}, ()))) == ["a"]
    assert policy_store.compiled_count == 1


def test_clones_of_cluster_wide_kinds_come_into_force() -> None:
    """The leader does not know the scopes; the review of the policy did."""
    kinds = ["rbac.authorization.k8s.io/v1/ClusterRole"]
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Namespace"]}}]},
        "generate": {"cloneList": {"kinds": kinds}},
    }
    document = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "a"},
        "spec": {"rules": [rule]},
    }
    policies = PolicyStore(lambda _namespace: True, has_background=True)
    changed = {"x": yaml.safe_dump(document).encode()}
    status = policies.update(Changes(changed, ())).policies[0]
    assert (status.ready, status.message) == (True, "Ready")


def test_status_says_that_a_policy_for_payloads_concerns_no_request() -> None:
    document = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": "a"},
        "spec": {
            "evaluation": {"mode": "JSON"},
            "validations": [{"expression": "object.a == 1"}],
        },
    }
    changed = {"x": yaml.safe_dump(document).encode()}
    policies = PolicyStore(lambda _namespace: True)
    status = policies.update(Changes(changed, ())).policies[0]
    assert status.ready
    assert "no request to the API server" in status.message


def test_long_expressions_of_earlier_policies_are_not_kept() -> None:
    """They cost few steps, so a tenant could store thousands of them."""
    shelf = Shelf()
    # What costly policies are compiled to has a bound of its own.
    cache = CompileCache(bytes_max=0)
    shelf.policy_store = PolicyStore(lambda _namespace: True, cache=cache)
    size = 60_000

    def write(number: int) -> None:
        query = f"request.object.metadata.name || '{number}{'x' * size}'"
        condition = {
            "key": f"{{{{ {query} }}}}",
            "operator": "Equals",
            "value": "a",
        }
        deny = {"conditions": {"any": [condition]}}
        policy_set = shelf.write(f=policy("p", deny=deny))
        assert policy_set.policies[0].message.startswith("Ready")

    write(0)
    tracemalloc.start()
    try:
        for number in range(1, 40):
            write(number)
        assert tracemalloc.get_traced_memory()[0] < 10 * size
    finally:
        tracemalloc.stop()
