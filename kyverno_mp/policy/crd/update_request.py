"""Declare UpdateRequest: background work after an admission.

Room: policy. Takes: nothing. Gives: its schemas by version.
Next: policy/crd/typed_kinds.py.
Source: docs/behaviour/controllers 1.4; k8s.io/api admission/v1 (AdmissionRequest).
"""

from typing import Final

from kyverno_mp.policy.crd.notation import (
    ATOMIC_TEXTS,
    BOOLEAN,
    FREE_OBJECT,
    INTEGER,
    TEXT,
    TEXTS,
    Fields,
    choice,
    items,
    record,
)

_RESOURCE: Final = record(
    dict.fromkeys(("apiVersion", "kind", "namespace", "name", "uid"), TEXT)
)
_USER: Final = record(
    {
        "username": TEXT,
        "uid": TEXT,
        "groups": ATOMIC_TEXTS,
        "extra": {"type": "object", "additionalProperties": TEXTS},
    }
)
_KIND: Final = record({"group*": TEXT, "version*": TEXT, "kind*": TEXT})
_RESOURCE_NAME: Final = record({"group*": TEXT, "version*": TEXT, "resource*": TEXT})
_ADMISSION_REQUEST: Final = record(
    {
        "uid*": TEXT,
        "kind*": _KIND,
        "resource*": _RESOURCE_NAME,
        "subResource": TEXT,
        "requestKind": _KIND,
        "requestResource": _RESOURCE_NAME,
        "requestSubResource": TEXT,
        "name": TEXT,
        "namespace": TEXT,
        "operation*": TEXT,
        "userInfo*": _USER,
        "object": FREE_OBJECT,
        "oldObject": FREE_OBJECT,
        "dryRun": BOOLEAN,
        "options": FREE_OBJECT,
    }
)
_NULLABLE_TEXTS: Final = {**TEXTS, "nullable": True}
_USER_INFO: Final[Fields] = {
    "roles": _NULLABLE_TEXTS,
    "clusterRoles": _NULLABLE_TEXTS,
    "userInfo": _USER,
}
_ADMISSION_INFO: Final = record(
    {"admissionRequest": _ADMISSION_REQUEST, "operation": TEXT}
)
_RULE_CONTEXT: Final = record(
    {
        "rule*": TEXT,
        "deleteDownstream*": BOOLEAN,
        "synchronize": BOOLEAN,
        "cacheRestore": BOOLEAN,
        "trigger*": _RESOURCE,
    }
)
_SPEC: Final[Fields] = {
    "policy*": TEXT,
    "rule*": TEXT,
    "deleteDownstream*": BOOLEAN,
    "synchronize": BOOLEAN,
    "resource*": _RESOURCE,
}
_STATUS: Final[Fields] = {
    "state*": TEXT,
    "message": TEXT,
    "generatedResources": items(_RESOURCE),
    "retryCount": INTEGER,
}

UPDATE_REQUEST: Final[Fields] = {
    "spec": record(
        {
            **_SPEC,
            "requestType": choice("mutate", "generate", "cel-generate", "cel-mutate"),
            "ruleContext": items(_RULE_CONTEXT),
            "context*": record(
                {
                    # KYVERNO: upstream's name of the dry-run flag (1.4).
                    "userInfo": record({**_USER_INFO, "synchronize": BOOLEAN}),
                    "admissionRequestInfo": _ADMISSION_INFO,
                }
            ),
        }
    ),
    "status": record(_STATUS),
}

UPDATE_REQUEST_V1BETA1: Final[Fields] = {
    "spec": record(
        {
            **_SPEC,
            "requestType": choice("mutate", "generate"),
            "context*": record(
                {
                    "userInfo": record(_USER_INFO),
                    "admissionRequestInfo": _ADMISSION_INFO,
                }
            ),
        }
    ),
    "status": record({**_STATUS, "handler": TEXT}),
}
"""Not served; declared for objects that an older release has stored."""
