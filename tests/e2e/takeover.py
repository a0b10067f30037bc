"""Policies of every kind, and clients whose requests show who judged them.

Takes: a control plane on which Kyverno or kyverno-mp runs. Gives: Takeover, with what
went wrong. May touch: its policies, one namespace and many others, objects in them.

Each creation says what must happen: the denial that it gets, or what is appended to it.
An object that nobody judged lacks it; one that two programs changed has it twice.
"""

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane
from tests.waiting import unique, wait_for

Json = Any
NAMESPACE: Final = "taken"
CALLERS: Final = 4
PAUSE_S: Final = 0.05
"""Of a client; a free API server is what an upgrade meets."""
NAMESPACE_S: Final = 2.0
_KYVERNO: Final = "/apis/kyverno.io"
_CEL: Final = "/apis/policies.kyverno.io/v1"
_CORE: Final = "/api/v1/namespaces"
_SHOWN: Final = 600
_CUT: Final = (
    *("EOF", "broken pipe", "connection reset", "connection refused"),
    "use of closed network connection",
)
"""In the API server's messages."""
_BACKGROUND: Final = "background-controller"
"""In the user agent of Kyverno's background controller."""


@dataclass(frozen=True)
class Case:
    """One kind of request: a body by its name, and what must happen."""

    what: str
    plural: str
    body: Callable[[str], Json]
    denial: str = ""
    """Part of the message, "" if the request must be allowed."""
    changed: Callable[[Json], object] = bool
    known: str = ""
    """The message of a denial that docs/upgrade.md announces."""


class Takeover:
    """The policies, the clients, and what they saw."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self.first: list[str] = []
        self.wrong: list[str] = []
        self.announced = 0
        """Denials that docs/upgrade.md announces."""
        self.cut: list[str] = []
        """Calls that a webhook's pod cut by closing its connection."""
        self.namespaces: list[str] = []
        """Those that were created during the last load."""

    def create_policies(self, api: Api) -> None:
        """Create them; they are in force when ``is_in_force``."""
        api.create(_CORE, {"metadata": {"name": NAMESPACE}})
        for path, raw in _policies():
            wait_for(partial(_is_created, api, path, raw))

    def is_in_force(self) -> bool:
        """Return whether each request has the right result now."""
        with Api(self._plane.access) as api:
            said = [self._ask(api, case, f"first-{unique()}") for case in CASES]
        self.first = [one for one in said if one]
        return not self.first

    def not_generated(self) -> list[str]:
        """Return the objects that rules had to generate and that do not exist."""
        with Api(self._plane.access) as api:
            paths = [
                f"{_CORE}/{namespace}/configmaps/{name}"
                for namespace in self.namespaces
                for name in ("by-rule", "in-cel")
            ]
            return [path for path in paths if api.ask("GET", path)[0] != 200]

    def unfinished(self) -> set[str]:
        """Return the namespaces that lack an object."""
        return {path.split("/")[4] for path in self.not_generated()}

    def lacking(self) -> list[str]:
        """Return what is not generated and what Kyverno has not taken up.

        Its background controller (1.18.2) creates some objects in CEL and deletes them
        at once, or reads that one does not exist and completes the UpdateRequest.
        """
        taken_up = {
            f"{_CORE}/{call.namespace}/configmaps/{call.name}"
            for call in self._plane.audit.asked()
            if call.resource == "configmaps" and _BACKGROUND in call.agent
        }
        return [path for path in self.not_generated() if path not in taken_up]

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Run the clients during a block."""
        self._stopping.clear()
        self.counts.clear()
        self.wrong, self.cut, self.announced = [], [], 0
        self.namespaces = []
        targets = [self._call] * CALLERS + [self._create_namespaces]
        threads = [
            threading.Thread(target=target, args=(number,), name=f"client-{number}")
            for number, target in enumerate(targets)
        ]
        for thread in threads:
            thread.start()
        try:
            self._await_more()
            yield
            self._await_more()
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def tell(self) -> None:
        """Print what the clients saw."""
        print(f"\n{self.counts.total()} requests, {len(self.namespaces)} namespaces,")
        print(f"{self.announced} announced denials", *self.wrong, *self.cut, sep="\n")

    def _await_more(self) -> None:
        before = Counter(self.counts)
        whats = [case.what for case in CASES]
        wait_for(lambda: all(self.counts[one] > before[one] + 5 for one in whats))

    def _call(self, number: int) -> None:
        with Api(self._plane.access) as api:
            while not self._stopping.is_set():
                for case in CASES:
                    self._stopping.wait(PAUSE_S)
                    name = f"load-{number}-{unique()}"
                    said = self._ask(api, case, name)
                    self.counts[case.what] += 1
                    if said and case.known and case.known in said:
                        self.announced += 1
                    elif said:
                        self._note(said)

    def _create_namespaces(self, _number: int) -> None:
        """Create Namespaces, in each of which two objects are generated."""
        with Api(self._plane.access) as api:
            while not self._stopping.wait(NAMESPACE_S):
                name = f"taken-{unique()}"
                status, answer = _sent(api, "POST", _CORE, {"metadata": {"name": name}})
                if status == 201:
                    self.namespaces.append(name)
                else:
                    self._note(f"namespace: {status} {answer}")

    def _note(self, said: str) -> None:
        seen = self.cut if any(one in said for one in _CUT) else self.wrong
        seen.append(f"{time.strftime('%H:%M:%S')} {said}"[:_SHOWN])

    def _ask(self, api: Api, case: Case, name: str) -> str:
        """Send a request; return what is wrong with the answer."""
        path = f"{_CORE}/{NAMESPACE}/{case.plural}"
        status, answer = _sent(api, "POST", path, case.body(name))
        if status == 201:
            _sent(api, "DELETE", f"{path}/{name}?gracePeriodSeconds=0")
        if case.denial:
            if status != 201 and case.denial in str(answer):
                return ""
        elif status == 201 and case.changed(answer):
            return ""
        return f"{case.what}: {status} {answer}"


def _sent(api: Api, method: str, path: str, body: Json = None) -> tuple[int, Json]:
    try:
        return api.ask(method, path, body)
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error)


def _is_created(api: Api, path: str, raw: Json) -> bool:
    status, answer = api.ask("POST", path, raw)
    # The webhook of a new policy may lack a permission that was just granted.
    early = ("permission", "failed calling webhook", "no endpoints")
    if status not in (201, 409) and not any(one in str(answer) for one in early):
        raise Refused(status, answer)
    return status in (201, 409)


def _pod(image: str = "example.org/c:1", **labels: str) -> Callable[[str], Json]:
    containers = [{"name": "c", "image": image}]
    tolerations = [{"key": "first", "operator": "Exists"}]
    return lambda name: {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": containers, "tolerations": tolerations},
    }


def _appended(answer: Json) -> bool:
    """Return whether the mutate rule appended its toleration, once."""
    keys = [one.get("key") for one in answer["spec"]["tolerations"]]
    return keys.count("appended") == 1


def _map(name: str) -> Json:
    return {"metadata": {"name": name, "annotations": {"seen": "x"}}}


def _service(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}


_GOOD: Final = {"team": "a", "owner": "b"}
CASES: Final = (
    Case("allowed and mutated", "pods", _pod(**_GOOD), changed=_appended),
    Case("ClusterPolicy", "pods", _pod(owner="b"), "label team is needed"),
    Case("Policy", "pods", _pod(team="a"), "label owner is needed"),
    Case("ValidatingPolicy", "pods", _pod(**_GOOD, bad="yes"), "bad is forbidden"),
    Case(
        "NamespacedValidatingPolicy",
        *("pods", _pod(**_GOOD, worse="yes"), "worse is forbidden"),
    ),
    Case(
        "PolicyException",
        *("pods", _pod(owner="b", excepted="yes")),
        changed=_appended,
    ),
    Case(
        "PolicyException in CEL",
        *("pods", _pod(**_GOOD, bad="yes", spared="yes")),
        changed=_appended,
    ),
    Case(
        "MutatingPolicy",
        *("configmaps", _map),
        changed=lambda answer: answer["metadata"]["annotations"]["seen"] == "xy",
    ),
    Case(
        "ImageValidatingPolicy",
        *("services", _service),
        known="image verification failed",
    ),
)


def _kind(version: str, kind: str, name: str, spec: Json, namespace: str = "") -> Json:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _matched(resource: str) -> Json:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": [resource],
    }
    return {"resourceRules": [rule]}


def _any(kind: str, **more: Json) -> Json:
    return {"any": [{"resources": {"kinds": [kind], **more}}]}


def _needs(label: str) -> Json:
    return {
        "name": "needs",
        "match": _any("Pod"),
        "validate": {
            "failureAction": "Enforce",
            "message": f"label {label} is needed",
            "pattern": {"metadata": {"labels": {label: "?*"}}},
        },
    }


def _policies() -> Iterator[tuple[str, Json]]:
    """Yield collections and what belongs there: a permission first."""
    yield (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        {
            "metadata": {
                "name": "taken",
                "labels": {
                    "rbac.kyverno.io/aggregate-to-background-controller": "true"
                },
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "verbs": ["get", "list", "watch", "create", "update", "delete"],
                }
            ],
        },
    )
    yield from _of_the_first_generation()
    yield from _in_cel()


def _of_the_first_generation() -> Iterator[tuple[str, Json]]:
    clusterwide = f"{_KYVERNO}/v1/clusterpolicies"
    toleration = (
        "op: add\npath: /spec/tolerations/-\nvalue: {key: appended, operator: Exists}"
    )
    patch = "- " + toleration.replace("\n", "\n  ")
    target = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "by-rule",
        "namespace": "{{ request.object.metadata.name }}",
        "synchronize": True,
        "data": {"data": {"by": "rule"}},
    }
    selected = _any("Namespace", names=["taken-*"])
    for name, rule in (
        ("taken-needs", _needs("team")),
        (
            "taken-appends",
            {
                "name": "appends",
                "match": _any("Pod", namespaces=[NAMESPACE]),
                "mutate": {"patchesJson6902": patch},
            },
        ),
        (
            "taken-generates",
            {"name": "generates", "match": selected, "generate": target},
        ),
    ):
        spec = {"background": False, "rules": [rule]}
        yield clusterwide, _kind("kyverno.io/v1", "ClusterPolicy", name, spec)
    spec = {"background": False, "rules": [_needs("owner")]}
    yield (
        f"{_KYVERNO}/v1/namespaces/{NAMESPACE}/policies",
        _kind("kyverno.io/v1", "Policy", "taken-owned", spec, NAMESPACE),
    )
    labelled = {"selector": {"matchLabels": {"excepted": "yes"}}}
    spec = {
        "match": _any("Pod", **labelled),
        "exceptions": [{"policyName": "taken-needs", "ruleNames": ["needs"]}],
    }
    yield (
        f"{_KYVERNO}/v2/namespaces/{NAMESPACE}/policyexceptions",
        _kind("kyverno.io/v2", "PolicyException", "taken", spec, NAMESPACE),
    )


def _in_cel() -> Iterator[tuple[str, Json]]:
    version = "policies.kyverno.io/v1"
    inside = f"{_CEL}/namespaces/{NAMESPACE}"

    def forbids(label: str) -> Json:
        expression = f"object.metadata.?labels[?'{label}'].orValue('') == ''"
        return {
            "matchConstraints": _matched("pods"),
            "validationActions": ["Deny"],
            "validations": [
                {"expression": expression, "message": f"{label} is forbidden"}
            ],
        }

    yield (
        f"{_CEL}/validatingpolicies",
        _kind(version, "ValidatingPolicy", "taken-bad", forbids("bad")),
    )
    yield (
        f"{inside}/namespacedvalidatingpolicies",
        _kind(
            *(version, "NamespacedValidatingPolicy", "taken-worse"),
            *(forbids("worse"), NAMESPACE),
        ),
    )
    spared = "object.metadata.?labels[?'spared'].orValue('') == 'yes'"
    yield (
        f"{inside}/policyexceptions",
        _kind(
            *(version, "PolicyException", "taken"),
            {
                "policyRefs": [{"name": "taken-bad", "kind": "ValidatingPolicy"}],
                "matchConditions": [{"name": "spared", "expression": spared}],
            },
            NAMESPACE,
        ),
    )
    value = "object.metadata.annotations['seen'] + 'y'"
    appends = (
        "[JSONPatch{op: 'replace', path: '/metadata/annotations/seen', "
        f"value: {value}}}]"
    )
    has = "object.metadata.?annotations[?'seen'].orValue('') == 'x'"
    yield (
        f"{_CEL}/mutatingpolicies",
        _kind(
            *(version, "MutatingPolicy", "taken-appends"),
            {
                "matchConstraints": _matched("configmaps"),
                "matchConditions": [{"name": "seen", "expression": has}],
                "mutations": [
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": appends}}
                ],
            },
        ),
    )
    yield (
        f"{_CEL}/imagevalidatingpolicies",
        _kind(
            *(version, "ImageValidatingPolicy", "taken-pinned"),
            {
                "matchConstraints": _matched("services"),
                "matchImageReferences": [{"glob": "signed.example.org/*"}],
                "attestors": [{"name": "n", "notary": {"certs": {"value": "c"}}}],
                "validations": [{"expression": "true"}],
            },
        ),
    )
    made = (
        "[{'apiVersion': dyn('v1'), 'kind': dyn('ConfigMap'), "
        "'metadata': dyn({'name': 'in-cel'}), 'data': dyn({'by': 'cel'})}]"
    )
    yield (
        f"{_CEL}/generatingpolicies",
        _kind(
            *(version, "GeneratingPolicy", "taken-generates"),
            {
                "matchConstraints": _matched("namespaces"),
                "matchConditions": [
                    {
                        "name": "ours",
                        "expression": "object.metadata.name.startsWith('taken-')",
                    }
                ],
                "evaluation": {"synchronize": {"enabled": True}},
                "generate": [
                    {"expression": f"generator.Apply(object.metadata.name, {made})"}
                ],
            },
        ),
    )
