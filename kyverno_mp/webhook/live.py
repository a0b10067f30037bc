"""Open the doors to the API server and to services, for one worker in a cluster.

Room: webhook. Takes: Settings, the shared world. Gives: Live, None without a cluster.
Next: start.py. May touch: the environment through settings, the files of a kubeconfig;
connections are opened by the first call.
Source: design.md 3 (live calls through pooled connections); spec/controllers.md 11.5-6.
"""

from dataclasses import dataclass

from kyverno_mp import __version__
from kyverno_mp.kube.access import access_of
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.program.ports import ApiCalls, ConfigMaps
from kyverno_mp.reach.addresses import read_rules
from kyverno_mp.reach.api_calls import LiveCalls
from kyverno_mp.reach.config_maps import LiveConfigMaps
from kyverno_mp.reach.hosts import resolve_host
from kyverno_mp.reach.services import ServiceRules, Services
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Live:
    """The doors that a folder of given answers stands for without a cluster."""

    api_calls: ApiCalls
    config_maps: ConfigMaps


def live_doors(settings: Settings, shared: ConfigMaps) -> Live | None:
    """Return the doors of this worker. Raises: SettingInvalid."""
    if settings.standalone:
        return None
    agent = f"kyverno-mp/{__version__}"
    access = access_of(settings.kubeconfig, environment())
    client = Client(Pool(access), agent)
    urls = read_rules(
        settings.http_allowlist,
        settings.http_blocklist,
        for_namespaced=settings.http_in_namespaced_policies,
    )
    rules = ServiceRules(
        urls=urls,
        answer_bytes_max=settings.api_call_answer_bytes_max,
        timeout_s=settings.api_call_timeout_s,
    )
    services = Services(rules, resolve_host, agent)
    return Live(LiveCalls(client, services), LiveConfigMaps(shared, client))
