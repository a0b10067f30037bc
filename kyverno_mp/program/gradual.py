"""Decide for which subjects a policy is enforced that is put into force gradually.

Room: program. Takes: a PolicyIR with a rollout, a Request, the policy's Standing.
Gives: whether the policy is enforced for the request, and the subject. Next:
webhook/review/gradual.py.
Source: docs/gradual-enforcement.md.

A subject has a position from 0 to 99, which depends on the policy's name and on the
subject alone, so that each worker of each replica gives the same answer. The policy is
enforced below its share in percent: a larger share contains each smaller one.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_PERCENT: Final = 100
_LAST: Final = _PERCENT - 1
_TEMPLATE_HASH: Final = "pod-template-hash"


class Standing(NamedTuple):
    """The share of a policy in force, in percent.

    ``completed``: that of the last completed step. ``run`` identifies the step whose
    denials are counted, "" if none are.
    """

    percent: int
    completed: int = _PERCENT
    run: str = ""


Standings: TypeAlias = Callable[[PolicyIR], Standing]


def first_step(policy: PolicyIR) -> Standing:
    """Return the standing of a policy before anything is known about its rollout."""
    rollout = policy.rollout
    return Standing(_PERCENT if rollout is None else rollout.steps[0])


def position(policy: PolicyIR, request: Request) -> int:
    """Return the position of a request's subject among all subjects of the policy."""
    rollout = policy.rollout
    if rollout is None:
        return 0
    if rollout.rings:
        return _ring_position(rollout.rings, request)
    subject = owner(request) if rollout.by_owner else space(request)
    # The names of Kubernetes contain no line breaks.
    text = f"{policy.kind}\n{policy.key}\n{subject}"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _PERCENT


def relaxed(response: PolicyResponse) -> PolicyResponse:
    """Return a response as that of a policy that audits."""
    return replace(response, action="Audit", is_relaxed=True)


def owner(request: Request) -> str:
    """Return what owns the object: its controller, or the object itself.

    A Pod of a Deployment's ReplicaSet is owned by the Deployment, whichever revision.
    """
    metadata = _metadata(request)
    kind, name = request.kind, _name(metadata, request)
    references = metadata.get("ownerReferences")
    for reference in references if type(references) is list else ():
        if type(reference) is dict and reference.get("controller") is True:
            kind, name = str(reference.get("kind")), str(reference.get("name"))
            break
    labels = metadata.get("labels")
    revision = labels.get(_TEMPLATE_HASH) if type(labels) is dict else None
    if kind == "ReplicaSet" and type(revision) is str and revision:
        of_deployment = name.removesuffix(f"-{revision}")
        if of_deployment != name:
            kind, name = "Deployment", of_deployment
    return f"{request.namespace}/{kind}/{name}"


def _ring_position(rings: tuple[tuple[str, ...], ...], request: Request) -> int:
    """Return the same position for all namespaces of a ring; others are last."""
    namespace = _namespace(request)
    for number, ring in enumerate(rings if namespace else ()):
        if any(matches(pattern, namespace) for pattern in ring):
            return number * _PERCENT // len(rings)
    return _LAST


def _namespace(request: Request) -> str:
    """Return the object's namespace; a Namespace belongs to itself."""
    if request.kind == "Namespace" and not request.group:
        return request.name or _name(_metadata(request), request)
    return request.namespace


def space(request: Request) -> str:
    """Return the namespace, or kind and name of a cluster-wide object."""
    namespace = _namespace(request)
    return namespace or f"{request.kind}/{_name(_metadata(request), request)}"


def _metadata(request: Request) -> dict[str, Json]:
    """Return the metadata of the stored object, which an update cannot choose."""
    metadata = (request.old_object or request.object).get("metadata")
    return metadata if type(metadata) is dict else {}


def _name(metadata: dict[str, Json], request: Request) -> str:
    """Return ``generateName``, which the object has before and after its creation."""
    name = metadata.get("generateName") or metadata.get("name")
    return name if type(name) is str else request.name
