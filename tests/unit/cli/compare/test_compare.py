"""``apply --base --head`` shows what the webhook would do with a change.

Expected values: the answers of the server's own service, and the documentation of
admission in Kubernetes. A failure means: a pull request is merged that the cluster
rejects, or one is stopped that the cluster accepts.
"""

import base64
import copy
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.cli.replay.cel import CelReplay
from kyverno_mp.cli.replay.policies import served
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.list_source import ListSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.values.patches.json_patch import apply_patch
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import BOTH, Route
from tests.unit.cli.conftest import Command, Done
from tests.unit.cli.replay.test_replay import adds_label, denies, needs_label, policy
from tests.unit.cli.replay.test_replay_cel import PODS, mutating, validating
from tests.unit.webhook.stub import StubRecords
from tests.waiting import still_ns

HEAD_OF_FACTS = {
    "apiVersion": "kyverno-mp.io/v1alpha1",
    "kind": "ClusterFacts",
    "metadata": {"name": "facts"},
}


SELECTED = {
    "resources": {
        "kinds": ["Pod"],
        "namespaceSelector": {"matchLabels": {"level": "high"}},
    }
}
OTHER = policy("other", denies("a", "b"), ["Node"])
"""A policy for other objects."""


def pod(name: str, /, namespace: str = "apps", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "nginx:1"}]},
    }


def namespace(name: str, /, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def config_map(name: str, /, namespace: str = "apps", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def generates(name: str, /, **generate: Any) -> dict[str, Any]:
    """Return a policy that generates an object for each Namespace."""
    target = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "made",
        "namespace": "{{request.object.metadata.name}}",
        **generate,
    }
    return policy(name, {"generate": target}, ["Namespace"])


class Change:
    """The files of the two sides."""

    def __init__(self, folder: Path, command: Command) -> None:
        self.folder = folder
        self._command = command
        self.facts: Path | None = None

    def side(self, name: str, *documents: dict[str, Any]) -> Path:
        file = self.folder / name / "all.yaml"
        file.parent.mkdir()
        file.write_text("\n---\n".join(map(json.dumps, documents)))
        return file.parent

    def know(self, *documents: dict[str, Any], **spec: Any) -> None:
        """Write facts of a cluster."""
        spec = {"documents": len(documents), **spec}
        self.facts = self.folder / "facts.yaml"
        self.facts.write_text(
            yaml.safe_dump_all([{**HEAD_OF_FACTS, "spec": spec}, *documents])
        )

    def run(self, *arguments: object) -> Done:
        flags = ("--facts", self.facts) if self.facts else ()
        return self._command("apply", *arguments, *flags)

    def result(self, *arguments: object) -> Any:
        done = self.run(*arguments, "--output-format", "json")
        assert done.out, done.err
        return json.loads(done.out)

    def of_policies(
        self, base: list[Any], head: list[Any], objects: list[Any], *flags: object
    ) -> Any:
        """Compare policies for the same objects."""
        return self.result(*self._policies(base, head, objects), *flags)

    def _policies(
        self, base: list[Any], head: list[Any], objects: list[Any]
    ) -> tuple[object, ...]:
        sides = ("--base", self.side("b", *base), "--head", self.side("h", *head))
        return (*sides, "--compare", "policies", "-r", self.side("o", *objects))

    def of_objects(
        self, policies: list[Any], base: list[Any], head: list[Any], *flags: object
    ) -> Any:
        """Compare objects for the same policies."""
        return self.result(*self.sides(policies, base, head), *flags)

    def sides(
        self, policies: list[Any], base: list[Any], head: list[Any]
    ) -> tuple[object, ...]:
        sides = ("--base", self.side("b", *base), "--head", self.side("h", *head))
        return (self.side("p", *policies), *sides)


@pytest.fixture
def change(tmp_path: Path, command: Command) -> Change:
    return Change(tmp_path, command)


def changes(result: Any) -> dict[str, list[str]]:
    """Return the objects of each change."""
    objects: dict[str, list[str]] = {}
    for row in result["list"]:
        objects.setdefault(row["change"], []).append(row["object"])
    return objects


class Cluster:
    """The server's service, called as the API server calls it."""

    def __init__(self, policies: Path, labels: dict[str, dict[str, str]]) -> None:
        loaded = served([str(policies)], None)
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
        self._labels = labels
        engine = Engine(ClusterData(cel=CelPorts(namespaces=self)), clock)
        validating = ValidationPlanner(engine, ListSource(loaded.policies, link_rule))
        mutations = MutationPlanner(engine, ListSource(loaded.policies, link_mutation))
        self._service = Service(
            Dependencies(records=StubRecords(), monotonic_ns=still_ns, namespaces=self),
            handlers_of(
                SnapshotEvaluate(lambda: validating),
                SnapshotMutate(lambda: mutations),
                cel=CelReplay(loaded.cel).planners(engine),
            ),
        )

    def labels(self, name: str) -> dict[str, str] | None:
        return self._labels.get(name)

    def namespace(self, name: str, _deadline_ns: int) -> dict[str, Any]:
        return namespace(name, **self._labels[name])

    def create(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """Return the stored object, None if it is denied."""
        for webhook in ("mutate", "mpol", "validate", "vpol"):
            request = {
                "uid": "u",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "operation": "CREATE",
                "name": raw["metadata"]["name"],
                "namespace": raw["metadata"]["namespace"],
                "userInfo": {"username": "ann"},
                "object": raw,
            }
            body = json.dumps({"request": request}).encode()
            answer = self._service.answer(
                Route(f"/{webhook}", webhook, BOTH), b"", body
            )
            assert isinstance(answer, bytes)
            response = json.loads(answer)["response"]
            if not response["allowed"]:
                return None
            if "patch" in response:
                patch = json.loads(base64.b64decode(response["patch"]))
                raw = apply_patch(raw, patch, strict=True)
        return raw


EVE = denies("{{ request.userInfo.username }}", "eve")


def selecting(name: str) -> dict[str, Any]:
    """Return a policy for Pods in namespaces of a level."""
    document = needs_label(name, "app")
    document["spec"]["rules"][0]["match"] = {"any": [SELECTED]}
    return document


def by_user(name: str) -> dict[str, Any]:
    document = needs_label(name, "app")
    (user,) = document["spec"]["rules"][0]["match"]["any"]
    user["subjects"] = [{"kind": "User", "name": "eve"}]
    document["spec"]["background"] = False
    return document


USER = """\
apiVersion: cli.kyverno.io/v1alpha1
kind: UserInfo
metadata: {name: u}
userInfo: {username: ann}
"""
LIVE = [
    needs_label("p", "app"),
    selecting("in-strict"),
    policy("name", denies("{{ request.object.metadata.name }}", "pod-7"), ["Pod"]),
    policy("by", EVE, ["Pod"], background=False),
    adds_label("m", "{{ request.object.metadata.labels.app || 'none' }}"),
    validating("v", "!object.metadata.labels.exists(l, l == 'banned')"),
    mutating("mp", "cel"),
]


def pods(count: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(7)
    for number in range(count):
        labels = {
            label: chance.choice("abc")
            for label in ("app", "owner", "banned", "team")
            if chance.random() < (0.2 if label == "banned" else 0.7)
        }
        yield pod(f"pod-{number}", chance.choice(["apps", "strict"]), **labels)


def test_a_thousand_creations_end_as_in_the_webhook(change: Change) -> None:
    spaces = {"apps": {"level": "low"}, "strict": {"level": "high"}}
    objects = list(pods(1000))
    (change.folder / "user.yaml").write_text(USER)
    change.know(*(namespace(name, **labels) for name, labels in spaces.items()))
    result = change.of_policies(
        [OTHER], LIVE, objects, "-u", change.folder / "user.yaml"
    )
    cluster = Cluster(change.folder / "h", spaces)
    stored = {
        f"Pod {raw['metadata']['namespace']}/{raw['metadata']['name']}": (
            raw,
            cluster.create(raw),
        )
        for raw in objects
    }
    denied = {path for path, (_, after) in stored.items() if after is None}
    mutated = {
        path for path, (raw, after) in stored.items() if after not in (raw, None)
    }
    assert 100 < len(denied) < 900
    assert 100 < len(mutated) < 900
    listed = changes(result)
    assert set(listed["denied"]) == denied
    assert set(listed["mutated"]) == mutated
    assert set(listed) == {"denied", "mutated"}
    assert result["changes"]["unchanged"] == 1000 - len(denied) - len(mutated)


OPEN = {
    "a user in a variable": (policy("p", EVE, ["Pod"], background=False), "the user"),
    **{
        f"a user as {query}": (
            policy("p", denies(f"{{{{ {query} }}}}", "x"), ["Pod"], background=False),
            "the user",
        )
        for query in (
            "request.roles",
            "request . clusterRoles",
            'request."userInfo".groups',
            "to_string(request)",
            "request | userInfo",
            "to_string({a: request, b: request.object})",
            "request.{{ request.object.metadata.labels.path }}",
            "serviceAccountName",
            "serviceAccountNamespace",
            "to_string(@)",
            "@.to_string(@)",
            "length(values(@))",
            "* | to_string(@)",
            "[?@].userInfo",
            "{all: to_string(@)}.all",
            "to_string(@ || 'x')",
        )
    },
    "a user in a query of the context": (
        policy(
            "p",
            denies(
                "{{ found }}",
                "x",
                context=[
                    {"name": "found", "variable": {"jmesPath": "request.roles[0]"}}
                ],
            ),
            ["Pod"],
            background=False,
        ),
        "the user",
    ),
    "a user in a list of foreach": (
        policy(
            "p",
            {
                "validate": {
                    "message": "m",
                    "failureAction": "Enforce",
                    "foreach": [
                        {
                            "list": "request.userInfo.groups",
                            "deny": {
                                "conditions": {
                                    "any": [
                                        {
                                            "key": "{{ element }}",
                                            "operator": "Equals",
                                            "value": "x",
                                        }
                                    ]
                                }
                            },
                        }
                    ],
                }
            },
            ["Pod"],
            background=False,
        ),
        "the user",
    ),
    "a user in match": (by_user("p"), "the user"),
    "a user in CEL": (
        validating("p", "request.userInfo.username != 'eve'"),
        "the user",
    ),
    "labels of the namespace": (
        selecting("p"),
        "Namespace apps",
    ),
    "labels of the namespace in CEL": (
        validating("p", "false", namespaceSelector={"matchLabels": {"level": "high"}}),
        "Namespace apps",
    ),
    "the Namespace in CEL": (
        validating("p", "namespaceObject.metadata.name == 'x'"),
        "Namespace apps",
    ),
    "a ConfigMap": (
        policy(
            "p",
            denies(
                "{{ found.data.a }}",
                "bad",
                context=[
                    {"name": "found", "configMap": {"name": "one", "namespace": "ops"}}
                ],
            ),
        ),
        "ConfigMap ops/one",
    ),
    "an object in CEL": (
        validating("p", 'resource.Get("v1", "pods", "a", "b").kind == "x"'),
        "resource get v1 pods a b",
    ),
    "a registry": (
        policy(
            "p",
            {
                "verifyImages": [
                    {
                        "imageReferences": ["*"],
                        "failureAction": "Enforce",
                        "attestors": [
                            {"entries": [{"keys": {"publicKeys": "k8s://a/b"}}]}
                        ],
                    }
                ]
            },
        ),
        "images",
    ),
    "a registry in CEL": (
        {
            **validating("p", "true"),
            "kind": "ImageValidatingPolicy",
            "spec": {
                "matchConstraints": {"resourceRules": [PODS]},
                "matchImageReferences": [{"glob": "*"}],
                "attestors": [{"name": "a", "cosign": {"key": {"data": "x"}}}],
                "validations": [{"expression": "images.containers.size() > 5"}],
            },
        },
        "images",
    ),
}


@pytest.mark.parametrize("case", OPEN)
def test_what_nobody_has_told_is_not_decidable(change: Change, case: str) -> None:
    document, need = OPEN[case]
    result = change.of_policies([OTHER], [document], [pod("web", "apps")])
    (row,) = result["list"]
    assert (row["change"], row["object"]) == ("undecidable", "Pod apps/web")
    assert need in row["needs"][0]
    assert "policy p" in row["needs"][0]


@pytest.mark.parametrize("case", OPEN)
def test_equal_objects_and_policies_are_unchanged(change: Change, case: str) -> None:
    """Whatever they lack; an equal policy that judges another object is open."""
    document, _ = OPEN[case]
    result = change.of_objects([document], [pod("web")], [pod("web"), pod("new")])
    assert changes(result) == {"undecidable": ["Pod apps/new"]}


def test_a_changed_image_policy_is_open(change: Change) -> None:
    before, _ = OPEN["a registry"]
    after = copy.deepcopy(before)
    entries = after["spec"]["rules"][0]["verifyImages"][0]["attestors"][0]["entries"]
    entries[0]["keys"]["publicKeys"] = "k8s://a/other"
    result = change.of_policies([before], [after], [pod("web")])
    assert changes(result) == {"undecidable": ["Pod apps/web"]}


@pytest.mark.parametrize(
    "key",
    [
        "request.object.metadata.labels.roles",
        "request.namespace",
        "request.object.spec.serviceAccountName",
        'request."object".metadata.name',
        "request.object.metadata.[annotations.userInfo, roles]",
        "found",
        "@.request.object.metadata.name",
        "request.object.metadata.labels.to_string(@)",
        "request.object.metadata.labels | to_string(@)",
        "request.object.spec.containers[?@.name == 'a'].name",
        "map(&to_string(@), request.object.spec.containers)",
        "request.object.metadata.annotations.*.to_string(@)",
    ],
)
@pytest.mark.parametrize("query", ["request.object.metadata", "request.name"])
def test_what_reads_the_object_alone_needs_no_user(
    change: Change, key: str, query: str
) -> None:
    """The context keeps a rule from the shorter ways; its message is no query."""
    entry = {"name": "found", "variable": {"jmesPath": query, "default": "x"}}
    rule = denies(f"{{{{ {key} || 'x' }}}}", "never", context=[entry])
    rule["validate"]["message"] = "This request has the wrong roles."
    document = policy("p", rule)
    result = change.of_policies([OTHER], [document], [pod("web", "apps")])
    assert changes(result) == {}


@pytest.mark.parametrize("level", ["high", "low"])
@pytest.mark.parametrize("source", ["facts", "manifests"])
def test_labels_of_facts_and_of_manifests_decide(
    change: Change, level: str, source: str
) -> None:
    document = selecting("p")
    space = namespace("apps", level=level)
    if source == "facts":
        change.know(space)
    objects = [pod("web"), *([space] if source == "manifests" else [])]
    result = change.of_policies([OTHER], [document], objects)
    expected = {"denied": ["Pod apps/web"]} if level == "high" else {}
    assert changes(result) == expected


def test_a_changed_namespace_decides_about_the_objects_in_it(change: Change) -> None:
    """The objects themselves are equal on both sides."""
    document = selecting("p")
    result = change.of_objects(
        [document],
        [namespace("apps", level="low"), pod("web")],
        [namespace("apps", level="high"), pod("web")],
    )
    assert changes(result) == {"denied": ["Pod apps/web"]}
    assert result["changes"]["unchanged"] == 1


def test_a_changed_config_map_decides(change: Change) -> None:
    context = [{"name": "found", "configMap": {"name": "one", "namespace": "apps"}}]
    document = policy("p", denies("{{ found.data.a }}", "bad", context=context))
    result = change.of_objects(
        [document],
        [config_map("one", a="good"), pod("web")],
        [config_map("one", a="bad"), pod("web"), pod("new")],
    )
    assert changes(result) == {"denied": ["Pod apps/new", "Pod apps/web"]}


def test_audits_are_no_denials(change: Change) -> None:
    audited = needs_label("p", "app")
    audited["spec"]["rules"][0]["validate"]["failureAction"] = "Audit"
    cel = validating("v", "'x' in object.metadata.labels")
    cel["spec"]["validationActions"] = ["Audit"]
    result = change.of_objects(
        [audited, cel], [pod("web", app="a", x="x")], [pod("web"), pod("new", app="a")]
    )
    assert changes(result) == {"audited": ["Pod apps/new", "Pod apps/web"]}
    rows = {row["object"]: row["policies"] for row in result["list"]}
    assert rows == {"Pod apps/new": ["v"], "Pod apps/web": ["p", "v"]}


def test_denials_that_stay_are_unchanged(change: Change) -> None:
    result = change.of_objects(
        [needs_label("p", "app")],
        [pod("old"), pod("gone"), pod("mended")],
        [pod("old"), pod("mended", app="a")],
    )
    assert changes(result) == {"allowed": ["Pod apps/mended"]}
    assert result["objects"] == 2


def test_a_mutation_is_shown_as_a_diff(change: Change) -> None:
    result = change.of_policies(
        [adds_label("m", "a")], [adds_label("m", "b")], [pod("w")]
    )
    (row,) = result["list"]
    assert (row["change"], row["policies"]) == ("mutated", ["m"])
    signed = [line for line in row["diff"] if line[0] in "+-"]
    assert signed == ["-    team: a", "+    team: b"]


def test_a_mutated_object_is_validated(change: Change) -> None:
    result = change.of_policies(
        [OTHER], [needs_label("p", "team"), adds_label("m", "a")], [pod("w")]
    )
    assert changes(result) == {"mutated": ["Pod apps/w"]}


def test_generated_objects(change: Change) -> None:
    document = generates(
        "g", data={"data": {"a": "{{request.object.metadata.labels.a}}"}}
    )
    result = change.of_objects(
        [document],
        [namespace("gone", a="1"), namespace("same", a="1"), namespace("other", a="1")],
        [namespace("new", a="1"), namespace("same", a="1"), namespace("other", a="2")],
    )
    rows = {row["object"]: row for row in result["list"]}
    assert {row["change"] for row in rows.values()} == {"generated"}
    assert {path: row["reasons"] for path, row in rows.items()} == {
        "ConfigMap gone/made": ["no longer generated for Namespace gone"],
        "ConfigMap new/made": ["generated for Namespace new"],
        "ConfigMap other/made": ["generated differently for Namespace other"],
    }
    signed = [line for line in rows["ConfigMap other/made"]["diff"] if line[0] in "+-"]
    assert signed == ["-  a: '1'", "+  a: '2'"]


def test_a_generating_policy_in_cel(change: Change) -> None:
    made = (
        '[{"apiVersion": dyn("v1"), "kind": dyn("ConfigMap"),'
        ' "metadata": dyn({"name": "made"}), "data": dyn({"a": "b"})}]'
    )
    document = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "GeneratingPolicy",
        "metadata": {"name": "g"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["namespaces"],
                    }
                ]
            },
            "generate": [
                {"expression": f"generator.Apply(object.metadata.name, {made})"}
            ],
        },
    }
    result = change.of_objects(
        [document], [namespace("a")], [namespace("a"), namespace("b")]
    )
    assert changes(result) == {"generated": ["ConfigMap b/made"]}
    assert result["list"][0]["policies"] == ["g"]


def test_a_clone_of_an_unknown_source_is_generated_if_it_exists(change: Change) -> None:
    document = generates(
        "g", kind="Secret", name="key", clone={"name": "key", "namespace": "ops"}
    )
    result = change.of_objects(
        [document], [namespace("a")], [namespace("b"), namespace("a")]
    )
    (row,) = result["list"]
    assert row["object"] == "Secret b/key"
    assert row["reasons"] == [
        "generated for Namespace b, if this exists: Secret ops/key"
    ]


def test_no_value_of_a_secret_is_shown(change: Change) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "key", "namespace": "apps"},
        "stringData": {"a": "hunter2"},
    }
    labels = policy(
        "m",
        {"mutate": {"patchStrategicMerge": {"metadata": {"labels": {"team": "a"}}}}},
        ["Secret"],
    )
    sides = change.sides(
        [labels, generates("g", kind="Secret", data={"stringData": {"b": "hunter2"}})],
        [],
        [secret, namespace("b")],
    )
    for output in ("yaml", "json", "markdown"):
        done = change.run(*sides, "--output-format", output)
        assert "hunter2" not in done.out + done.err
        assert "team" in done.out


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [((), 1), (("allowed",), 0), (("mutated,denied",), 1), (("none",), 0)],
)
def test_exit_codes(change: Change, fail_on: tuple[str, ...], code: int) -> None:
    sides = change.sides([needs_label("p", "app")], [], [pod("web")])
    flags = [flag for value in fail_on for flag in ("--fail-on", value)]
    assert change.run(*sides, *flags).code == code


def test_nothing_in_an_object_becomes_markdown(change: Change) -> None:
    raw = pod("web")
    raw["metadata"]["annotations"] = {"a": "```\n<script>\n````\n| x |\n::error::y"}
    sides = change.sides([adds_label("m", "a"), needs_label("p", "`<b>|")], [], [raw])
    done = change.run(*sides, "--output-format", "markdown")
    assert "| now denied | 1 |" in done.out
    assert "<b>" not in done.out
    assert "\n::error" not in done.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cluster"], "--cluster cannot be used with --base and --head"),
        (["--set", "a=b"], "--set cannot be used"),
        (["--json", "x"], "--json cannot be used"),
        (["--jobs", "0"], "--jobs cannot be used"),
        (["-t"], "--table cannot be used"),
        (["--output-format", "sarif"], "--output-format sarif cannot be used"),
        (["--compare", "policies"], "--compare policies:"),
        (["--fail-on", "wrong"], "--fail-on: 'wrong' is not one of"),
        (["-r", "x.yaml"], "arguments name the policies"),
    ],
)
def test_flags_that_nothing_would_read_are_refused(
    change: Change, flags: list[str], message: str
) -> None:
    sides = change.sides([needs_label("p", "app")], [], [pod("web")])
    done = change.run(*sides, *flags)
    assert done.code == 1
    assert message in done.err
    assert not done.out


@pytest.mark.parametrize("flags", [["--base", "x"], ["--head", "x"]])
def test_one_side_alone(change: Change, flags: list[str]) -> None:
    done = change.run("p.yaml", *flags)
    assert (done.code, "belong together" in done.err) == (1, True)


@pytest.mark.parametrize("flag", ["--facts", "--fail-on"])
def test_flags_of_comparisons_need_one(change: Change, flag: str) -> None:
    policies = change.side("p", needs_label("p", "app"))
    objects = change.side("o", pod("web"))
    done = change.run(policies, "-r", objects, flag, "none")
    assert (done.code, "need --base and --head" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\nmetadata: {name: a}", "document 1: not an object with apiVersion"),
        ("{apiVersion: v1, kind: Pod}", "document 1: not an object with apiVersion"),
        ("{apiVersion: v1, kind: Pod, metadata: {}}", "Pod without metadata.name"),
        ("- 1", "not an object"),
        ("a: [", "all.yaml"),
    ],
)
def test_a_broken_manifest_ends_the_run(
    change: Change, text: str, message: str
) -> None:
    sides = change.sides([needs_label("p", "app")], [], [pod("web")])
    (change.folder / "h" / "all.yaml").write_text(text)
    done = change.run(*sides)
    assert done.code == 1
    assert message in done.err
    assert not done.out


def test_an_unusable_policy_ends_the_run(change: Change) -> None:
    broken = needs_label("p", "app")
    broken["spec"]["rules"][0]["validate"]["pattern"] = {"a": "{{ x( }}"}
    done = change.run(*change.sides([broken], [], [pod("web")]))
    assert (done.code, done.out) == (1, "")
    assert "policy p" in done.err or "p/all.yaml" in done.err


def test_an_object_that_no_review_can_hold_is_open(change: Change) -> None:
    """A file may be as deep as a review, which holds the object two levels below."""
    deep: Any = {}
    for _ in range(510):
        deep = {"a": deep}
    objects = [{**pod("deep"), "spec": deep}, pod("web")]
    document = policy("p", denies("a", "a"), ["Pod"])
    result = change.of_objects([document], [], objects)
    assert changes(result) == {
        "undecidable": ["Pod apps/deep"],
        "denied": ["Pod apps/web"],
    }


def test_a_kind_without_a_known_resource_name(change: Change) -> None:
    """With its definition, it is decided."""
    widget = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w", "namespace": "apps"},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgetries.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Widget", "plural": "widgetries"},
            "scope": "Namespaced",
        },
    }
    document = validating("v", "false")
    (rule,) = document["spec"]["matchConstraints"]["resourceRules"]
    document["spec"]["matchConstraints"]["resourceRules"] = [
        {**rule, "apiGroups": ["example.com"], "resources": ["widgetries"]}
    ]
    sides = change.sides([document], [], [widget])
    (row,) = change.result(*sides)["list"]
    assert row["change"] == "undecidable"
    assert "--crd-paths" in row["needs"][0]
    (change.folder / "h" / "crd.yaml").write_text(yaml.safe_dump(definition))
    assert changes(change.result(*sides)) == {"denied": ["Widget apps/w"]}
