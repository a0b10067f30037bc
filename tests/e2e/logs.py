"""Find lines that fill a log of kyverno-mp.

Takes: the text of a log. Gives: the lines that a process should have left out. May
touch: nothing.
"""

import json
import logging
from collections import defaultdict
from datetime import datetime

from kyverno_mp.telemetry.repeats import Repeats


def crowded(text: str) -> list[str]:
    """Return the lines beyond those that telemetry/repeats.py allows a process.

    A logger stands for the places in its module, which a line does not name.
    """
    now_s = 0.0
    repeats: defaultdict[int, Repeats] = defaultdict(
        lambda: Repeats(lambda _: None, lambda: now_s)
    )
    excess = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        fields = json.loads(line)
        now_s = datetime.fromisoformat(fields["time"]).timestamp()
        record = logging.makeLogRecord(
            {
                "levelno": logging.getLevelNamesMapping()[fields["level"].upper()],
                "pathname": fields["logger"],
                "msg": fields["message"],
            }
        )
        if not repeats[fields["pid"]].filter(record):
            excess.append(line)
    return excess
