"""Rewrite ClusterPolicies as equivalent ValidatingPolicies.

Room: cli. Takes: raw documents. Gives: a Rewrite for each policy. Next: command.py.
May touch: nothing outside its arguments, the clock for deadlines.
Source: docs/cli.md (move to ValidatingPolicies).
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.policy import fix_policy
from kyverno_mp.cli.fix.rewrite.inputs import reviews
from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.policy import resources_of, rewritten
from kyverno_mp.cli.fix.rewrite.proof import Difference, Pair
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.errors import InputError
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY

KIND: Final = VALIDATING_POLICY.name


REWRITTEN: Final = ClusterPolicy.__name__
"""The kind that can be rewritten."""


class Rewrite(NamedTuple):
    """The outcome for one policy; ``document`` is None if it was not rewritten.

    ``reason``: the construct without an equivalent, "" if ``differences`` are the
    reason.
    """

    name: str
    document: Json | None
    reason: str = ""
    requests: int = 0
    differences: Sequence[Difference] = ()


def rewrite(raw: Json) -> Rewrite:
    """Rewrite one ClusterPolicy; compare both policies on generated requests."""
    name = str((raw.get("metadata") or {}).get("name", ""))
    current = deepcopy(raw)
    fix_policy(current)
    try:
        policy = decode(current)
        assert isinstance(policy, ClusterPolicy)
        document = rewritten(policy)
        pair = Pair(policy, document)
    except NotRewritten as error:
        return Rewrite(name, None, str(error))
    except InputError as error:
        return Rewrite(name, None, f"it is not valid: {error.message}")
    rules = expand(policy)
    resources: Sequence[Resource] = sorted(resources_of(policy))
    tried = list(reviews(rules, resources))
    differences = list(pair.differences(tried))
    if differences:
        return Rewrite(name, None, "", len(tried), differences)
    return Rewrite(name, document, "", len(tried))
