"""The baseline: a Gunicorn + Falcon app that only parses a review and answers it.

Started by perf/admission.py as ``gunicorn -k asgi perf.bare_app:app``, on the same
core, with the same certificate and the same bytes as kyverno-mp. ``PERF_ANSWER`` names
a file with kyverno-mp's answer, so that both send the same size.
"""

import os
from pathlib import Path
from typing import Any

import falcon
import falcon.asgi
import orjson


class Reviews:
    """Parse the review, put its uid into the answer, write it."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, names: str = ""
    ) -> None:
        """Answer any review; ``names`` is part of the path and is ignored."""
        del names
        review = orjson.loads(await req.stream.read())
        self._answer["response"]["uid"] = review["request"]["uid"]
        resp.content_type = "application/json"
        resp.data = orjson.dumps(self._answer)


def make_app() -> Any:
    """Return the app, which reads the answer once."""
    answer = orjson.loads(Path(os.environ["PERF_ANSWER"]).read_bytes())
    made = falcon.asgi.App()
    for path in ("/validate/fail", "/mutate/fail", "/vpol/{names:path}"):
        made.add_route(path, Reviews(answer))
    return made


app = make_app()
