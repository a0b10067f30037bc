"""Scan the objects whose images are verified, in a lane of its own.

Room: reports. Takes: the resources that the main lane finds for rules about images.
Gives: ImageScan, whose ``tick`` one thread calls. Next: reports/scan/resources.py,
reports/scan/lane.py. May touch: the API server through kube, the clock.
Source: docs/behaviour/controllers 6.3, 6.4; docs/reports.md (images).

It has watches, a feed and evaluators of its own, so a registry that hangs holds up no
other rule.
"""

from kyverno_mp.reports.feed import Feed
from kyverno_mp.reports.scan.coordinator import Scan
from kyverno_mp.reports.scan.dependencies import ReportsDependencies
from kyverno_mp.reports.scan.resources import ObjectScan


class ImageScan(ObjectScan):
    """The lane of images."""

    def __init__(
        self, dependencies: ReportsDependencies, feed: Feed, main: Scan
    ) -> None:
        """``main`` follows the policies for both lanes."""
        super().__init__(dependencies, feed, has_gauges=False)
        self._main = main

    def tick(self) -> None:
        """Do what is due; what fails is tried again at the next tick."""
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
        taken = self._main.imaged.take()
        if taken is not None:
            self._follow(*taken)
