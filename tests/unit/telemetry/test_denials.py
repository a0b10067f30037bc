"""The last denials of a worker, in a file that another process reads."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.limits import DENIAL_BYTES_MAX, DENIALS_KEPT, DENIALS_PER_S_MAX
from kyverno_mp.telemetry.denials import Denial, DenialFile, last_denials

_TEXTS = st.text(
    st.characters(codec=None), max_size=DENIAL_BYTES_MAX * 2
) | st.sampled_from(["\x00" * DENIAL_BYTES_MAX, "\ud800", "\U0001f600" * 2000])


def denial(number: int = 0, **texts: str) -> Denial:
    standard = Denial(
        time_s=1_000.0 + number,
        operation="CREATE",
        kind="Pod",
        namespace="d",
        name=f"pod-{number}",
        user="alice",
        policy="p",
        rule="r",
        message="no",
    )
    return msgspec.structs.replace(standard, **texts)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "webhook-0.page"


def test_the_newest_come_first_and_the_oldest_go(page: Path) -> None:
    written = DenialFile(page)
    for number in range(DENIALS_KEPT + 3):
        written.write(denial(number))
    names = [found.name for found in last_denials(page.parent)]
    assert names == [f"pod-{n}" for n in range(DENIALS_KEPT + 2, 2, -1)]


def test_all_workers_are_read(page: Path) -> None:
    for number in range(3):
        DenialFile(page.with_name(f"webhook-{number}.page")).write(denial(number))
    assert [found.time_s for found in last_denials(page.parent)] == [1002, 1001, 1000]


def test_a_restarted_worker_continues(page: Path) -> None:
    for number in range(DENIALS_KEPT + 1):
        DenialFile(page).write(denial(number))
    assert len(last_denials(page.parent)) == DENIALS_KEPT
    assert last_denials(page.parent)[0].name == f"pod-{DENIALS_KEPT}"


def test_at_most_some_in_a_second(page: Path) -> None:
    """Reviews that deny in thousands pay for a clock, no more."""
    now_ns = 10**9
    written = DenialFile(page, lambda: now_ns)
    counts = []
    for _ in range(3):
        count = 0
        for _ in range(1000):
            now_ns += 10**6
            if written.is_due():
                written.write(denial(count))
                count += 1
        counts.append(count)
    first, *later = counts
    # As many at once, then so many a second.
    assert DENIALS_PER_S_MAX <= first <= 2 * DENIALS_PER_S_MAX
    assert all(abs(count - DENIALS_PER_S_MAX) <= 1 for count in later)


def test_some_at_once_are_all_written(page: Path) -> None:
    written = DenialFile(page, lambda: 0)
    for number in range(DENIALS_PER_S_MAX):
        assert written.is_due()
        written.write(denial(number))
    assert not written.is_due()
    assert len(last_denials(page.parent)) == DENIALS_PER_S_MAX


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            _FIELDS := (
                "operation",
                "kind",
                "namespace",
                "name",
                "user",
                "policy",
                "rule",
                "message",
            ),
            _TEXTS,
        ),
    )
)
def test_a_denial_is_never_lost_for_its_length(
    tmp_path_factory: pytest.TempPathFactory, texts: dict[str, str]
) -> None:
    """Nobody can hide a denial behind a long name."""
    folder = tmp_path_factory.mktemp("pages")
    DenialFile(folder / "webhook-0.page").write(denial(0, **texts))
    (found,) = last_denials(folder)
    for name in _FIELDS:
        original = getattr(denial(0, **texts), name)
        original = original.encode(errors="replace").decode()
        assert original.startswith(getattr(found, name))
        assert bool(getattr(found, name)) == bool(original) or name == "message"


def damaged(page: Path) -> Iterator[bytes]:
    whole = page.with_suffix(".denials").read_bytes()
    for at in range(0, 200, 7):
        yield whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
    yield whole[: DENIAL_BYTES_MAX // 2]
    yield b""


def test_a_slot_that_is_not_whole_is_left_out(page: Path) -> None:
    DenialFile(page).write(denial())
    for content in list(damaged(page)):
        page.with_suffix(".denials").write_bytes(content)
        assert last_denials(page.parent) in ([], [denial()])
        DenialFile(page).write(denial(1))
        assert denial(1) in last_denials(page.parent)


def test_no_file_without_room(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kyverno_mp.telemetry.denials.has_room", lambda *_: False)
    with pytest.raises(OSError, match="no room"):
        DenialFile(page)
    assert last_denials(page.parent) == []
