"""Find metadata and status of a document that an API server would not store.

Room: policy. Takes: a raw document from a file. Gives: Problems. Next: the CLI (apply,
test, lint), whose documents were never checked by an API server.
Source: Kubernetes apimachinery api/validation (ObjectMeta); docs/behaviour/cli 4.
"""

from collections.abc import Iterator
from typing import Final

import re2

from kyverno_mp.policy.problems import Problem
from kyverno_mp.policy.reading.decode import BETA, POLICIES
from kyverno_mp.values.go.gotime_parse import is_time
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    CLEANUP_POLICY,
    POLICY_KINDS,
)
from kyverno_mp.values.kubernetes.selector import is_label_key, is_label_value

_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re2.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_DNS_LABEL: Final = re2.compile(_LABEL)
_SUBDOMAIN_LENGTH_MAX: Final = 253
_LABEL_LENGTH_MAX: Final = 63
_ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
_CLUSTER_SCOPED: Final = frozenset(
    {
        *(row.cluster.kind for row in POLICY_KINDS),
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
_OWNER: Final = ("apiVersion", "kind", "name", "uid")
_NO_OWNER: Final = ("v1", "Event")
_TIMES: Final = ("creationTimestamp", "deletionTimestamp")
_WITH_STATUS: Final = (
    *POLICIES,
    *CLEANUP_POLICY.names,
    "ValidatingAdmissionPolicy",
)
_NAMED: Final[dict[str, Json]] = {"x-kubernetes-list-map-keys": ("name",)}
_KEYED: Final[dict[str, dict[str, Json]]] = {
    "ValidatingAdmissionPolicy": {"matchConditions": _NAMED, "variables": _NAMED},
    "MutatingAdmissionPolicy": {"matchConditions": _NAMED},
    "ValidatingAdmissionPolicyBinding": {
        "validationActions": {"x-kubernetes-list-type": "set"}
    },
}
"""K8S: the lists with keys; ``variables`` of a MutatingAdmissionPolicy have none."""
_ACTIONS: Final = ("mutate", "validate", "generate")
_SOURCES: Final = (
    "configMap",
    "apiCall",
    "imageRegistry",
    "variable",
    "globalReference",
)
_OPERATIONS: Final = ("Apply", "Update")
_DEPENDENTS: Final = frozenset({"orphan", "foregroundDeletion"})


def storage_problems(raw: dict[str, Json]) -> tuple[Problem, ...]:
    """Return the problems of a document whose other fields are valid.

    A null is treated as absent, or as an empty string in a map of strings.
    """
    metadata = raw.get("metadata")
    problems = list(_metadata(metadata, raw)) if type(metadata) is dict else []
    if raw.get("status") is not None and raw.get("kind") in _WITH_STATUS:
        # Imported late: importing the schemas is slow, and a status is rare.
        from kyverno_mp.policy.schema import status_problems

        problems += status_problems(raw["kind"], raw["status"])
    if raw.get("apiVersion") == BETA and raw.get("kind") in POLICIES:
        from kyverno_mp.policy.schema import beta_problems

        problems += beta_problems(raw)
    spec = raw.get("spec")
    if type(spec) is dict and raw.get("kind") in _KEYED:
        problems += _repeated(spec, _KEYED[raw["kind"]])
    if type(spec) is dict and str(raw.get("apiVersion")).startswith("kyverno.io/"):
        problems += _choices(spec)
    return tuple(problems)


def _repeated(spec: dict[str, Json], keyed: dict[str, Json]) -> Iterator[Problem]:
    """Yield problems of list entries that repeat an earlier entry's key."""
    for name, keys in keyed.items():
        listed = spec.get(name)
        if type(listed) is list and len(listed) > 1:
            # Imported late, as above.
            from kyverno_mp.policy.schema import duplicates

            yield from duplicates(listed, keys, f"spec.{name}")


def _choices(spec: dict[str, Json]) -> Iterator[Problem]:
    """Yield problems of fields of which exactly one must be set."""
    yield from _blocks(spec, "spec")
    yield from _contexts(spec, "spec")
    for index, rule in enumerate(_maps(spec, "rules")):
        path = f"spec.rules[{index}]"
        yield from _blocks(rule, path)
        yield from _contexts(rule, path)
        for action in _ACTIONS:
            body = rule.get(action)
            if type(body) is dict:
                yield from _contexts_below(body, f"{path}.{action}")


def _contexts_below(body: dict[str, Json], path: str) -> Iterator[Problem]:
    for name in ("foreach", "targets"):
        for index, entry in enumerate(_maps(body, name)):
            yield from _contexts(entry, f"{path}.{name}[{index}]")


def _blocks(holder: dict[str, Json], path: str) -> Iterator[Problem]:
    for name in ("match", "exclude"):
        block = holder.get(name)
        if type(block) is not dict:
            continue
        block_path = f"{path}.{name}"
        yield from _not_both(block, ("any", "all"), block_path)
        filters = [block, *_maps(block, "any"), *_maps(block, "all")]
        for each in filters:
            resources = each.get("resources")
            if type(resources) is dict:
                yield from _not_both(resources, ("name", "names"), block_path)


def _not_both(
    holder: dict[str, Json], names: tuple[str, str], path: str
) -> Iterator[Problem]:
    if all(holder.get(name) is not None for name in names):
        reason = f"{names[0]} and {names[1]} may not both be given"
        yield Problem("policy.one_of", path, "", reason)


def _contexts(holder: dict[str, Json], path: str) -> Iterator[Problem]:
    for index, entry in enumerate(_maps(holder, "context")):
        sources = [name for name in _SOURCES if entry.get(name) is not None]
        if len(sources) != 1:
            message = f"exactly one of {', '.join(_SOURCES)} must be given"
            yield Problem("policy.one_of", f"{path}.context[{index}]", "", message)


def _metadata(metadata: dict[str, Json], raw: dict[str, Json]) -> Iterator[Problem]:
    yield from _names(metadata, raw)
    for key, value in _texts(metadata, "labels"):
        if not is_label_key(key):
            yield _problem(f"labels.{key}", "the key is not a qualified name")
        if not is_label_value(value):
            yield _problem(f"labels.{key}", f'"{value}" is not a label value')
    size = 0
    for key, value in _texts(metadata, "annotations"):
        size += len(key.encode()) + len(value.encode())
        if not is_label_key(key.lower()):
            yield _problem(f"annotations.{key}", "the key is not a qualified name")
    if size > _ANNOTATIONS_BYTES_MAX:
        reason = f"more than {_ANNOTATIONS_BYTES_MAX} bytes"
        yield _problem("annotations", reason)
    for key in _TIMES:
        if type(metadata.get(key)) is str and not is_time(metadata[key]):
            yield _problem(key, f'"{metadata[key]}" is not an RFC 3339 time')
    yield from _owners(metadata)
    yield from _finalizers(metadata)
    for index, entry in enumerate(_listed(metadata, "managedFields")):
        if type(entry) is dict and entry.get("operation") not in _OPERATIONS:
            yield _problem(f"managedFields[{index}].operation", "is not known")


def _names(metadata: dict[str, Json], raw: dict[str, Json]) -> Iterator[Problem]:
    name, prefix = _text(metadata, "name"), _text(metadata, "generateName")
    if not name:
        # Names are not generated for documents in files.
        yield _problem("name", "Required value", "policy.required")
    elif len(name) > _SUBDOMAIN_LENGTH_MAX or not _SUBDOMAIN.fullmatch(name):
        yield _problem("name", f'"{name}" is not a lowercase RFC 1123 subdomain')
    # K8S: a prefix may end with a dash; the dash and the character before it are not
    # checked.
    is_masked = len(prefix) > 1 and prefix.endswith("-")
    example = f"{prefix[:-2]}a" if is_masked else prefix
    if prefix and not _SUBDOMAIN.fullmatch(example):
        message = f'"{prefix}" is not the start of a lowercase RFC 1123 subdomain'
        yield _problem("generateName", message)
    namespace = _text(metadata, "namespace")
    if namespace and raw.get("kind") not in _CLUSTER_SCOPED:
        fits = len(namespace) <= _LABEL_LENGTH_MAX and _DNS_LABEL.fullmatch(namespace)
        if not fits:
            message = f'"{namespace}" is not a lowercase RFC 1123 label'
            yield _problem("namespace", message)


def _owners(metadata: dict[str, Json]) -> Iterator[Problem]:
    controllers = 0
    for index, owner in enumerate(_listed(metadata, "ownerReferences")):
        fields = owner if type(owner) is dict else {}
        for key in _OWNER:
            if not fields.get(key):
                yield _problem(f"ownerReferences[{index}].{key}", "must not be empty")
        if (fields.get("apiVersion"), fields.get("kind")) == _NO_OWNER:
            yield _problem(f"ownerReferences[{index}]", "an Event may not be an owner")
        controllers += fields.get("controller") is True
    if controllers > 1:
        yield _problem("ownerReferences", "only one may be the controller")


def _finalizers(metadata: dict[str, Json]) -> Iterator[Problem]:
    names = _listed(metadata, "finalizers")
    for index, name in enumerate(names):
        if type(name) is not str or not is_label_key(name):
            yield _problem(f"finalizers[{index}]", "is not a qualified name")
    if all(name in names for name in _DEPENDENTS):
        yield _problem("finalizers", "only one way to delete dependents is allowed")


def _text(metadata: dict[str, Json], key: str) -> str:
    value = metadata.get(key)
    return value if type(value) is str else ""


def _texts(metadata: dict[str, Json], key: str) -> Iterator[tuple[str, str]]:
    labels = metadata.get(key)
    for name, value in labels.items() if type(labels) is dict else ():
        yield name, value if type(value) is str else ""


def _listed(holder: dict[str, Json], key: str) -> list[Json]:
    value = holder.get(key)
    return value if type(value) is list else []


def _maps(holder: dict[str, Json], key: str) -> list[dict[str, Json]]:
    """Return the maps in a list; other items are reported elsewhere."""
    return [each if type(each) is dict else {} for each in _listed(holder, key)]


def _problem(path: str, reason: str, code: str = "policy.metadata") -> Problem:
    return Problem(code, f"metadata.{path}", "", reason)
