"""Convert settings and configuration into the options of the controllers.

Room: leader. Takes: Settings, Configuration. Gives: CertificateRules, WebhookOptions,
the configurations that depend on no policy. Next: leader/control/wire.py.
Source: docs/behaviour/controllers 3.2, 4, 10.3.
"""

from datetime import timedelta
from typing import cast

from kyverno_mp.controllers.caller_path.controller import Rules as CallerPathRules
from kyverno_mp.controllers.certificates.rules import Algorithm, CertificateRules
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.controllers.webhook_config.static import (
    admission_configurations,
    cleanup_configurations,
)
from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json


def certificate_rules(settings: Settings) -> CertificateRules:
    """Return the certificate rules from the settings."""
    return CertificateRules(
        namespace=settings.namespace,
        service=settings.service_name,
        server=settings.server_ip,
        ca_secret=settings.ca_secret_name,
        tls_secret=settings.tls_secret_name,
        algorithm=cast("Algorithm", settings.tls_key_algorithm),
        renew_before=timedelta(hours=settings.certificate_renew_before_h),
        is_external=settings.certificates_of_others,
    )


def caller_path_rules(settings: Settings) -> CallerPathRules:
    """Return the rules of the callers' path segments from the settings."""
    name = f"{settings.service_name}.{settings.namespace}.svc.kyverno-mp-caller"
    return CallerPathRules(
        secret=(settings.namespace, name),
        deployment=settings.deployment_name,
        overlap_s=float(settings.caller_path_overlap_s),
        rotate_s=settings.caller_path_rotate_h * 3600.0,
    )


def webhook_options(
    settings: Settings,
    configuration: Configuration,
    ca_bundle: bytes,
    caller: str = "",
    *,
    upstream_paths: bool = False,
) -> WebhookOptions:
    """Return the webhook options from settings and configuration."""
    return WebhookOptions(
        ca_bundle=ca_bundle,
        namespace=settings.namespace,
        service=settings.service_name,
        service_port=settings.service_port,
        server=settings.server_ip,
        caller=caller,
        upstream_paths=upstream_paths,
        timeout_s=round(settings.webhook_timeout_s),
        force_ignore=settings.force_failure_policy_ignore,
        auto_update=settings.auto_update_webhooks,
        exclude_bootstrap=settings.exclude_bootstrap_resources,
        annotations=configuration.webhook_annotations,
        labels=configuration.webhook_labels,
        namespace_selector=configuration.namespace_selector,
        object_selector=configuration.object_selector,
        match_conditions=configuration.match_conditions,
    )


def static_configurations(options: WebhookOptions) -> list[Json]:
    """Return the configurations that depend on no policy."""
    return [*admission_configurations(options), *cleanup_configurations(options)]
