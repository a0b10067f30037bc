"""``generate`` previews the actions of generate rules, with a small API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import User
from tests.unit.background.generating_world import held
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    SECRETS,
    new_cluster,
    policy,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.cli.conftest import Command
from tests.unit.kube.fake_api import FakeApi, running

Json = Any
_VALUE = "{{request.object.metadata.annotations.value}}"
_WRITES = "^(DELETE|POST|PATCH|PUT)"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApi]:
    """Serve a cluster, and name it in KUBECONFIG."""
    with running() as server:
        named = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps({**named, "current-context": "x"}))
        monkeypatch.setenv("KUBECONFIG", str(file))
        new_cluster(server)
        for name in ("a", "b"):
            server.put(f"/api/v1/namespaces/{name}", apiVersion="v1", kind="Namespace")
        yield server


def _data(text: str = _VALUE) -> Json:
    return {"data": {"from": text}}


def _trigger(user: User, name: str) -> None:
    user.create(
        f"{SECRETS.format('a')}/{name}",
        apiVersion="v1",
        kind="Secret",
        metadata={"labels": MATCHED, "annotations": {"value": "1"}},
    )


@pytest.fixture
def cluster(api: FakeApi, tmp_path: Path) -> FakeApi:
    """Create the state after some unnoticed changes.

    The trigger ``new`` has no object, the object of ``edited`` differs, ``gone`` is
    deleted, and ``same`` has its desired object.
    """
    user = User(api, tmp_path / "journals")
    policy(api, rule(data=_data()))
    with term(api) as one:
        one.settle()
        for name in ("edited", "gone", "same"):
            _trigger(user, name)
        one.settle()
    out = f"{CONFIG_MAPS.format('a')}/out-edited"
    api.put(out, **{**(stored(api, out) or {}), "data": {"by": "hand"}})
    api.remove(f"{SECRETS.format('a')}/gone")
    _trigger(user, "new")
    user.close()
    api.requests.clear()
    return api


def _sent(api: FakeApi) -> int:
    """Count the requests that write an object."""
    return api.count(_WRITES) - api.count(r"dryRun=All")


def test_cluster_policy_is_shown_as_a_table(cluster: FakeApi, command: Command) -> None:
    """Otherwise, users could not preview the actions of a policy."""
    before = dict(cluster.objects)
    done = command("generate", "--cluster", "p")
    assert (done.code, done.err) == (0, "")
    table, _, rest = done.out.partition("\n\n")
    header, *lines = [line.split() for line in table.splitlines()]
    assert header == [
        "ACTION",
        "POLICY",
        "RULE",
        "KIND",
        "NAMESPACE",
        "NAME",
        "TRIGGER",
    ]
    assert sorted(line[:6] for line in lines) == [
        ["create", "p", "r", "ConfigMap", "a", "out-new"],
        ["delete", "p", "r", "ConfigMap", "a", "out-gone"],
        ["update", "p", "r", "ConfigMap", "a", "out-edited"],
    ]
    assert "--- ConfigMap/a/out-edited (now)" in rest
    assert "-  by: hand" in rest
    assert "+  from: '1'" in rest
    summary = rest.splitlines()[-1]
    assert summary.startswith("p: 1 to create, 1 to update, 1 to delete, 1 unchanged")
    assert summary.endswith("created when each trigger changes, by r")
    assert _sent(cluster) == 0
    assert cluster.objects == before


def test_pool_generates_the_objects_shown(
    cluster: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, the preview would differ from the service's actions."""
    done = command("generate", "--cluster", "p", "-o", "json")
    [shown] = json.loads(done.out)["policies"]
    user = User(cluster, tmp_path / "journals")
    with term(cluster) as one:
        one.settle()
        for name in ("edited", "new", "same"):
            path = f"{SECRETS.format('a')}/{name}"
            user.update(path, metadata={"annotations": {"value": "1", "a": "b"}})
        one.pass_s(4)
    user.close()
    for change in shown["changes"]:
        found = stored(cluster, f"{CONFIG_MAPS.format('a')}/{change['name']}") or {}
        if change["action"] != "delete":
            assert found["data"] == change["after"]["data"]
    again = command("generate", "--cluster", "p", "-o", "json")
    [left] = json.loads(again.out)["policies"]
    assert [one["action"] for one in left["changes"]] == ["delete"]
    assert left["unchanged"] == 3


def test_file_without_a_rule(
    cluster: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, deletions due to a removed rule could not be previewed."""
    raw = dict(policy(cluster, rule(data=_data())))
    other = rule("other", sync=False, data=_data("2"), generateExisting=True)
    other["generate"]["name"] = "other-{{request.object.metadata.name}}"
    raw["spec"] = {"rules": [other]}
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(raw))
    done = command("generate", "--cluster", str(file), "-o", "json")
    assert done.code == 0
    [shown] = json.loads(done.out)["policies"]
    changes = sorted((one["action"], one["name"]) for one in shown["changes"])
    assert changes == [
        ("create", "other-edited"),
        ("create", "other-new"),
        ("create", "other-same"),
        ("delete", "out-edited"),
        ("delete", "out-gone"),
        ("delete", "out-same"),
    ]
    assert _sent(cluster) == 0


def test_values_of_secrets_are_redacted(api: FakeApi, command: Command) -> None:
    """Otherwise, a terminal's log would contain secret values."""
    source = {"data": {"new": "bmV3", "same": "c2FtZQ=="}}
    api.put(f"{SECRETS.format('b')}/source", apiVersion="v1", kind="Secret", **source)
    made = rule(clone={"namespace": "b", "name": "source"})
    made["generate"] |= {"kind": "Secret", "name": "copy"}
    made["match"]["any"][0]["resources"]["kinds"] = ["ConfigMap"]
    policy(api, made)
    trigger = f"{CONFIG_MAPS.format('a')}/t"
    api.put(trigger, apiVersion="v1", kind="ConfigMap", metadata={"labels": MATCHED})
    old = {"data": {"old": "b2xk", "same": "c2FtZQ=="}}
    api.put(f"{SECRETS.format('a')}/copy", apiVersion="v1", kind="Secret", **old)
    for output in ("table", "json"):
        done = command("generate", "--cluster", "p", "--output", output)
        assert done.code == 0
        assert "***" in done.out
        assert not {"bmV3", "b2xk", "c2FtZQ=="} & set(done.out.split())
        for text in ("bmV3", "b2xk", "c2FtZQ=="):
            assert text not in done.out


def test_undecidable_objects_are_reported(api: FakeApi, command: Command) -> None:
    """Otherwise, a pending object would be missing without a message."""
    policy(api, rule(clone={"namespace": "b", "name": "absent"}))
    metadata = {"labels": MATCHED}
    path = f"{SECRETS.format('a')}/t"
    api.put(path, apiVersion="v1", kind="Secret", metadata=metadata)
    done = command("generate", "--cluster", "p")
    assert done.code == 1
    assert "r, Secret/a/t: source resource" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["generate", "nowhere"], 1, "give --cluster"),
        (["generate", "--cluster", "nowhere"], 1, "no such file, and not in the"),
        (["generate", "--cluster", "a/nowhere"], 1, "Policy a/nowhere"),
        (["generate", "--cluster"], 1, "Missing argument"),
    ],
)
def test_invalid_arguments(
    api: FakeApi, command: Command, arguments: list[str], code: int, text: str
) -> None:
    assert api is not None
    done = command(*arguments)
    assert done.code == code
    assert text in done.err


def test_unlistable_kind(cluster: FakeApi, command: Command) -> None:
    """Otherwise, nothing would be shown although most of it is known."""
    cluster.fault(r"GET /api/v1/configmaps\?", *[403] * 100)
    done = command("generate", "--cluster", "p", "-o", "json")
    assert done.code == 1
    [shown] = json.loads(done.out)["policies"]
    assert shown["problems"]
    assert any("HTTP 403" in one for one in shown["problems"])


DATA = """generator.apply(object.metadata.namespace, [{
  "apiVersion": dyn("v1"), "kind": dyn("ConfigMap"),
  "metadata": dyn({"name": "out-" + object.metadata.name}),
  "data": dyn({"from": object.metadata.annotations["value"]})}])"""
CEL = "/apis/policies.kyverno.io/v1beta1"


def _cel_policy(
    api: FakeApi, *, namespace: str = "", existing: bool = False, text: str = DATA
) -> Json:
    """Store a policy on labelled Secrets that generates a ConfigMap beside each."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["secrets"],
    }
    selector = {"matchLabels": MATCHED}
    base = f"{CEL}/namespaces/{namespace}/namespaced" if namespace else f"{CEL}/"
    return api.put(
        f"{base}generatingpolicies/g",
        apiVersion="policies.kyverno.io/v1beta1",
        kind="NamespacedGeneratingPolicy" if namespace else "GeneratingPolicy",
        metadata={"generation": 1 + existing},
        spec={
            "matchConstraints": {"resourceRules": [rule], "objectSelector": selector},
            "generate": [{"expression": text}],
            "evaluation": {
                "synchronize": {"enabled": True},
                "generateExisting": {"enabled": existing},
            },
        },
    )


@pytest.fixture
def in_cel(api: FakeApi, tmp_path: Path) -> FakeApi:
    """Create the state of ``cluster`` with a GeneratingPolicy."""
    _cel_policy(api, existing=True)
    for name in ("edited", "gone", "same"):
        trigger(api, name)
    with held(api) as one:
        one.settle()
    _cel_policy(api)
    out = f"{CONFIG_MAPS.format('a')}/out-edited"
    api.put(out, **{**(stored(api, out) or {}), "data": {"by": "hand"}})
    api.remove(f"{SECRETS.format('a')}/gone")
    trigger(api, "new")
    api.requests.clear()
    return api


def test_generating_policy_is_shown_as_a_table(
    in_cel: FakeApi, command: Command
) -> None:
    """Otherwise, policies in CEL would be skipped without a message."""
    before = dict(in_cel.objects)
    done = command("generate", "--cluster", "g")
    assert (done.code, done.err) == (0, "")
    table, _, rest = done.out.partition("\n\n")
    _, *lines = [line.split() for line in table.splitlines()]
    assert sorted(lines) == [
        ["create", "g", "g", "ConfigMap", "a", "out-new", "Secret/a/new"],
        ["delete", "g", "g", "ConfigMap", "a", "out-gone", "Secret/a/gone"],
        ["update", "g", "g", "ConfigMap", "a", "out-edited", "Secret/a/edited"],
    ]
    assert "--- ConfigMap/a/out-edited (now)" in rest
    assert "-  by: hand" in rest
    assert "+  from: '1'" in rest
    summary = rest.splitlines()[-1]
    assert summary.startswith("g: 1 to create, 1 to update, 1 to delete, 1 unchanged")
    assert summary.endswith("created when each trigger changes, by g")
    assert _sent(in_cel) == 0
    assert in_cel.objects == before


def test_pool_generates_the_objects_shown_for_a_generating_policy(
    in_cel: FakeApi, command: Command
) -> None:
    """Otherwise, the preview would differ from the service's actions."""
    done = command("generate", "--cluster", "g", "-o", "json")
    [shown] = json.loads(done.out)["policies"]
    assert (shown["kind"], shown["unchanged"]) == ("GeneratingPolicy", 1)
    _cel_policy(in_cel, existing=True)
    with held(in_cel) as one:
        one.settle()
    for change in shown["changes"]:
        found = stored(in_cel, f"{CONFIG_MAPS.format('a')}/{change['name']}") or {}
        after = change["after"]
        assert found.get("data") == (None if after is None else after["data"])
    again = command("generate", "--cluster", "g", "-o", "json")
    [left] = json.loads(again.out)["policies"]
    assert (left["changes"], left["unchanged"]) == ([], 3)


def test_generating_policy_file_that_matches_less(
    in_cel: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, deletions by a narrower policy could not be previewed."""
    raw = dict(_cel_policy(in_cel))
    raw["spec"]["matchConditions"] = [
        {"name": "same", "expression": "object.metadata.name == 'same'"}
    ]
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(raw))
    done = command("generate", "--cluster", str(file), "-o", "json")
    assert (done.code, done.err) == (0, "")
    [shown] = json.loads(done.out)["policies"]
    changes = sorted((one["action"], one["name"]) for one in shown["changes"])
    assert changes == [("delete", "out-edited"), ("delete", "out-gone")]
    assert _sent(in_cel) == 0


def test_posts_and_failures_of_expressions(in_cel: FakeApi, command: Command) -> None:
    """Otherwise, a preview would create objects or hide evaluation errors."""
    posts = (
        "resource.post('v1', 'configmaps', 'a',"
        " {'metadata': {'name': 'made'}}).metadata.nothing == 'x'"
    )
    _cel_policy(in_cel, text=posts)
    done = command("generate", "--cluster", "g")
    assert done.code == 1
    assert "g, Secret/a/new: " in done.err
    assert in_cel.count("^POST .*configmaps")
    assert _sent(in_cel) == 0


def test_namespaced_generating_policy(api: FakeApi, command: Command) -> None:
    """Otherwise, a tenant's preview would show actions that never happen."""
    _cel_policy(api, namespace="b")
    trigger(api, "t")
    assert stored(api, f"{SECRETS.format('a')}/t") is not None
    done = command("generate", "--cluster", "b/g", "-o", "json")
    assert (done.code, done.err) == (0, "")
    [shown] = json.loads(done.out)["policies"]
    assert (shown["policy"], shown["changes"]) == ("b/g", [])


@pytest.mark.parametrize(
    ("flags", "made"), [((), ["out-t"]), (("--exception-namespace", "e"), [])]
)
def test_exceptions_from_generating_policies(
    api: FakeApi, command: Command, flags: tuple[str, ...], made: list[str]
) -> None:
    """Otherwise, objects would be shown for exempt triggers."""
    _cel_policy(api)
    trigger(api, "t")
    api.put(
        f"{CEL}/namespaces/e/policyexceptions/x",
        spec={"policyRefs": [{"name": "g", "kind": "GeneratingPolicy"}]},
    )
    done = command("generate", "-c", "g", "-o", "json", *flags)
    [shown] = json.loads(done.out)["policies"]
    assert [one["name"] for one in shown["changes"]] == made


def test_generating_policy_that_does_not_compile(
    api: FakeApi, command: Command
) -> None:
    """Otherwise, the preview would be empty, as if no action was pending."""
    _cel_policy(api, text="object.metadata.name")
    done = command("generate", "--cluster", "g")
    assert done.code == 2
    assert "bool" in done.err


def test_objects_of_removed_elements_stay(
    api: FakeApi, tmp_path: Path, command: Command
) -> None:
    """The pool keeps the object of an old element until its trigger is gone."""
    names = "split(request.object.metadata.annotations.value, ',')"
    entry = {"list": names, "apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}
    made = rule()
    made["generate"] = {
        "synchronize": True,
        "foreach": [{**entry, "name": "out-{{element}}", "data": {}}],
    }
    user = User(api, tmp_path / "journals")
    policy(api, made)
    with term(api) as one:
        one.settle()
        path = f"{SECRETS.format('a')}/t"
        metadata = {"labels": MATCHED, "annotations": {"value": "x,y"}}
        user.create(path, apiVersion="v1", kind="Secret", metadata=metadata)
        one.settle()
    user.close()
    found = stored(api, path)
    assert found is not None
    metadata = {**found["metadata"], "annotations": {"value": "x"}}
    api.put(path, **{**found, "metadata": metadata})
    done = command("generate", "--cluster", "p")
    assert "0 to create, 0 to update, 0 to delete, 1 unchanged" in done.out
    api.remove(path)
    done = command("generate", "--cluster", "p")
    assert "0 to create, 0 to update, 2 to delete, 0 unchanged" in done.out
