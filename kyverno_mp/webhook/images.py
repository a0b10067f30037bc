"""Open the ports to image registries for one worker.

Room: webhook. Takes: Settings, the pod's folder of verified images, the reader of
Secrets. Gives: ServedImages. Next: start.py.
May touch: the environment through settings; the first read opens connections.
Source: docs/behaviour/images 2.8, 6; docs/architecture.md 3 (effects decide
scheduling).
"""

import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kyverno_mp import __version__
from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.egress.logs import open_logs, tenants_rules
from kyverno_mp.egress.registries import RegistryTransport
from kyverno_mp.images.access import ReadSecret, RegistrySettings, ServedClients
from kyverno_mp.images.anonymous import for_policies
from kyverno_mp.images.at_once import Helpers
from kyverno_mp.images.cache import CacheOptions, ImageCache
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.images.network import log_sender, mirror_reader
from kyverno_mp.images.policies.review import PolicyReader
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.images.serving import Flights, ServedImageData, ServedReview
from kyverno_mp.images.sigstore.own_root import trust_root
from kyverno_mp.images.sigstore.trust_root import Fetch
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.limits import IMAGES_AT_ONCE_MAX
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.ports import Images, ReviewedImages, SignedManifests
from kyverno_mp.registry.credentials import DockerConfig
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.tally import Labels

_READ_NS_MAX: Final = 30_000_000_000
"""The deadline of work without one: audits have their own."""


@dataclass(frozen=True, slots=True)
class ServedImages:
    """What rules read from registries.

    ``begin`` begins one review; ``data``: for imageRegistry entries; ``manifests``: for
    rules with ``validate.manifests``; ``policies`` begins one review of
    ImageValidatingPolicies.
    """

    begin: Callable[[], ReviewedImages]
    data: Images
    manifests: SignedManifests
    policies: Callable[[], PolicyImages]


def served_images(
    settings: Settings,
    folder: Path | None,
    read_secret: ReadSecret | None,
    on_cache: Callable[[Labels], None],
    on_call: Callable[[Labels], None],
) -> ServedImages:
    """Return the ports. Raises: SettingInvalid.

    ``folder`` None: results are not kept. ``on_cache`` and ``on_call`` get labels of
    metrics, in any thread.
    """
    rules = read_rules(settings.registry_allowlist, settings.http_blocklist)
    helpers = Helpers(IMAGES_AT_ONCE_MAX - 1)
    transport = RegistryTransport(
        rules,
        resolve_host,
        lambda outcome: on_call((outcome,)),
        settings.image_threads,
        helpers.is_current,
    )
    home = Path(environment().get("HOME") or "/")
    docker = environment().get("DOCKER_CONFIG")
    clients = ServedClients(
        RegistrySettings(
            namespace=settings.namespace,
            secrets=_listed(settings.image_pull_secrets),
            helpers=_listed(settings.registry_credential_helpers),
            insecure=settings.allow_insecure_registry,
        ),
        transport,
        _user_agent(),
        read_secret,
        DockerConfig(Path(docker) if docker else home / ".docker"),
    )
    cache = None
    if folder is not None:
        options = CacheOptions(
            folder,
            settings.image_verify_cache_entries_max,
            settings.image_verify_cache_ttl_s,
        )
        cache = ImageCache(options, lambda event: on_cache((event,)))
    flights: Flights = {}
    lock = threading.Lock()

    agent = _user_agent()
    # SAFETY: policies name logs, so these calls follow the rules of services.
    urls = read_rules(
        settings.http_allowlist,
        settings.http_blocklist,
        for_namespaced=settings.http_in_namespaced_policies,
    )
    logs = open_logs(urls, resolve_host, lambda outcome: on_call((outcome,)))
    tenants_logs = open_logs(
        tenants_rules(urls), resolve_host, lambda outcome: on_call((outcome,))
    )
    send, tenants_send = log_sender(logs, agent), log_sender(tenants_logs, agent)

    def own_mirror(host: str) -> Fetch:
        """Return what reads from a host that the operator names."""
        own = replace(urls, allowed_names=(*urls.allowed_names, host))
        called = open_logs(own, resolve_host, lambda outcome: on_call((outcome,)))
        return mirror_reader(called, agent)

    # Read by the first signature whose policy names no roots.
    trust = trust_root(settings, mirror_reader(logs, agent), own_mirror)

    def begin() -> ReviewedImages:
        review = ImageReview(
            clients,
            lambda: datetime.now(UTC),
            _until,
            trust=trust,
            send=send,
            tenants_send=tenants_send,
            helpers=helpers,
        )
        return ServedReview(review, cache, flights, lock)

    policies = PolicyReader(
        client=for_policies(clients, settings, transport, agent),
        now=lambda: datetime.now(UTC),
        until=_until,
        trust=PolicyTrust(
            trust, mirror_reader(logs, agent), mirror_reader(tenants_logs, agent)
        ),
        send=send,
        tenants_send=tenants_send,
    )
    return ServedImages(
        begin,
        ServedImageData(clients, _until),
        ManifestVerifier(trust, _until),
        policies.begin,
    )


def _until(deadline_ns: int) -> int:
    return deadline_ns or time.monotonic_ns() + _READ_NS_MAX


def _listed(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _user_agent() -> str:
    system = f"{platform.system().lower()}; {platform.machine()}"
    return f"kyverno-mp/{__version__} ({system})"
