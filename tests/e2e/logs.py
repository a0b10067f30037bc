"""Find causes that fill a log of kyverno-mp.

Takes: the text of a log. Gives: the causes with too many lines. May touch: nothing.
"""

import json
import re
from collections import defaultdict
from datetime import datetime, timedelta

from kyverno_mp.limits import LOG_INTERVAL_S, LOG_LINES_OF_CAUSE


def crowded(text: str) -> list[tuple[str, ...]]:
    """Return the causes of which an interval has more lines than are allowed.

    A cause is a process, a logger and a message without names and numbers.
    """
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    times: defaultdict[tuple[str, ...], list[datetime]] = defaultdict(list)
    for line in lines:
        if line["level"] in ("warning", "error"):
            cause = re.sub(r"\S*[\d/]\S*", "*", line["message"])
            moment = datetime.fromisoformat(line["time"])
            times[str(line["pid"]), line["logger"], cause].append(moment)
    interval = timedelta(seconds=LOG_INTERVAL_S)

    def most(moments: list[datetime]) -> int:
        return max(
            sum(1 for one in moments if moment <= one < moment + interval)
            for moment in moments
        )

    # The lines of two intervals, and the number of those that were left out.
    allowed = 2 * (LOG_LINES_OF_CAUSE + 1)
    return [cause for cause, moments in times.items() if most(moments) > allowed]
