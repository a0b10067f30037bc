"""Define schema details of the typed documents that only the API server needs.

Room: policy. Takes: nothing. Gives: additions to derived schemas, by record and by
field. Next: policy/crd/declared.py merges them in.
Source: docs/behaviour/controllers 1.2 to 1.5; Kubernetes "merge strategy" markers.
"""

from collections.abc import Mapping
from typing import Final

from kyverno_mp.policy.crd.notation import Schema, one_of
from kyverno_mp.policy.documents.cluster_policy import Spec, WebhookConfiguration
from kyverno_mp.policy.documents.exception import ExceptionSpec
from kyverno_mp.policy.documents.global_context_entry import (
    ExternalAPICall,
    GlobalContextSpec,
)
from kyverno_mp.policy.fields.context import ContextEntry
from kyverno_mp.policy.fields.image_verification import Rekor
from kyverno_mp.policy.fields.match import (
    MatchFilters,
    MatchResources,
    ResourceDescription,
    Subject,
)
from kyverno_mp.policy.fields.meta import LabelSelector, LabelSelectorRequirement
from kyverno_mp.policy.fields.mutation import ForEachGeneration, ForEachMutation
from kyverno_mp.policy.fields.validation import (
    CEL,
    ForEachValidation,
    ParamKind,
    ParamRef,
)

_ATOMIC_MAP: Final[Schema] = {"x-kubernetes-map-type": "atomic"}
_ATOMIC_LIST: Final[Schema] = {"x-kubernetes-list-type": "atomic"}
_NOT_BOTH_LISTS: Final[Schema] = {"not": {"required": ["any", "all"]}}
_INT32: Final[Schema] = {"format": "int32"}
_OPEN: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}

RECORDS: Final[Mapping[type, Schema]] = {
    ContextEntry: {
        "oneOf": one_of(
            "configMap", "apiCall", "imageRegistry", "variable", "globalReference"
        )
    },
    GlobalContextSpec: {"oneOf": one_of("kubernetesResource", "apiCall")},
    LabelSelector: _ATOMIC_MAP,
    MatchFilters: _NOT_BOTH_LISTS,
    MatchResources: _NOT_BOTH_LISTS,
    ParamKind: _ATOMIC_MAP,
    ParamRef: _ATOMIC_MAP,
    ResourceDescription: {"not": {"required": ["name", "names"]}},
    Subject: _ATOMIC_MAP,
}
"""Additions to the schema of a record, wherever it appears."""

FIELDS: Final[Mapping[tuple[type, str], Schema]] = {
    (CEL, "generate"): {"default": False},
    (ExternalAPICall, "refreshInterval"): {"format": "duration"},
    (ForEachGeneration, "preconditions"): _OPEN,
    (ForEachMutation, "preconditions"): _OPEN,
    (ForEachValidation, "preconditions"): _OPEN,
    (LabelSelector, "matchExpressions"): _ATOMIC_LIST,
    (LabelSelectorRequirement, "values"): _ATOMIC_LIST,
    (Spec, "emitWarning"): {"default": False},
    (Spec, "webhookTimeoutSeconds"): _INT32,
    (WebhookConfiguration, "timeoutSeconds"): _INT32,
}
"""Additions to the schema of one field."""

FREE_FIELDS: Final[Mapping[type, frozenset[str]]] = {
    ForEachMutation: frozenset({"foreach"}),
    ForEachValidation: frozenset({"foreach"}),
}
"""Recursive fields, which a structural schema cannot express."""

NOT_STORED: Final[Mapping[type, frozenset[str]]] = {
    ExceptionSpec: frozenset({"background"}),
    Rekor: frozenset({"url"}),
}
"""Fields whose default is applied by our code instead of the API server."""
