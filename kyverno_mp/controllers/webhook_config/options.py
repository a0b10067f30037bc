"""Define the operator's webhook options, and the parts shared by all configurations.

Room: controllers. Takes: values of settings and of the ConfigMap ``kyverno``. Gives:
WebhookOptions; metadata and clientConfig of every configuration.
Next: webhook_config/{resources,static}.py.
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
    """The operator's options for every configuration.

    ``namespace_selector`` is None if the ConfigMap has none.
    """

    ca_bundle: bytes
    namespace: str = "kyverno"
    service: str = "kyverno-svc"
    service_port: int = 443
    server: str = ""
    """Host, or host:port, if the API server calls us by URL (serverIP)."""
    caller: str = ""
    """The secret segment that begins every path, "" for none."""
    upstream_paths: bool = False
    """Whether pods of Kyverno may answer, which know only the paths that it registers.
    """
    timeout_s: int = 10
    force_ignore: bool = False
    auto_update: bool = True
    admission_reports: bool = True
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    namespace_selector: Json | None = None
    object_selector: Json | None = None
    match_conditions: tuple[Json, ...] = ()
    exclude_bootstrap: bool = False
    """Blocking webhooks never get the objects that a starting cluster needs."""
    owner: Json | None = None
    fine_grained: bool = True
    """Whether policies with match conditions get their own webhooks. If not, they share
    webhooks, and we evaluate the conditions."""
    protected_namespaces: tuple[str, ...] = ("kube-system",)
    """Namespaces that are never reviewed unless the ConfigMap has its own
    namespaceSelector."""


def configuration(
    kind: str,
    name: str,
    webhooks: list[Json],
    options: WebhookOptions,
) -> Json:
    """Return a whole configuration.

    Upstream sets no owner on the configurations of exceptions, global context and
    clean-up. Here, every configuration has an owner, so that the API server deletes
    them all.
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
    """Return the clientConfig for ``path``, below the caller's secret segment."""
    if options.caller:
        path = f"/{options.caller}{path}"
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

    Upstream's chart writes this default into the ConfigMap. Without it, a policy for
    all kinds could prevent the cluster and this program from starting, so it is also
    our default.
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
