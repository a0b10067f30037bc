"""Compile a CleanupPolicy or ClusterCleanupPolicy.

Room: compiler. Takes: the decoded document. Gives: CleanupIR. Next: program/cleanup.
Source: docs/behaviour/controllers 1.3, 7.
"""

import msgspec

from kyverno_mp.compiler.described import describe
from kyverno_mp.compiler.rules.conditions import build_conditions
from kyverno_mp.compiler.rules.context import build_entries
from kyverno_mp.compiler.rules.match import build_exception_match
from kyverno_mp.errors import ExpressionInvalid, PolicyInvalid, Where
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy, CleanupPolicy


def compile_cleanup(document: AnyCleanupPolicy) -> CleanupIR:
    """Compile the policy; raises PolicyInvalid with the policy and the reason.

    Match, exclude and conditions follow the rules of PolicyExceptions: no operations,
    no user info. KYVERNO: a CleanupPolicy from a file without a namespace covers all
    namespaces (docs/behaviour/cli 13); the API server never stores such a policy.
    """
    spec, namespace = document.spec, ""
    if isinstance(document, CleanupPolicy):
        namespace = document.metadata.namespace
    exclude, name = spec.exclude, document.metadata.name
    try:
        return CleanupIR(
            policy=msgspec.structs.replace(
                describe(document.kind, document.metadata, namespace),
                admission=False,
                background=False,
            ),
            match=build_exception_match(spec.match),
            exclude=None if exclude is None else build_exception_match(exclude),
            context=build_entries(spec.context),
            conditions=build_conditions(spec.conditions, of_exception=True),
            schedule=spec.schedule,
            propagation=spec.deletion_propagation_policy or "",
        )
    except ExpressionInvalid as error:
        key = f"{namespace}/{name}" if namespace else name
        location = Where(policy=key, path=error.where.path or "spec")
        raise PolicyInvalid(error.code, error.message, location) from error
