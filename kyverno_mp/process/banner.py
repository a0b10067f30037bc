"""Report once that the service is ready: the policies in force and the addresses.

Room: process. Takes: ports, files, the health reporter. Gives: text on stdout, or one
log line where a cluster collects JSON. Next: serve.py calls it on each tick of the
supervisor. May touch: stdout, the log.
"""

import logging
import sys
from dataclasses import dataclass
from http import HTTPStatus

from kyverno_mp import __version__
from kyverno_mp.leader.artifacts import SCHEME
from kyverno_mp.leader.authorizer import folders_of, images_of
from kyverno_mp.process.roles.health import Reporter
from kyverno_mp.process.startup.certificate import Files
from kyverno_mp.process.startup.listen import address_of
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.log import JSON, fields
from kyverno_mp.values.kubernetes.policy_kinds import REVIEWED_CEL_KINDS

_log = logging.getLogger(__name__)
"""Hosts that mean all addresses; clients cannot connect to them on every system."""


@dataclass(slots=True)
class Banner:
    """Prints a message at the first check that finds the service ready."""

    settings: Settings
    files: Files | None
    reporter: Reporter
    _printed: bool = False

    def print_when_ready(self) -> bool:
        """Print the message once the service is ready; return whether it was printed.

        It does nothing after that.
        """
        if not self._printed and self.reporter.readiness()[0] == HTTPStatus.OK:
            self._printed = True
            self.write()
        return self._printed

    def write(self) -> None:
        """Write the lines to stdout, to the log, or to both."""
        if self.settings.log_format == JSON:
            summary = self.reporter.summary()
            _log.info("ready: %s", summary.text(), extra=fields(**summary.fields()))
        if self.settings.log_format != JSON or self.settings.standalone:
            sys.stdout.write(self.text())
            sys.stdout.flush()

    def text(self) -> str:
        """Return the lines of the message."""
        settings = self.settings
        webhook = f"https://{address_of(settings.webhook_host, settings.webhook_port)}"
        scheme = "https" if settings.metrics_tls else "http"
        health = f"{scheme}://{address_of(settings.health_host, settings.health_port)}"
        source, trust = settings.policies_dir, ""
        if not settings.standalone:
            # The cluster's certificate replaces the initial one.
            source = "the cluster"
        elif self.files is not None and self.files.ca:
            trust = f", trust {self.files.ca}"
        if settings.authz_mode:
            folders = [str(folder.path) for folder in folders_of(settings)]
            clusters = () if settings.standalone else (source,)
            images = [f"{SCHEME}{image.name}" for image in images_of(settings)]
            source = ", ".join((*clusters, *folders, *images))
        runs = [f"{settings.webhook_workers} {settings.serves} workers"]
        reviews = f"  reviews   {webhook}/validate{trust}\n"
        summary = self.reporter.summary()
        found = {kind.removeprefix("Namespaced") for kind in summary.cel_kinds}
        for row in REVIEWED_CEL_KINDS:
            review = row.validating or row.mutating
            if row.name in found and review is not None:
                paths = f"{review.path} and {review.namespaced_path}"
                plural = f"{row.name.removesuffix('y')}ies"
                reviews += f"            {webhook}{paths}: {plural}\n"
        if settings.authz_mode:
            place = address_of(settings.webhook_host, settings.webhook_port)
            reviews = f"  requests  {_scheme_of(settings)}://{place}\n"
        elif not settings.runs_webhook:
            runs, reviews = [], ""
        if settings.cleanup_workers:
            runs.append("cleanup pool")
        if settings.background_workers:
            runs.append("background pool")
        if settings.reports_workers:
            runs.append("reports pool")
        pages = ""
        if settings.dashboard:
            place = address_of(settings.dashboard_host, settings.dashboard_port)
            pages = f"  dashboard http://{place}/\n"
        return (
            f"kyverno-mp {__version__} is ready, {', '.join(runs)}\n"
            f"  {summary.text()}\n"
            f"{reviews}"
            f"{pages}"
            f"  health    {health}/health/readiness\n"
            f"  metrics   {health}/metrics\n"
            f"  policies  {health}/policies  (from {source})\n"
            f"  overview  {health}/\n"
        )


def _scheme_of(settings: Settings) -> str:
    name = {"http": "http", "envoy": "grpc"}[settings.authz_mode]
    return f"{name}s" if settings.tls_cert_file else name
