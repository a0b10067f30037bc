"""Keep a namespaced policy within its namespace, by one test for all rules.

Room: program. Takes: the policy's namespace, the namespace that a rule wants to read or
write. Gives: whether this is forbidden; the caller raises Kyverno's error for its part
of the rule. Next: program/context/api_call.py, program/context/loaders.py,
program/bodies/cel_params.py, program/generate/pattern.py, program/generate/sources.py.
Source: docs/behaviour/lessons 4.2; docs/behaviour/engine 3.7.

The targets of a mutate rule need no test: their namespace is always the policy's.
egress/paths.py checks the path of a call again, independently, before it is sent.
"""


def is_outside(policy_namespace: str, namespace: str) -> bool:
    """Return whether the policy is not allowed to access the namespace.

    ``policy_namespace``: "" for a cluster-wide policy, which can access all namespaces;
    ``namespace``: "" for cluster-scoped objects, which a namespaced policy cannot
    access.
    """
    return bool(policy_namespace) and namespace != policy_namespace
