"""What the operator decides about webhooks, and what all configurations share.

Room: controllers. Takes: values of settings and of the ConfigMap ``kyverno``. Gives:
WebhookOptions; metadata and clientConfig of every configuration.
Next: webhook_config/{resources,static}.py. May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 3.1, 10.3.
"""

import base64
from dataclasses import dataclass, field
from typing import Final

from kyverno_mp.values.jsonvalue import Json

MANAGED_BY: Final = "webhook.kyverno.io/managed-by"
MANAGER: Final = "kyverno"
VALIDATING: Final = "ValidatingWebhookConfiguration"
MUTATING: Final = "MutatingWebhookConfiguration"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """The operator's part of every configuration.

    ``namespace_selector`` None = the ConfigMap does not say.
    """

    ca_bundle: bytes
    namespace: str = "kyverno"
    service: str = "kyverno-svc"
    service_port: int = 443
    server: str = ""
    """Host, or host:port, when the API server reaches us by URL (serverIP)."""
    timeout_s: int = 10
    force_ignore: bool = False
    auto_update: bool = True
    admission_reports: bool = True
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    namespace_selector: Json | None = None
    object_selector: Json | None = None
    match_conditions: tuple[Json, ...] = ()
    owner: Json | None = None
    fine_grained: bool = True
    """Policies with match conditions have webhooks of their own; False = the shared
    ones, where the conditions are judged by us."""
    protected_namespaces: tuple[str, ...] = ("kube-system",)
    """Never judged unless the ConfigMap has a namespaceSelector of its own."""


def configuration(
    kind: str,
    name: str,
    webhooks: list[Json],
    options: WebhookOptions,
) -> Json:
    """Return a whole configuration.

    Upstream gives no owner to those of exceptions, global context and clean-up; here
    all go with the owner, so that nothing of ours stays behind.
    """
    metadata: Json = {
        "name": name,
        "labels": {**options.labels, MANAGED_BY: MANAGER},
    }
    if options.annotations:
        metadata["annotations"] = dict(options.annotations)
    if options.owner is not None:
        metadata["ownerReferences"] = [options.owner]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "webhooks": webhooks,
    }


def client_config(options: WebhookOptions, path: str) -> Json:
    """Return where the API server finds ``path``."""
    config: Json = {"caBundle": base64.b64encode(options.ca_bundle).decode()}
    if options.server:
        config["url"] = f"https://{options.server}{path}"
    else:
        config["service"] = {
            "namespace": options.namespace,
            "name": options.service,
            "path": path,
            "port": options.service_port,
        }
    return config


def namespace_selector(options: WebhookOptions) -> Json:
    """Return the selector of namespaces.

    Upstream's chart writes this default into the ConfigMap; without it a policy for all
    kinds could keep the cluster and ourselves from starting, so it stands here.
    """
    if options.namespace_selector is not None:
        return options.namespace_selector
    protected = dict.fromkeys((*options.protected_namespaces, options.namespace))
    return {
        "matchExpressions": [
            {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": list(protected),
            }
        ]
    }
