"""Print once, in a few lines, that the service is ready and on which addresses.

Room: process. Takes: ports, files, the health reporter. Gives: text on stdout.
May touch: stdout.
"""

import sys
from dataclasses import dataclass
from http import HTTPStatus

from kyverno_mp import __version__
from kyverno_mp.process.certificate import Files
from kyverno_mp.process.health import Reporter
from kyverno_mp.settings.settings import Settings


@dataclass(slots=True)
class Banner:
    """Printed at the first check that finds everything ready."""

    settings: Settings
    files: Files
    reporter: Reporter
    _printed: bool = False

    def look(self) -> None:
        """Print when ready; afterwards do nothing."""
        if self._printed or self.reporter.readiness()[0] != HTTPStatus.OK:
            return
        self._printed = True
        sys.stdout.write(self.text())
        sys.stdout.flush()

    def text(self) -> str:
        """Return the lines."""
        settings = self.settings
        webhook = (
            f"https://{settings.webhook_host or 'localhost'}:{settings.webhook_port}"
        )
        health = f"http://{settings.health_host or 'localhost'}:{settings.health_port}"
        source, trust = settings.policies_dir, ""
        if not settings.standalone:
            # The cluster's certificate replaces the one from the start.
            source = "the cluster"
        elif self.files.ca:
            trust = f", trust {self.files.ca}"
        return (
            f"kyverno-mp {__version__} is ready,"
            f" {settings.webhook_workers} webhook workers\n"
            f"  reviews   {webhook}/validate{trust}\n"
            f"  health    {health}/health/readiness\n"
            f"  metrics   {health}/metrics\n"
            f"  policies  {health}/policies  (from {source})\n"
        )
