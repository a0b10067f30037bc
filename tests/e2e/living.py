"""A cluster in use: policies of every kind that change, and objects that come and go.

Takes: a control plane with kyverno-mp, which runs every role. Gives: Living, Faults.
Next: pods/test_living.py. May touch: policies, Namespaces, Pods, ConfigMaps,
permissions.

Everything is counted in objects, not in seconds: ``turns`` is the load, and ``settle``
waits for what must be true afterwards.
"""

import contextlib
import http.client
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane
from tests.waiting import unique, wait_for

Json = Any
_KYVERNO: Final = "/apis/kyverno.io"
_CEL: Final = "/apis/policies.kyverno.io/v1beta1"
_POLICIES: Final = f"{_KYVERNO}/v1/clusterpolicies"
_REQUESTS: Final = f"{_KYVERNO}/v2/namespaces/kyverno/updaterequests"
_EPHEMERAL: Final = "/apis/reports.kyverno.io/v1/ephemeralreports"
_REPORTS: Final = "/apis/wgpolicyk8s.io/v1alpha2/policyreports"
_NAMESPACES: Final = "/api/v1/namespaces"
_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_PODS_OF_TURN: Final = 3
_KEPT_PODS: Final = 100
_KEPT_NAMESPACES: Final = 40
_WITHOUT_READY: Final = (
    *("cleanuppolicies", "clusterroles", "deleting", "exceptions"),
    "globalcontextentries",
)

_DONE: Final = frozenset({200, 201, 404, 409})
_AWAY: Final = (OSError, http.client.HTTPException)


class Living:
    """The policies, and the objects that exist now."""

    def __init__(self, plane: ControlPlane, api: Api) -> None:
        self._plane = plane
        self.api = api
        self.name = f"living-{unique()}"
        self.namespaces: list[str] = []
        self.pods: list[tuple[str, str]] = []
        """Namespace and name of the Pods that exist, the oldest first."""
        self.failed = 0
        """Requests that had to be repeated."""
        self.count = 0
        self._generation = 0
        self._paths: list[str] = []

    def create_policies(self) -> None:
        """Create one policy of each kind, and what they need."""
        self._grant("cleanup", "", "configmaps", "delete")
        self._put(
            f"{_KYVERNO}/v2beta1/globalcontextentries",
            "kyverno.io/v2beta1",
            "GlobalContextEntry",
            self.name,
            kubernetesResource={
                "version": "v1",
                "resource": "configmaps",
                "namespace": "default",
            },
        )
        for name, spec in self._cluster_policies().items():
            self._put(
                *(_POLICIES, "kyverno.io/v1", "ClusterPolicy"),
                f"{self.name}-{name}",
                **spec,
            )
        for kind, spec in self._cel_policies().items():
            plural = f"{kind[:-1].lower()}ies"
            self._put(
                *(f"{_CEL}/{plural}", "policies.kyverno.io/v1beta1", kind),
                self.name,
                **spec,
            )
        selector = {"matchLabels": {"living": self.name, "old": "yes"}}
        resources = {"kinds": ["ConfigMap"], "selector": selector}
        self._put(
            *(f"{_KYVERNO}/v2/clustercleanuppolicies", "kyverno.io/v2"),
            *("ClusterCleanupPolicy", self.name),
            match={"any": [{"resources": resources}]},
            schedule="@every 2s",
        )
        self._create_namespaced()
        wait_for(self._are_ready)

    def turns(self, number: int, between: Callable[[int], None] | None = None) -> None:
        """Create and delete objects; a policy changes with each fourth turn.

        ``between`` is called after each turn with its number.
        """
        for _ in range(number):
            self._turn()
            if between is not None:
                between(self.count)

    def settle(self) -> None:
        """Wait for everything that must be true after the load."""
        wait_for(self._is_generated)
        wait_for(lambda: self._is_empty(_REQUESTS))
        wait_for(self._is_reported)
        wait_for(lambda: self._is_empty(_EPHEMERAL))
        wait_for(lambda: not self._old())

    def remove(self) -> None:
        """Delete the policies and the objects."""
        for path in reversed(self._paths):
            self._ask("DELETE", path)
        for namespace in self.namespaces:
            self._ask("DELETE", f"{_NAMESPACES}/{namespace}")

    def change(self) -> None:
        """Change what the generate rule writes, and the validate rule's message."""
        self._generation += 1
        generation = str(self._generation)
        for name in ("generates", "checks"):
            path = f"{_POLICIES}/{self.name}-{name}"
            spec = self._cluster_policies(generation)[name]
            self._ask("PATCH", path, {"spec": spec}, "merge")

    def _create_namespaced(self) -> None:
        """Create one policy of each kind that belongs to a namespace, and exceptions.

        They match objects that nobody creates.
        """
        kinds = {"kinds": ["ConfigMap"], "names": [f"{self.name}-none"]}
        match = {"any": [{"resources": kinds}]}
        pattern = {"metadata": {"name": "?*"}}
        check = {"message": "m", "failureAction": "Audit", "pattern": pattern}
        rules = [{"name": "r", "match": match, "validate": check}]
        inside = f"{_KYVERNO}/v1/namespaces/default/policies"
        self._put(inside, "kyverno.io/v1", "Policy", self.name, rules=rules)
        self._put(
            *(f"{_KYVERNO}/v2/namespaces/default/cleanuppolicies", "kyverno.io/v2"),
            *("CleanupPolicy", self.name),
            match=match,
            schedule="@every 2s",
        )
        self._put(
            *(f"{_KYVERNO}/v2/namespaces/default/policyexceptions", "kyverno.io/v2"),
            *("PolicyException", self.name),
            match=match,
            exceptions=[
                {"policyName": f"{self.name}-checks", "ruleNames": ["audited"]}
            ],
        )
        for kind, spec in self._cel_policies("serviceaccounts").items():
            plural = f"namespaced{kind[:-1].lower()}ies"
            self._put(
                f"{_CEL}/namespaces/default/{plural}",
                *("policies.kyverno.io/v1beta1", f"Namespaced{kind}", self.name),
                **spec,
            )

    def _turn(self) -> None:
        self.count += 1
        namespace = f"{self.name}-{self.count}"
        labels = {"living": self.name}
        self._ask("POST", _NAMESPACES, _named(namespace, labels))
        self.namespaces.append(namespace)
        self._ask(
            *("POST", f"{_NAMESPACES}/{namespace}/configmaps"),
            _named("old", {**labels, "old": "yes"}),
        )
        self._ask(
            *("POST", f"{_NAMESPACES}/{namespace}/configmaps"),
            _named("due", {**labels, "cleanup.kyverno.io/ttl": "1s"}),
        )
        for number in range(_PODS_OF_TURN):
            self._create_pod(namespace, f"p{number}")
        while len(self.pods) > _KEPT_PODS:
            gone, name = self.pods.pop(0)
            path = f"{_NAMESPACES}/{gone}/pods/{name}?gracePeriodSeconds=0"
            self._ask("DELETE", path)
        if len(self.namespaces) > _KEPT_NAMESPACES:
            gone = self.namespaces.pop(0)
            self.pods = [one for one in self.pods if one[0] != gone]
            self._ask("DELETE", f"{_NAMESPACES}/{gone}")
        if self.count % 4 == 0:
            self.change()

    def _create_pod(self, namespace: str, name: str) -> None:
        container = {"name": "c", "image": "example.org/c:1"}
        raw = {**_named(name, {"team": "blue"}), "spec": {"containers": [container]}}
        path = f"{_NAMESPACES}/{namespace}/pods"

        failures = 0

        def is_created() -> bool:
            nonlocal failures
            # K8S: the ServiceAccount of a new Namespace appears a moment later.
            status, body = self._once("POST", path, raw)
            is_early = status == 403 and "serviceaccount" in str(body)
            failures += status not in (201, 409) and not is_early
            return status in (201, 409)

        wait_for(is_created)
        self.failed += failures > 0
        self.pods.append((namespace, name))
        bad = {**raw, "metadata": {"name": "forbidden"}}
        status, body = self._once("POST", path, bad)
        assert status != 201, f"a forbidden Pod was admitted: {body}"

    def _is_generated(self) -> bool:
        """Return whether each Namespace has the newest data of both rules."""
        wanted = {"generation": str(self._generation)}
        for namespace in self.namespaces:
            maps = f"{_NAMESPACES}/{namespace}/configmaps"
            status, body = self._once("GET", f"{maps}/generated")
            if status != 200 or body.get("data") != wanted:
                return False
            if self._once("GET", f"{maps}/generated-in-cel")[0] != 200:
                return False
        return True

    def _is_reported(self) -> bool:
        """Return whether the reports are those of the Pods that exist."""
        status, body = self._once("GET", _REPORTS)
        if status != 200:
            return False
        scopes = [one.get("scope") or {} for one in body["items"]]
        reported = {
            (one["namespace"], one["name"])
            for one in scopes
            if one.get("kind") == "Pod" and one["namespace"].startswith(self.name)
        }
        return reported == set(self.pods)

    def _is_empty(self, path: str) -> bool:
        status, body = self._once("GET", path)
        return status == 200 and body["items"] == []

    def _old(self) -> Iterable[Json]:
        """Return the ConfigMaps that clean-up deletes."""
        path = f"/api/v1/configmaps?labelSelector=living={self.name}"
        status, body = self._once("GET", path)
        return body["items"] if status == 200 else ["unknown"]

    def _are_ready(self) -> bool:
        for path in self._paths:
            if any(part in path for part in _WITHOUT_READY):
                continue
            status, body = self._once("GET", path)
            found = (body.get("status") or {}) if status == 200 else {}
            conditions = found.get("conditions") or (
                (found.get("conditionStatus") or {}).get("conditions") or ()
            )
            if not any(
                one["type"] in ("Ready", "WebhookConfigured")
                and one["status"] == "True"
                for one in conditions
            ):
                return False
        return True

    def _put(
        self, collection: str, version: str, kind: str, name: str, **spec: Json
    ) -> None:
        raw = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}

        def is_taken() -> bool:
            # The webhook of a new policy may lack a permission that was just granted.
            status, body = self._once("POST", collection, {**raw, "spec": spec})
            is_early = "permission" in str(body)
            if status not in (201, 409) and not is_early:
                raise Refused(status, body)
            return status in (201, 409)

        wait_for(is_taken)
        self._paths.append(f"{collection}/{name}")

    def _grant(self, component: str, group: str, plural: str, *verbs: str) -> None:
        """Let an account do what the policies want, as users do."""
        label = f"rbac.kyverno.io/aggregate-to-{component}-controller"
        name = f"{self.name}-{component}"
        rule = {"apiGroups": [group], "resources": [plural], "verbs": [*verbs]}
        raw = _named(name, {label: "true"})
        self._ask("POST", _ROLES, {**raw, "rules": [rule]})
        self._paths.append(f"{_ROLES}/{name}")

    def _ask(self, method: str, path: str, body: Json = None, patch: str = "") -> None:
        """Send a request until it is accepted."""
        failures = 0

        def is_done() -> bool:
            nonlocal failures
            done = self._once(method, path, body, patch)[0] in _DONE
            failures += not done
            return done

        wait_for(is_done)
        self.failed += failures > 0

    def _once(
        self, method: str, path: str, body: Json = None, patch: str = ""
    ) -> tuple[int, Json]:
        try:
            if patch:
                return 200, self.api.patch(path, body, patch)
            return self.api.ask(method, path, body)
        except Refused as refused:
            return refused.status, refused.body
        except _AWAY:
            with contextlib.suppress(OSError):
                self.api.close()
            self.api = Api(self._plane.access)
            return 0, {}

    def _cluster_policies(self, generation: str = "0") -> dict[str, Json]:
        pods = {"any": [{"resources": {"kinds": ["Pod"]}}]}
        ours = {"selector": {"matchLabels": {"living": self.name}}}
        namespaces = {"any": [{"resources": {"kinds": ["Namespace"], **ours}}]}
        target = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "generated",
            "namespace": "{{ request.object.metadata.name }}",
            "synchronize": True,
            "data": {"data": {"generation": generation}},
        }
        team = {"metadata": {"labels": {"team": "?*"}}}
        context = [
            {
                "name": "maps",
                "apiCall": {
                    "urlPath": "/api/v1/namespaces/{{request.namespace}}/configmaps",
                    "jmesPath": "items[].metadata.name",
                },
            },
            {"name": "entry", "globalReference": {"name": self.name}},
        ]
        audited = {
            "name": "audited",
            "match": pods,
            "context": context,
            "validate": {
                "failureAction": "Audit",
                "message": f"generation {generation}",
                "deny": {
                    "conditions": {
                        "all": [
                            {
                                "key": "{{ length(maps || `[]`) }}",
                                "operator": "GreaterThan",
                                "value": 1000,
                            }
                        ]
                    }
                },
            },
        }
        enforced = {
            "name": "enforced",
            "match": pods,
            "validate": {
                "failureAction": "Enforce",
                "message": "label team is needed",
                "pattern": team,
            },
        }
        failing = {
            "name": "failing",
            "match": pods,
            "validate": {
                "failureAction": "Audit",
                "message": "nobody has an owner",
                "pattern": {"metadata": {"labels": {"owner": "?*"}}},
            },
        }
        label = {"metadata": {"labels": {"+(mutated)": "yes"}}}
        existing = {
            "targets": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "generated-in-cel",
                    "namespace": "{{ request.object.metadata.name }}",
                }
            ],
            "patchStrategicMerge": {"metadata": {"labels": {"existing": "yes"}}},
        }
        return {
            "generates": {
                "rules": [{"name": "r", "match": namespaces, "generate": target}]
            },
            "checks": {"rules": [enforced, audited, failing]},
            "mutates": {
                "rules": [
                    {
                        "name": "r",
                        "match": pods,
                        "mutate": {"patchStrategicMerge": label},
                    }
                ]
            },
            "existing": {
                "rules": [{"name": "r", "match": namespaces, "mutate": existing}]
            },
        }

    def _cel_policies(self, kind: str = "") -> dict[str, Json]:
        """Return the specs by kind; ``kind``: the resource that all of them match."""
        ours = f"object.metadata.?labels[?'living'].orValue('') == '{self.name}'"
        good = "object.metadata.?labels[?'bad'].orValue('') == ''"
        pods = _matched(kind or "pods")
        name = "'default'" if kind else "object.metadata.name"
        made = (
            "{'apiVersion': dyn('v1'), 'kind': dyn('ConfigMap'), "
            "'metadata': dyn({'name': 'generated-in-cel'}), "
            "'data': dyn({'in': 'cel'})}"
        )
        patch = "[JSONPatch{op: 'add', path: '/metadata/labels/cel', value: 'yes'}]"
        return {
            "ValidatingPolicy": {
                "matchConstraints": pods,
                "validationActions": ["Deny"],
                "validations": [{"expression": good, "message": "bad"}],
            },
            "MutatingPolicy": {
                "matchConstraints": pods,
                "matchConditions": [
                    {"name": "labels", "expression": "has(object.metadata.labels)"}
                ],
                "mutations": [
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}
                ],
            },
            "GeneratingPolicy": {
                "matchConstraints": _matched(kind or "namespaces"),
                "matchConditions": [{"name": "ours", "expression": ours}],
                "evaluation": {"synchronize": {"enabled": True}},
                "generate": [{"expression": f"generator.Apply({name}, [{made}])"}],
            },
            "ImageValidatingPolicy": {
                "matchConstraints": pods,
                "matchImageReferences": [{"glob": "signed.example.org/*"}],
                "validationConfigurations": {
                    "required": False,
                    "verifyDigest": False,
                    "mutateDigest": False,
                },
                "attestors": [{"name": "a", "cosign": {"key": {"data": _KEY}}}],
                "validations": [{"expression": "true", "message": "m"}],
            },
            "DeletingPolicy": {
                "matchConstraints": _matched("configmaps", "*"),
                "conditions": [{"name": "none", "expression": "false"}],
                "schedule": "* * * * *",
            },
        }


class Faults(Living):
    """Policies that need more than the accounts may do, and an entry without data."""

    def create(self) -> None:
        """Create the policies while all is granted, and then take it away."""
        self._grant("background", "", "secrets", "create", "get", "update", "delete")
        target = {
            "apiVersion": "v1",
            "kind": "Secret",
            "name": "{{ request.object.metadata.name }}",
            "namespace": "default",
            "synchronize": False,
            "data": {"stringData": {"a": "b"}},
        }
        names = [f"{self.name}-*"]
        match = {"any": [{"resources": {"kinds": ["ConfigMap"], "names": names}}]}
        url = "/api/v1/namespaces/default/secrets"
        context = [{"name": "found", "apiCall": {"urlPath": url}}]
        none = {"key": "{{ length(found) }}", "operator": "Equals", "value": -1}
        check = {
            "failureAction": "Audit",
            "message": "m",
            "deny": {"conditions": {"all": [none]}},
        }
        for name, body in (
            ("generates", {"generate": target}),
            ("reads", {"context": context, "validate": check}),
        ):
            self._put(
                *(_POLICIES, "kyverno.io/v1", "ClusterPolicy", f"{self.name}-{name}"),
                background=False,
                rules=[{"name": "r", "match": match, **body}],
            )
        self._put(
            f"{_KYVERNO}/v2beta1/globalcontextentries",
            *("kyverno.io/v2beta1", "GlobalContextEntry", self.name),
            kubernetesResource={"group": "no.example.com", **_UNKNOWN},
        )
        wait_for(self._are_ready)
        self._ask("DELETE", f"{_ROLES}/{self.name}-background")
        self.trigger()

    def trigger(self) -> None:
        """Create an object that both rules match."""
        path = f"{_NAMESPACES}/default/configmaps"
        self.count += 1
        self._ask("POST", path, _named(f"{self.name}-{self.count}", {}))

    def mend(self) -> None:
        """Grant everything, and delete the entry."""
        self._grant("background", "", "secrets", "create", "get", "update", "delete")
        self._grant("admission", "", "secrets", "list")
        path = f"{_KYVERNO}/v2beta1/globalcontextentries/{self.name}"
        self._ask("DELETE", path)
        secrets = f"{_NAMESPACES}/default/secrets"
        wait_for(lambda: self._once("GET", f"{secrets}/{self.name}-1")[0] == 200)
        self.trigger()


_UNKNOWN: Final = {"version": "v1", "resource": "greetings"}
_KEY: Final = """-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEGEMBZ0bLHFvjJ+bGq6rmQjaW6hDN
2xjhhuXQyVxdQYv0Xhu0ZnTZG0y9TzX1YHZTtxUwtJkM0DG9m1V6hQ8eIg==
-----END PUBLIC KEY-----
"""


def _named(name: str, labels: dict[str, str]) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


def _matched(resource: str, *operations: str) -> Json:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations or ("CREATE",)),
        "resources": [resource],
    }
    return {"resourceRules": [rule]}
