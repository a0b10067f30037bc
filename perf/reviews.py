"""The reviews for perf/admission.py: one Pod that conforms and one that does not.

wrk_review.lua creates a thousand Pods from each by replacing ``abcde``.
"""

from typing import Any


def _container(number: int, *, privileged: bool) -> dict[str, Any]:
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if privileged:
        security = {"privileged": True}
    return {
        "name": f"app-{number}",
        "image": f"registry.example.com/team/app-{number}:1.2.3",
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"containerPort": 8080 + number, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{n}", "value": "x" * 24} for n in range(8)],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"memory": "128Mi"},
        },
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"},
            "periodSeconds": 10,
            "timeoutSeconds": 1,
        },
        "securityContext": security,
        "volumeMounts": [
            {
                "name": "kube-api-access-abcde",
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                "readOnly": True,
            }
        ],
    }


def _managed_fields() -> list[dict[str, Any]]:
    fields: dict[str, Any] = {
        f"f:field-{n}": {".": {}, "f:value": {}} for n in range(40)
    }
    return [
        {
            "manager": "kube-controller-manager",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": fields},
        }
    ]


def _review(*, privileged: bool) -> dict[str, Any]:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-6d4cf56db6-abcde",
            "generateName": "web-6d4cf56db6-",
            "namespace": "default",
            "uid": "2f7e7c1c-6b8e-4a55-9d11-1b0c8f6f2a10",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {f"app.kubernetes.io/label-{n}": f"value-{n}" for n in range(5)},
            "annotations": {"example.com/note": "y" * 120},
            "managedFields": _managed_fields(),
        },
        "spec": {
            "containers": [_container(n, privileged=privileged) for n in range(2)],
            "volumes": [
                {
                    "name": "kube-api-access-abcde",
                    "projected": {
                        "defaultMode": 420,
                        "sources": [
                            {
                                "serviceAccountToken": {
                                    "expirationSeconds": 3607,
                                    "path": "token",
                                }
                            }
                        ],
                    },
                }
            ],
            "restartPolicy": "Always",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{key}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for key in ("not-ready", "unreachable")
            ],
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": "web-6d4cf56db6-abcde",
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:kube-system",
                    "system:authenticated",
                ],
            },
            "object": pod,
            "oldObject": None,
            "dryRun": True,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


REVIEWS: dict[str, tuple[dict[str, Any], bool]] = {
    "allowed": (_review(privileged=False), True),
    "denied": (_review(privileged=True), False),
}
"""Scenario -> (review, whether it is allowed under the Pod Security policies)."""
