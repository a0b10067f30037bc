"""A reader can read ahead and take records in order.

A failure means: a record is lost or processed twice without need.
"""

from pathlib import Path

from kyverno_mp.queues.journal import TRIGGERS, Journal, JournalReader


def test_records_are_read_ahead_and_acknowledged_in_order(tmp_path: Path) -> None:
    journal = Journal.claim(tmp_path, 100, TRIGGERS.ring_bytes)
    written = [b"%d" % number for number in range(5)]
    assert all(journal.append(record) for record in written)
    reader = JournalReader(tmp_path)
    (found,) = reader.ahead(3)
    assert [one.content for one in found] == written[:3]
    assert journal.waiting == 5
    for one in found[:2]:
        one.done()
    (rest,) = reader.ahead(10)
    assert [one.content for one in rest] == written[2:]
    for one in rest:
        one.done()
    assert (list(reader.ahead(10)), journal.waiting) == ([], 0)
    reader.close()


def test_truncated_record_ends_the_read_ahead(tmp_path: Path) -> None:
    """The writer was killed in the middle of the record, or the file was damaged."""
    journal = Journal.claim(tmp_path, 100, TRIGGERS.ring_bytes)
    assert journal.append(b"first")
    assert journal.append(b"second")
    path = next(tmp_path.iterdir())
    content = path.read_bytes()
    at = content.index(b"second")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    reader = JournalReader(tmp_path)
    (found,) = reader.ahead(10)
    assert [one.content for one in found] == [b"first"]
    found[0].done()
    # It is abandoned after several attempts, and counted.
    for _ in range(3):
        assert list(reader.ahead(10)) == []
    assert (journal.waiting, journal.dropped) == (0, 1)
    assert journal.append(b"third")
    (after,) = reader.ahead(10)
    assert [one.content for one in after] == [b"third"]
    reader.close()
