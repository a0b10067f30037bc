"""Rewrite ClusterPolicies and clean-up policies as equivalent policies in CEL.

Room: cli. Takes: raw documents. Gives: a Rewrite for each policy. Next: command.py.
May touch: nothing outside its arguments, the clock for deadlines.
Source: docs/from-cluster-policy-to-cel.md.
"""

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.policy import fix_policy
from kyverno_mp.cli.fix.rewrite.delete import deletion_of
from kyverno_mp.cli.fix.rewrite.deletion_proof import compare
from kyverno_mp.cli.fix.rewrite.inputs import reviews
from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.policy import documents_of, resources_of
from kyverno_mp.cli.fix.rewrite.proof import Difference, Pair
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.errors import InputError
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CLEANUP_POLICY, WITH_RULES

CLEANUP: Final = frozenset(CLEANUP_POLICY.names)
"""The kinds whose policies delete stored objects."""
REWRITTEN: Final = frozenset((WITH_RULES.name, *CLEANUP))
"""The kinds that can be rewritten."""


class Rewrite(NamedTuple):
    """The outcome for one policy; ``documents`` is empty if it was not rewritten.

    ``reason``: the construct without an equivalent, "" if ``differences`` are the
    reason. ``kind``: that of the policy.
    """

    name: str
    documents: tuple[Json, ...]
    reason: str = ""
    requests: int = 0
    differences: Sequence[Difference] = ()
    kind: str = WITH_RULES.name

    @property
    def document(self) -> Json | None:
        """The first document; None without one."""
        return self.documents[0] if self.documents else None


def rewrite(raw: Json) -> Rewrite:
    """Rewrite one policy; compare both sides on generated requests or objects."""
    name = str((raw.get("metadata") or {}).get("name", ""))
    if raw.get("kind") in CLEANUP:
        return _rewrite_cleanup(raw, name)
    current = deepcopy(raw)
    fix_policy(current)
    try:
        policy = decode(current)
        assert isinstance(policy, AnyPolicy)
        pairs = documents_of(policy)
        requests, differences = _compared(pairs)
    except NotRewritten as error:
        return Rewrite(name, (), str(error))
    except InputError as error:
        return Rewrite(name, (), f"it is not valid: {error.message}")
    documents = () if differences else tuple(document for _, document in pairs)
    return Rewrite(name, documents, "", requests, differences)


def _compared(
    pairs: Sequence[tuple[AnyPolicy, Json]],
) -> tuple[int, list[Difference]]:
    """Return the number of requests, and those with different decisions.

    Raises: NotRewritten, InputError.
    """
    requests = 0
    differences: list[Difference] = []
    compared = [Pair(part, document) for part, document in pairs]
    for (part, _), pair in zip(pairs, compared, strict=True):
        resources: Sequence[Resource] = sorted(resources_of(part))
        tried = list(reviews(expand(part), resources))
        requests += len(tried)
        differences += pair.differences(tried)
    return requests, differences


def _rewrite_cleanup(raw: Json, name: str) -> Rewrite:
    outcome = partial(Rewrite, name, kind=raw["kind"])
    try:
        policy = decode(raw)
        assert isinstance(policy, AnyCleanupPolicy)
        deletion = deletion_of(policy)
        objects, differences = compare(policy, raw, deletion)
    except NotRewritten as error:
        return outcome((), str(error))
    except InputError as error:
        return outcome((), f"it is not valid: {error.message}")
    documents = () if differences else (deletion.document,)
    return outcome(documents, "", objects, differences)
