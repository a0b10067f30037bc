"""Put into a cluster what Kyverno's suites take for granted beside Kyverno itself.

Takes: a connection. Gives: nothing. Next: the cases, some of which edit these objects;
so they are put back before each. May touch: the ConfigMap kyverno, one Node.
Source: Kyverno's chart (config.resourceFilters and others); kind's one node.
"""

from typing import Final

from tests.e2e.api import PATCH_TYPES, Api

_FILTERED: Final = (
    "Event,*,*",
    "*/*,kube-system,*",
    "*/*,kube-public,*",
    "*/*,kube-node-lease,*",
    "Node,*,*",
    "Node/?*,*,*",
    "APIService,*,*",
    "APIService/?*,*,*",
    "TokenReview,*,*",
    "SubjectAccessReview,*,*",
    "SelfSubjectAccessReview,*,*",
    "Binding,*,*",
    "Pod/binding,*,*",
    "ReplicaSet,*,*",
    "ReplicaSet/?*,*,*",
    "EphemeralReport,*,*",
    "ClusterEphemeralReport,*,*",
    "*/*,kyverno,*",
)
_CONFIG_MAP: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "kyverno", "namespace": "kyverno"},
    "data": {
        "resourceFilters": "".join(f"[{one}]" for one in _FILTERED),
        "excludeGroups": "system:nodes",
        "generateSuccessEvents": "false",
    },
}
_NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "kind-control-plane"},
    # Nothing is ever to run there.
    "spec": {"unschedulable": True},
}


def put_back(api: Api) -> None:
    """Make the surroundings what they are before a case."""
    for path, wanted in (
        ("/api/v1/namespaces/kyverno/configmaps/kyverno", _CONFIG_MAP),
        ("/api/v1/nodes/kind-control-plane", _NODE),
    ):
        query = "?fieldManager=e2e&force=true"
        status, answer = api.ask("PATCH", path + query, wanted, PATCH_TYPES["apply"])
        assert status in (200, 201), answer
