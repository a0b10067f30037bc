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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kyverno_mp import __version__
from kyverno_mp.egress.addresses import UrlRules, read_rules
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.egress.logs import open_logs, tenants_rules
from kyverno_mp.egress.outages import RememberedOutages
from kyverno_mp.egress.registries import OnCall, RegistryTransport
from kyverno_mp.images.access import ReadSecret, RegistrySettings, ServedClients
from kyverno_mp.images.anonymous import for_policies
from kyverno_mp.images.at_once import Helpers
from kyverno_mp.images.aws import Aws, aws_identity
from kyverno_mp.images.aws_keys import aws_keys
from kyverno_mp.images.aws_registries import AwsRegistries
from kyverno_mp.images.cache import CacheOptions, ImageCache
from kyverno_mp.images.key_secrets import key_providers
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.images.metadata import RegistryMetadata
from kyverno_mp.images.network import log_sender, mirror_reader
from kyverno_mp.images.policies.cached import CachedPolicyReview
from kyverno_mp.images.policies.review import PolicyReader
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.images.references import NO_PROVIDERS, KeyProviders
from kyverno_mp.images.serving import (
    Digests,
    Flights,
    OnVerified,
    ServedImageData,
    ServedReview,
)
from kyverno_mp.images.sigstore.own_root import trust_root
from kyverno_mp.images.sigstore.trust_root import Fetch
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.kube.connection import ReadPace
from kyverno_mp.limits import IMAGE_SCAN_READ_S, IMAGES_AT_ONCE_MAX
from kyverno_mp.program.image_policies.ports import PolicyImages
from kyverno_mp.program.ports import (
    Images,
    ReadNamedSecret,
    RegistryAccess,
    ReviewedImages,
)
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import DockerConfig, RegistryCertificates
from kyverno_mp.registry.exchange import Exchange
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.hosts import HostLabels
from kyverno_mp.telemetry.tally import Labels
from kyverno_mp.values.wildcard import contains_wildcard

_READ_NS_MAX: Final = 30_000_000_000
"""The deadline of reads without one; audits have their own deadline."""


@dataclass(frozen=True, slots=True)
class ServedImages:
    """The registry ports for rules.

    ``begin`` begins one review. ``data`` serves imageRegistry entries, and
    ``manifests`` rules with ``validate.manifests``. ``policies`` begins one review of
    ImageValidatingPolicies. ``metadata`` serves ``image.getMetadata`` in CEL, and
    ``own_metadata`` does so in namespaced policies.
    """

    begin: Callable[[], ReviewedImages]
    data: Images
    manifests: ManifestVerifier
    policies: Callable[[], PolicyImages]
    metadata: RegistryMetadata
    own_metadata: RegistryMetadata


def served_images(  # noqa: PLR0913 - independent facts, most of them optional
    settings: Settings,
    folder: Path | None,
    read_secret: ReadSecret | None,
    on_cache: Callable[[Labels], None] = lambda _labels: None,
    on_call: Callable[[Labels], None] = lambda _labels: None,
    on_verified: OnVerified = lambda _labels, _seconds: None,
    *,
    is_scan: bool = False,
    read_key_secret: ReadNamedSecret | None = None,
    on_answer: OnCall = lambda _host, _outcome: None,
) -> ServedImages:
    """Return the ports. Raises: SettingInvalid.

    If ``folder`` is None, results are not cached. ``on_cache`` and ``on_call`` receive
    labels of metrics, in any thread; ``on_verified`` also receives the seconds.
    ``is_scan`` is for scans of many objects, for which no client waits, so a registry
    that does not answer is not called again at once. ``read_key_secret`` reads Secrets
    with public keys; None: without a cluster. ``on_answer`` receives the host and the
    outcome of each call, in any thread.
    """
    registries = read_rules(settings.registry_allowlist, settings.http_blocklist)
    # SAFETY: policies name transparency logs, so these calls follow the rules for
    # services.
    urls = read_rules(
        settings.http_allowlist,
        settings.http_blocklist,
        for_namespaced=settings.http_in_namespaced_policies,
    )
    hosts = HostLabels(_named_hosts(settings, registries, urls))

    def called_host(host: str, outcome: str) -> None:
        on_answer(host, outcome)
        on_call(hosts.labels(host, outcome))

    helpers = Helpers(IMAGES_AT_ONCE_MAX - 1)
    pace = ReadPace(settings.registry_first_byte_s, settings.registry_bytes_per_s_min)
    transport = RegistryTransport(
        registries,
        resolve_host,
        called_host,
        settings.image_threads,
        helpers.is_current,
        pace,
    )
    send_call = RememberedOutages(transport) if is_scan else transport
    clients = _clients(settings, send_call, read_secret)
    by_policy = for_policies(clients, settings, send_call, _user_agent())
    verification = _Verification(
        settings,
        _Logs(urls, called_host, pace),
        until=_until_soon if is_scan else _until,
        helpers=helpers,
        providers={
            **key_providers(read_key_secret),
            **key_services(settings, urls, called_host, pace),
        },
    )
    until = verification.until
    cache = _cache(settings, folder, on_cache)
    data = ServedImageData(clients, until)
    # SAFETY: the author of a namespaced policy can learn the data that is read.
    own_data = ServedImageData(by_policy, until, RegistryAccess(is_tenants=True))
    return ServedImages(
        verification.of_rules(
            clients, cache, Digests() if is_scan else None, on_verified
        ),
        data,
        ManifestVerifier(verification.trust, until, verification.providers),
        verification.of_policies(by_policy, cache, on_verified),
        RegistryMetadata(data),
        RegistryMetadata(own_data),
    )


def key_services(
    settings: Settings, urls: UrlRules, on_call: OnCall, pace: ReadPace
) -> KeyProviders:
    """Return the providers of the key services that the operator has enabled."""
    if not settings.aws_kms:
        return NO_PROVIDERS
    send = open_logs(urls, resolve_host, on_call, pace)
    return aws_keys(Aws(aws_identity(environment()), send, _now))


class _Logs:
    """The calls of transparency logs and of mirrors of trust roots."""

    def __init__(self, urls: UrlRules, on_call: OnCall, pace: ReadPace) -> None:
        self._urls, self._on_call, self._pace = urls, on_call, pace
        self._agent = _user_agent()
        exchange = self._opened(urls)
        tenants_exchange = self._opened(tenants_rules(urls))
        self.send = log_sender(exchange, self._agent)
        self.tenants_send = log_sender(tenants_exchange, self._agent)
        self.mirror = mirror_reader(exchange, self._agent)
        self.tenants_mirror = mirror_reader(tenants_exchange, self._agent)

    def own_mirror(self, host: str) -> Fetch:
        """Return a reader for a host that the operator names."""
        names = (*self._urls.allowed_names, host)
        exchange = self._opened(replace(self._urls, allowed_names=names))
        return mirror_reader(exchange, self._agent)

    def _opened(self, urls: UrlRules) -> Exchange:
        return open_logs(urls, resolve_host, self._on_call, self._pace)


class _Verification:
    """What verifies images: the same for rules and for ImageValidatingPolicies."""

    def __init__(
        self,
        settings: Settings,
        logs: _Logs,
        *,
        until: Callable[[int], int],
        helpers: Helpers,
        providers: KeyProviders,
    ) -> None:
        self.until = until
        self.providers = providers
        # Read for the first signature whose policy names no roots.
        self.trust = trust_root(settings, logs.mirror, logs.own_mirror)
        self._logs = logs
        self._helpers = helpers

    def of_rules(
        self,
        clients: ServedClients,
        cache: ImageCache | None,
        digests: Digests | None,
        on_verified: OnVerified,
    ) -> Callable[[], ReviewedImages]:
        """Return a function that begins the review of rules."""
        flights: Flights = {}
        lock = threading.Lock()

        def begin() -> ReviewedImages:
            review = ImageReview(
                clients,
                _now,
                self.until,
                trust=self.trust,
                send=self._logs.send,
                tenants_send=self._logs.tenants_send,
                helpers=self._helpers,
                providers=self.providers,
            )
            return ServedReview(review, cache, flights, lock, digests, on_verified)

        return begin

    def of_policies(
        self,
        clients: Callable[[RegistryAccess], Client],
        cache: ImageCache | None,
        on_verified: OnVerified,
    ) -> Callable[[], PolicyImages]:
        """Return a function that begins the review of ImageValidatingPolicies."""
        logs = self._logs
        reader = PolicyReader(
            client=clients,
            now=_now,
            until=self.until,
            trust=PolicyTrust(self.trust, logs.mirror, logs.tenants_mirror),
            send=logs.send,
            tenants_send=logs.tenants_send,
            helpers=self._helpers,
            providers=self.providers,
        )
        return lambda: CachedPolicyReview(reader.begin(), cache, on_verified)


def _clients(
    settings: Settings, send: Exchange, read_secret: ReadSecret | None
) -> ServedClients:
    home = Path(environment().get("HOME") or "/")
    docker = environment().get("DOCKER_CONFIG")
    return ServedClients(
        RegistrySettings(
            namespace=settings.namespace,
            secrets=_listed(settings.image_pull_secrets),
            helpers=_listed(settings.registry_credential_helpers),
            insecure=settings.allow_insecure_registry,
            certificates=RegistryCertificates(settings.registry_certificates),
        ),
        send,
        _user_agent(),
        read_secret,
        DockerConfig(Path(docker) if docker else home / ".docker"),
        {"amazon": AwsRegistries(Aws(aws_identity(environment()), send, _now))},
    )


def _cache(
    settings: Settings, folder: Path | None, on_cache: Callable[[Labels], None]
) -> ImageCache | None:
    if folder is None:
        return None
    options = CacheOptions(
        folder,
        settings.image_verify_cache_entries_max,
        settings.image_verify_cache_ttl_s,
    )
    return ImageCache(options, lambda event: on_cache((event,)))


def _now() -> datetime:
    return datetime.now(UTC)


def _named_hosts(settings: Settings, *rules: UrlRules) -> Iterator[str]:
    """Yield the hosts of registries, logs and mirrors that the settings name."""
    for rule in rules:
        yield from (name for name in rule.allowed_names if not contains_wildcard(name))
    if settings.enable_tuf:
        for url in (settings.tuf_mirror, settings.tuf_root):
            with suppress(ValueError):  # its first use reports an invalid URL
                yield urlsplit(url).hostname or ""


def _until(deadline_ns: int) -> int:
    return deadline_ns or time.monotonic_ns() + _READ_NS_MAX


def _until_soon(deadline_ns: int) -> int:
    soon_ns = time.monotonic_ns() + IMAGE_SCAN_READ_S * 10**9
    return min(deadline_ns, soon_ns) if deadline_ns else soon_ns


def _listed(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def _user_agent() -> str:
    system = f"{platform.system().lower()}; {platform.machine()}"
    return f"kyverno-mp/{__version__} ({system})"
