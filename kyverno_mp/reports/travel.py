"""Determine from the settings which results of reviews are sent to the reports.

Room: reports. Takes: Settings. Gives: Reporting, or None if no results are sent. Next:
program/reporting.py; webhook/start.py. May touch: nothing.
Source: docs/behaviour/controllers 2.10, 6.1, 6.5.
"""

from kyverno_mp.program.reporting import Reporting
from kyverno_mp.settings.settings import Settings


def reporting_of(settings: Settings) -> Reporting | None:
    """Return the reporting options; None if disabled or without a reports pool."""
    if not (settings.has_reports_pool and settings.reports_admission):
        return None
    return Reporting(
        types=_words(settings.reports_of),
        words=_words(settings.reports_results),
        # KYVERNO: results of reviews are reported even if scans store nothing (6.1).
        scans=settings.reports_scan
        and settings.reports_store
        and settings.reports_aggregate,
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(one.strip() for one in text.split(",") if one.strip())
