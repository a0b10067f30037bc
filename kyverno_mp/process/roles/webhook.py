"""Run the webhook's arbiter on the socket that the supervisor opened.

Room: process. Takes: Start. Gives: nothing; ends with the arbiter.
Next: webhook/server.py. May touch: this process becomes the arbiter.
"""

from functools import partial

from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.process.startup.runtime_dir import IMAGES
from kyverno_mp.process.startup.start import Start
from kyverno_mp.process.supervision.status import is_draining
from kyverno_mp.queues.journal import DENIALS, EVENTS, LOST, RESULTS, TRIGGERS
from kyverno_mp.results.records import reporting_of
from kyverno_mp.snapshot.bell import ring_readers
from kyverno_mp.webhook import server
from kyverno_mp.webhook.attach.places import Places
from kyverno_mp.webhook.start import make_start


def run(start: Start) -> None:
    """Serve until SIGTERM; the entry point of the arbiter."""
    settings, runtime_dir = start.settings, start.runtime_dir
    assert start.reviews is not None, "this pod has no webhook"
    assert start.files is not None
    has_pool = settings.has_background_pool
    places = Places(
        snapshot=runtime_dir / SNAPSHOT,
        pages=runtime_dir / PAGES,
        cert=start.files.cert,
        key=start.files.key,
        journals=None if settings.standalone else EVENTS.folder(runtime_dir),
        triggers=TRIGGERS.folder(runtime_dir) if has_pool else None,
        lost=LOST.folder(runtime_dir) if has_pool else None,
        results=RESULTS.folder(runtime_dir) if reporting_of(settings) else None,
        denials=None if settings.standalone else DENIALS.folder(runtime_dir),
        images=runtime_dir / IMAGES if settings.image_verify_cache else None,
    )
    begin = make_start(settings, places)
    server.run(
        settings,
        start.reviews,
        begin,
        partial(is_draining, runtime_dir),
        partial(ring_readers, places.snapshot),
    )
