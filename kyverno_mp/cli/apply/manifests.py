"""Give rules with ``validate.manifests`` what verifies them.

Room: cli. Takes: ports, compiled policies. Gives: the ports. Next: apply/evaluate.
May touch: nothing outside its arguments.
Source: docs/behaviour/images 7.
"""

from collections.abc import Sequence
from dataclasses import replace

from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.program.ports import ClusterData


def with_manifests(
    cluster_data: ClusterData, policies: Sequence[CompiledPolicy]
) -> ClusterData:
    """Return the ports, with a verifier if a policy needs it."""
    if not any(
        rule.validate is not None and rule.validate.manifests is not None
        for policy in policies
        for rule in policy.rules
    ):
        return cluster_data
    # PERF: start of the command line: few runs verify signatures.
    from kyverno_mp.cli.cluster.manifest_access import manifest_verifier

    return replace(cluster_data, manifests=manifest_verifier())
