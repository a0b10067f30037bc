"""Compare the permissions that deploy/ grants with the calls that were made.

Takes: deploy/parts, the audit log. Gives: granted, names_of, is_used,
is_explained. Next:
pods/test_living.py. May touch: the files of deploy/parts.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.e2e.audit import Asked

_PARTS: Final = Path(__file__).resolve().parents[2] / "deploy" / "parts"


Needed = dict[tuple[str, str, str], set[str]]


class Granted(NamedTuple):
    """One verb on one resource for one account, as a rule grants it."""

    account: str
    """Its component: admission, background, cleanup, reports."""
    verb: str
    resource: str
    """Plural and group, such as ``deployments.apps``, with the subresource."""
    names: tuple[str, ...] = ()
    """The names to which the rule is limited."""

    def __str__(self) -> str:
        names = f" named {', '.join(self.names)}" if self.names else ""
        return f"{self.account}: {self.verb} {self.resource}{names}"


_KINDS: Final = (
    r"(ingresses|ingressclasses|networkpolicies)\.networking\.k8s\.io",
    r"(roles|rolebindings)\.rbac\.authorization\.k8s\.io",
    r"(resourcequotas|limitranges)",
    r"(resourceclaims|resourceclaimtemplates)\.resource\.k8s\.io",
    r"configmaps",
)
EXPLAINED: Final = {
    # What users' policies do, with upstream's default kinds.
    rf"background: (create|delete|patch|update) ({'|'.join(_KINDS)})": "generate rules",
    r"admission: (list|watch) roles\..*": "upstream's default: context of policies",
    r"admission: watch clusterroles\..*": "upstream's default: context of policies",
    # What settings turn on.
    r"admission: .* (mutating|validating)admissionpolic.*": (
        "KYVERNO_MP_GENERATE_*_ADMISSION_POLICIES"
    ),
    r"reports: .* (cluster)?reports\.openreports\.io": "KYVERNO_MP_REPORTS_OPEN",
    r".* configmaps named kyverno, kyverno-metrics": (
        "a pod whose account may not read all ConfigMaps"
    ),
    r"background: create subjectaccessreviews\..*": "authors of policies",
    r"admission: patch configmaps named kyverno-mp-rollouts": "gradual enforcement",
    # What only happens to an installation: certificates, upgrades, the last replica.
    r"admission: (delete|update) secrets named .*": "certificates that end",
    r"admission: update updaterequests\..*": "requests that an update replaces",
    r"admission: patch updaterequests\.kyverno\.io/status": "the way back to Kyverno",
    r"background: patch updaterequests\.kyverno\.io/status": "failed requests",
    r"background: create updaterequests\..*": "the way back to Kyverno",
    r"reports: .* clusterephemeralreports\..*": "upstream's default",
    r"(background|cleanup|reports): (delete|patch) leases\..*": "upstream's default",
    r".*: patch events\.events\.k8s\.io": "Events that are repeated",
    r"cleanup: create events\.events\.k8s\.io": "runs that fail",
    r"background: (list|watch) (namespaced)?mutatingpolicies\..*": "upstream's default",
    # What no kind of this scenario needs.
    r"reports: .* mutatingadmissionpolic.*": "a cluster with such policies",
    r"reports: (delete|update) clusterpolicyreports\..*": "cluster-wide objects",
    r"(background|reports): (list|watch) rolebindings\..*": "a Role of the account",
}
"""Permissions that no call of the scenario needs, as regular expressions, and why they
are granted."""


def granted() -> Iterator[Granted]:
    """Yield everything that the parts grant."""
    files = (*sorted(_PARTS.glob("*-rbac.yaml")), _PARTS / "pool-tokens.yaml")
    for path in files:
        account = path.name.partition("-rbac")[0]
        account = "admission" if path.name == "pool-tokens.yaml" else account
        for raw in yaml.safe_load_all(path.read_text()):
            if raw and raw["kind"] in ("ClusterRole", "Role"):
                for rule in raw.get("rules") or ():
                    yield from _of(account, rule)


def _of(account: str, rule: Any) -> Iterator[Granted]:
    names = tuple(rule.get("resourceNames") or ())
    for group in rule["apiGroups"]:
        for plural in rule["resources"]:
            resource, slash, part = plural.partition("/")
            whole = f"{resource}.{group}" if group else resource
            for verb in rule["verbs"]:
                yield Granted(account, verb, f"{whole}{slash}{part}", names)


def names_of(calls: Iterable[Asked]) -> Needed:
    """Return the names of the objects in calls, by account, verb and resource."""
    found: Needed = {}
    for call in calls:
        account = call.user.rpartition(":")[2]
        component = account.removeprefix("kyverno-").removesuffix("-controller")
        plural, slash, part = call.resource.partition("/")
        whole = f"{plural}.{call.group}" if call.group else plural
        key = component, call.verb, f"{whole}{slash}{part}"
        found.setdefault(key, set()).add(call.name)
    return found


def is_used(one: Granted, needed: Needed) -> bool:
    """Return whether a call needed the permission."""
    names = needed.get((one.account, one.verb, one.resource), set())
    return any(not one.names or name in one.names for name in names)


def is_explained(one: Granted, all_granted: Collection[Granted]) -> bool:
    """Return whether the permission has a reason although no call needed it.

    Upstream grants get with list and watch, and people read with the same rules.
    """
    others = (one._replace(verb=verb) for verb in ("list", "watch"))
    if one.verb == "get" and any(other in all_granted for other in others):
        return True
    return any(re.fullmatch(pattern, str(one)) for pattern in EXPLAINED)
