"""Open the clients that one process uses to call the API server and services.

Room: egress. Takes: Settings. Gives: a Client, LiveCalls with the operator's rules, and
what posts notifications. Next: webhook/live.py, leader/control/run.py. May touch: the
environment through settings, the files of a kubeconfig and of an URL; the first call
opens the connections.
Source: docs/architecture.md 3 (live calls through pooled connections);
docs/behaviour/controllers 11.6.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.egress.api_calls import LiveCalls
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.egress.services import ServiceRules, Services
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.outside import HttpRequest
from kyverno_mp.kube.access import access_of
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import NOTIFY_S_MAX
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings

USER_AGENT: Final = f"kyverno-mp/{__version__}"


def open_client(settings: Settings) -> Client:
    """Return a client for the configured cluster. Raises: SettingInvalid."""
    return Client(Pool(access_of(settings.kubeconfig, environment())), USER_AGENT)


def open_calls(settings: Settings, client: Client) -> LiveCalls:
    """Return the API and service calls for policies. Raises: SettingInvalid."""
    return LiveCalls(client, open_services(settings))


def open_services(settings: Settings) -> Services:
    """Return the service calls for policies. Raises: SettingInvalid."""
    urls = read_rules(
        settings.http_allowlist,
        settings.http_blocklist,
        for_namespaced=settings.http_in_namespaced_policies,
    )
    rules = ServiceRules(
        urls=urls,
        answer_bytes_max=settings.api_call_answer_bytes_max,
        timeout_s=settings.api_call_timeout_s,
        token_file=settings.api_call_token_file,
    )
    return Services(rules, resolve_host, USER_AGENT)


def open_receiver(settings: Settings) -> Callable[[bytes], int] | None:
    """Return what posts a notification and returns the status, None without an URL.

    The operator's rules for URLs apply, and the token for services is not sent. New
    content of the file takes effect at once. The function raises: ExpressionFailed,
    DependencyError. Raises: SettingInvalid.
    """
    if not settings.notify_url_file:
        return None
    file = Path(settings.notify_url_file)
    urls = read_rules(settings.http_allowlist, settings.http_blocklist)
    rules = ServiceRules(
        urls=urls,
        answer_bytes_max=settings.api_call_answer_bytes_max,
        timeout_s=NOTIFY_S_MAX,
    )
    services = Services(rules, resolve_host, USER_AGENT)

    def post(body: bytes) -> int:
        try:
            url = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            message = "the file with the URL cannot be read"
            raise ExpressionFailed("egress.url", message) from error
        headers = {"Content-Type": "application/json"}
        request = HttpRequest("POST", url, headers, body, ca_bundle="")
        return services.exchange(request, 0)[0]

    return post
