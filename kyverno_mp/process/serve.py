"""Wire and run the whole service: folder, certificate, sockets, roles, supervisor.

Room: process. Takes: Settings. Gives: the exit code of ``kyverno-mp serve``.
Next: supervisor. May touch: the runtime folder, sockets, stderr.
Source: docs/architecture.md 2.

All heavy modules are imported here, once, before any fork: the children share those
pages and start in milliseconds.
"""

import dataclasses
import logging
import os
import socket
import ssl
from pathlib import Path

from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.errors import RequestInvalid, SettingInvalid, StateError
from kyverno_mp.kube.access import access_of
from kyverno_mp.leader.authorizer import folders_of, images_of
from kyverno_mp.leader.loop import SNAPSHOT
from kyverno_mp.process.banner import Banner
from kyverno_mp.process.roles import authorizer
from kyverno_mp.process.roles.health import Reporter
from kyverno_mp.process.roles.table import QUEUES, pools_of, roles_of
from kyverno_mp.process.startup.certificate import Files, make
from kyverno_mp.process.startup.listen import listen, port_of, reserve
from kyverno_mp.process.startup.policy_folder import why_without_policies
from kyverno_mp.process.startup.preload import preload
from kyverno_mp.process.startup.runtime_dir import TLS, prepare, remove
from kyverno_mp.process.startup.start import Start
from kyverno_mp.process.supervision.readiness import LEADER
from kyverno_mp.process.supervision.supervisor import Supervisor
from kyverno_mp.process.supervision.watchdog import Watchdog
from kyverno_mp.registry.reference import Reference
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.telemetry import collector
from kyverno_mp.telemetry.log import set_up
from kyverno_mp.webhook.http.tls import Certificates

_log = logging.getLogger(__name__)
_HEALTH_BACKLOG = 128
_DASHBOARD_PORT = Settings().dashboard_port
_CLIENT_NAMES = Settings().client_names


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    Raises: SettingInvalid, StateError, both before any process starts.
    """
    _check(settings)
    set_up("supervisor", settings.log_level, settings.log_format)
    preload(settings)
    os.umask(0o077)
    runtime_dir = Path(settings.runtime_dir)
    lock = prepare(runtime_dir)
    files = _certificate(settings, runtime_dir)
    reviews = _reviews(settings)
    probes = listen(
        settings.health_host,
        settings.health_port,
        _HEALTH_BACKLOG,
        "--health-port, KYVERNO_MP_HEALTH_HOST, KYVERNO_MP_HEALTH_PORT",
    )
    pages = _pages(settings)
    settings = dataclasses.replace(
        settings,
        dashboard_port=port_of(pages) if pages else settings.dashboard_port,
        webhook_port=port_of(reviews) if reviews else settings.webhook_port,
        health_port=port_of(probes),
    )
    ControlPage.create(runtime_dir / SNAPSHOT)
    start = Start(
        settings=settings,
        runtime_dir=runtime_dir,
        files=files,
        reviews=reviews,
        probes=probes,
        dashboard=pages,
    )
    pools = pools_of(settings)
    banner = Banner(settings, files, Reporter(settings, runtime_dir, QUEUES, pools))
    watchdog = Watchdog(runtime_dir, settings.leader_silence_s_max, (LEADER, *pools))

    def tick() -> bool:
        watchdog.check()
        return not banner.print_when_ready()

    supervisor = Supervisor(
        settings,
        runtime_dir,
        roles_of(start),
        before_drain=reviews.close if reviews else lambda: None,
        on_tick=tick,
    )
    code = supervisor.run()
    remove(runtime_dir)
    os.close(lock)
    return code


def _reviews(settings: Settings) -> socket.socket | None:
    """Return the socket of the webhook or authorizer, None in a pod without one."""
    host, port = settings.webhook_host, settings.webhook_port
    chosen_by = "--port, KYVERNO_MP_WEBHOOK_HOST, KYVERNO_MP_WEBHOOK_PORT"
    if settings.authz_mode == authorizer.ENVOY:
        return reserve(host, port, chosen_by)
    if not (settings.runs_webhook or settings.authz_mode):
        return None
    return listen(host, port, settings.webhook_backlog, chosen_by)


def _pages(settings: Settings) -> socket.socket | None:
    """Return the socket of the dashboard, None if it is off."""
    if not settings.dashboard:
        return None
    port = settings.dashboard_port
    by = "KYVERNO_MP_DASHBOARD_HOST, KYVERNO_MP_DASHBOARD_PORT"
    try:
        return listen(settings.dashboard_host, port, _HEALTH_BACKLOG, by)
    except StateError:
        # Nobody chose the port, so it must not keep the service from starting.
        if not settings.standalone or port != _DASHBOARD_PORT:
            raise
    return listen(settings.dashboard_host, 0, _HEALTH_BACKLOG, by)


def _check(settings: Settings) -> None:
    problems = [
        f"{name}: {path} does not exist"
        for name, path in (
            ("--policies (KYVERNO_MP_POLICIES_DIR)", settings.policies_dir),
            ("--resources (KYVERNO_MP_RESOURCES_DIR)", settings.resources_dir),
            ("--tls-cert (KYVERNO_MP_TLS_CERT_FILE)", settings.tls_cert_file),
            ("--tls-key (KYVERNO_MP_TLS_KEY_FILE)", settings.tls_key_file),
            ("KYVERNO_MP_API_CALL_TOKEN_FILE", settings.api_call_token_file),
            ("KYVERNO_MP_DASHBOARD_TOKEN_FILE", settings.dashboard_token_file),
            ("KYVERNO_MP_CLIENT_CA_FILE", settings.client_ca_file),
            *_authorizer_paths(settings),
            ("KYVERNO_MP_OTLP_CA_FILE", settings.otlp_ca_file),
            ("KYVERNO_MP_METRICS_CERT_FILE", settings.metrics_cert_file),
            ("KYVERNO_MP_METRICS_KEY_FILE", settings.metrics_key_file),
            ("KYVERNO_MP_NOTIFY_URL_FILE", settings.notify_url_file),
        )
        if path and not Path(path).exists()
    ]
    if not problems:
        problems.extend(
            _tls_problems("TLS_", settings.tls_cert_file, settings.tls_key_file)
        )
        cert, key = settings.metrics_cert_file, settings.metrics_key_file
        problems.extend(_tls_problems("METRICS_", cert, key))
    if settings.client_ca_file and not problems:
        problems.extend(_client_ca_problems(settings.client_ca_file))
    if not settings.standalone:
        try:
            access_of(settings.kubeconfig, environment())
        except SettingInvalid as error:
            problems.append(f"no cluster: {error.message}; or give --standalone")
    if settings.registers and settings.tls_cert_file:
        problems.append(
            "KYVERNO_MP_TLS_CERT_FILE: for --standalone; in a cluster the certificate"
            " is in the Secret that KYVERNO_MP_TLS_SECRET_NAME names"
        )
    for name, text in (
        ("KYVERNO_MP_HTTP_ALLOWLIST", settings.http_allowlist),
        ("KYVERNO_MP_HTTP_BLOCKLIST", settings.http_blocklist),
        ("KYVERNO_MP_REGISTRY_ALLOWLIST", settings.registry_allowlist),
    ):
        try:
            read_rules(text, "")
        except SettingInvalid as error:
            problems.append(f"{name}: {error.message}")
    problems.extend(filter(None, (collector.problem(settings),)))
    if settings.authz_mode:
        problems.extend(_authorizer_problems(settings) if not problems else ())
    elif settings.standalone:
        problems.extend(_folder_problems(settings, is_sound=not problems))
    if problems:
        raise SettingInvalid("settings.invalid", "\n  ".join(problems))


def _folder_problems(settings: Settings, *, is_sound: bool) -> list[str]:
    """Return why a webhook without a cluster would admit everything."""
    name = "--policies (KYVERNO_MP_POLICIES_DIR)"
    if not settings.policies_dir:
        return [f"{name}: needed to run without a cluster"]
    if not is_sound or settings.allow_empty:
        return []
    reason = why_without_policies(settings.policies_dir)
    if not reason:
        return []
    return [f"{name}: {reason}; --allow-empty starts the service anyway"]


def _authorizer_paths(settings: Settings) -> list[tuple[str, str]]:
    folders = folders_of(settings) if settings.authz_mode else ()
    name = "--policies (KYVERNO_MP_AUTHZ_SOURCES)"
    return [(name, str(folder.path)) for folder in folders]


def _authorizer_problems(settings: Settings) -> list[str]:
    """Return the reasons why an authorizer would not start, or allow everything."""
    problems = authorizer.unusable(settings)
    paths = [str(folder.path) for folder in folders_of(settings)]
    images: list[Reference] = []
    try:
        images = images_of(settings)
    except RequestInvalid as error:
        problems.append(f"--policies (KYVERNO_MP_AUTHZ_SOURCES): {error.message}")
    if images and settings.image_pull_secrets and settings.standalone:
        problems.append(
            "--image-pull-secret (KYVERNO_MP_IMAGE_PULL_SECRETS): needs a cluster; name"
            " the folder of docker's config.json in DOCKER_CONFIG"
        )
    if settings.client_ca_file and not settings.tls_cert_file:
        problems.append("KYVERNO_MP_CLIENT_CA_FILE: needs KYVERNO_MP_TLS_CERT_FILE")
    if settings.authz_mode == "envoy" and settings.client_names != _CLIENT_NAMES:
        # SAFETY: ignored, it would let in callers that the operator excludes.
        problems.append(
            "--client-names (KYVERNO_MP_CLIENT_NAMES): has no effect with --mode envoy;"
            " use authorities of their own for the callers"
        )
    if settings.standalone and not paths and not images:
        problems.append(
            "--policies (KYVERNO_MP_AUTHZ_SOURCES): needed to run without a cluster"
        )
    elif settings.standalone and not settings.allow_empty and not images:
        reasons = [
            why_without_policies(path, settings.evaluation_mode) for path in paths
        ]
        if all(reasons):
            problems.append(
                f"--policies (KYVERNO_MP_AUTHZ_SOURCES): {'; '.join(reasons)};"
                " --allow-empty starts the service anyway"
            )
    return problems


def _tls_problems(prefix: str, cert: str, key: str) -> list[str]:
    """Return the reasons why certificate files, if any, could not be used."""
    if not cert:
        return []
    pair = f"KYVERNO_MP_{prefix}CERT_FILE={cert} and KYVERNO_MP_{prefix}KEY_FILE={key}"
    try:
        Certificates(Path(cert), Path(key))
    except ssl.SSLError as error:
        reason = error.reason or "not PEM, or the key has a pass phrase"
        return [f"{pair}: no certificate with its key: {reason}"]
    except OSError as error:
        return [f"{pair}: cannot be read: {error.strerror}"]
    return []


def _client_ca_problems(path: str) -> list[str]:
    """Return the reason why workers could not verify client certificates."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except OSError as error:
        reason = error.strerror or "no certificates in PEM"
        return [f"KYVERNO_MP_CLIENT_CA_FILE={path}: {reason}"]
    return []


def _certificate(settings: Settings, runtime_dir: Path) -> Files | None:
    if settings.tls_cert_file:
        return Files(Path(settings.tls_cert_file), Path(settings.tls_key_file))
    if settings.authz_mode:
        return None
    return make(runtime_dir / TLS, settings.namespace)
