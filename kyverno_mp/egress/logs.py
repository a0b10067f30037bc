"""Call transparency logs and TUF mirrors for rules, with the address rules of services.

Room: egress. Takes: the operator's lists of hosts, RegistryCalls. Gives: Exchanges.
Next: webhook/images.py. May touch: the network through egress/registries.py.
Source: docs/behaviour/lessons 4.2 rows 13, 22-24; docs/images.md (keys of logs).

The author of a policy names the log, and each call is a POST. So the allowlist of
registries, which by default contains all hosts, does not apply here: a log must have a
public address and use TLS unless the allowlist for services contains its host.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import replace

from kyverno_mp.egress.addresses import UrlRules
from kyverno_mp.egress.registries import OnCall, RegistryTransport
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.kube.connection import ReadPace
from kyverno_mp.registry.exchange import (
    Exchange,
    RegistryCall,
    RegistryResponse,
    taken_apart,
)
from kyverno_mp.values.wildcard import matches


def open_logs(
    rules: UrlRules,
    resolve: Callable[[str], list[str]],
    on_call: OnCall = lambda _host, _outcome: None,
    pace: ReadPace | None = None,
) -> Exchange:
    """Return the Exchange for logs that cluster-wide policies name."""
    transport = RegistryTransport(rules, resolve, on_call, pace=pace)

    def call(registry_call: RegistryCall, deadline_ns: int) -> RegistryResponse:
        parts, _ = taken_apart(registry_call.url)
        host = (parts.hostname or "").rstrip(".")
        if parts.scheme != "https" and not _is_named(host, rules):
            message = f"calls to {host} are not allowed without TLS"
            raise ExpressionFailed("egress.denied", message)
        return transport(registry_call, deadline_ns)

    return call


def tenants_rules(rules: UrlRules) -> UrlRules:
    """Return the rules for logs that namespaced policies name.

    The operator's allowlist applies to these logs only if namespaced policies may call
    services.
    """
    if rules.for_namespaced:
        return rules
    return replace(rules, allowed_names=(), allowed_networks=())


def _is_named(host: str, rules: UrlRules) -> bool:
    if any(matches(name, host) for name in rules.allowed_names):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(
        address.version == allowed_network.version and address in allowed_network
        for allowed_network in rules.allowed_networks
    )
