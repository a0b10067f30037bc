"""Keep a namespaced policy within its namespace: the one test that all rules use.

Room: program. Takes: the policy's namespace, the namespace that a rule wants to read or
write. Gives: whether that is forbidden; the caller raises Kyverno's error for its part
of the rule. Next: program/context/api_call.py, program/context/loaders.py,
program/bodies/cel_params.py, program/generate/pattern.py, program/generate/sources.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/lessons 4.2; docs/behaviour/engine 3.7.

The targets of a mutate rule need no test: their namespace is always the policy's.
egress/paths.py checks the path of a call again, independently, before it is sent.
"""


def is_outside(policy_namespace: str, namespace: str) -> bool:
    """Return whether the policy must not reach the namespace.

    ``policy_namespace``: "" for a cluster-wide policy, which may reach all of them;
    ``namespace``: "" for objects without one, which a namespaced policy cannot reach.
    """
    return bool(policy_namespace) and namespace != policy_namespace
