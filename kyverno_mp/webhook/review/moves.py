"""Continue a review in another lane, once its plan shows that it belongs there.

Room: webhook. Takes: the answer of the lane that plans, a function that runs the rest
in another lane. Gives: one answer. Next: webhook/review/service.
May touch: the event loop.
Source: docs/images.md (registries): a slow registry delays no other reviews.

If planning takes long, a thread plans. Only the plan tells whether the review reads
registries, and then that thread must not wait for one.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from kyverno_mp.webhook.review.lanes import LateAnswer

MOVED: Final = b"moved"
"""What the work returns instead of an answer if the rest runs in another lane."""


def in_two_lanes(first: LateAnswer, rest: Callable[[], LateAnswer]) -> LateAnswer:
    """Return the answer of ``first``, or of ``rest`` if the work has moved."""
    answer = LateAnswer(first.get_loop())

    def has_moved() -> bool:
        # A review past its deadline is answered, although its work can still end.
        return first.done() and first.result() is MOVED

    def pass_on(done: asyncio.Future[bytes]) -> None:
        answer.set_result(done.result())

    def end(_ended: asyncio.Future[None]) -> None:
        answer.ended.set_result(None)

    def go_on(done: asyncio.Future[bytes]) -> None:
        if not has_moved():
            pass_on(done)
            return
        second = rest()
        second.ended.add_done_callback(end)
        second.add_done_callback(pass_on)

    def end_first(ended: asyncio.Future[None]) -> None:
        if not has_moved():
            end(ended)

    first.ended.add_done_callback(end_first)
    first.add_done_callback(go_on)
    return answer
