"""Scan the objects whose images are verified, in a separate lane.

Room: reports. Takes: the resources that the main lane determines for image rules.
Gives: ImageScan, whose ``tick`` one thread calls; shares_of. Next:
reports/scan/resources.py, reports/scan/lane.py. May touch: the API server through kube,
the clock.
Source: docs/behaviour/controllers 6.3, 6.4; docs/reports.md (images).

The lane has its own watches, feed and evaluators, so an unresponsive registry does not
delay other rules.
"""

from contextlib import suppress

import msgspec

from kyverno_mp.queues.turns import Shares
from kyverno_mp.reports.feed import Feed, Item
from kyverno_mp.reports.scan.coordinator import Scan
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.resources import ObjectScan
from kyverno_mp.values.kubernetes.image import registries_of
from kyverno_mp.values.records import UNDECODABLE


def shares_of(item: Item) -> Shares:
    """Return the namespace of an object and the registries of its images.

    Images that only a policy's imageExtractors find count by their namespace.
    """
    hosts: list[str] = []
    # The evaluation reports an error.
    with suppress(*UNDECODABLE):
        hosts = registries_of(msgspec.json.decode(item.raw))
    return (f"namespace {item.key[0]}", *hosts)


class ImageScan(ObjectScan):
    """The image lane."""

    def __init__(
        self, dependencies: ReportsDependencies, feed: Feed, main: Scan
    ) -> None:
        """``main`` follows the policies for both lanes."""
        super().__init__(dependencies, feed, has_gauges=False)
        self._main = main

    def tick(self) -> None:
        """Run all due steps; a failed step runs again at the next tick."""
        self._run(
            (
                self._follow_main,
                self._follow_labels,
                self._follow_data,
                self._follow_time,
                self._scan_due,
            )
        )

    def _follow_main(self) -> None:
        handed_over = self._main.imaged.take()
        if handed_over is not None:
            self._follow(*handed_over)
