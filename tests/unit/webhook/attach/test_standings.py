"""A worker reads the share of each policy in the newest generation.

A failure means: a worker enforces an old share, or a damaged file lifts a policy.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kyverno_mp.compiler.described import build_rollout
from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.leader.rollouts import PublishedRollouts
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.data import DataSegment, encode_data
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.snapshot.rollouts import ROLLOUTS, Phase, RolloutState
from kyverno_mp.webhook.attach.standings import PublishedStandings

ROLLOUT = build_rollout({"kyverno-mp.io/enforce-schedule": "10 -> 50 -> 100 every 1h"})
POLICY = PolicyIR("Policy", "p", "team", rollout=ROLLOUT)


class Pod:
    """A leader and a worker with one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.publisher = Publisher(folder)
        self.rollouts = PublishedRollouts()
        self.standing = self.worker()

    def worker(self) -> PublishedStandings:
        def refused(_error: SnapshotUnusable) -> None:
            """Keep the last generation."""

        return PublishedStandings(
            Follower(
                self.folder,
                ControlPage.open(self.folder),
                ROLLOUTS,
                lambda segment, _: DataSegment(segment),
                on_refused=refused,
            )
        )

    def publish(self, states: Mapping[str, RolloutState]) -> None:
        self.rollouts.set(states)
        assert self.rollouts.poll()
        assert not self.rollouts.poll()
        self.write()

    def publish_changes(self) -> None:
        if self.rollouts.poll():
            self.write()

    def restart_leader(self) -> PublishedRollouts:
        self.publisher, self.rollouts = Publisher(self.folder), PublishedRollouts()
        return self.rollouts

    def write(self) -> None:
        values = self.rollouts.values()
        self.publisher.publish(
            ROLLOUTS,
            lambda generation, salt: encode_data(
                ROLLOUTS, values, generation=generation, salt=salt
            ),
        )


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path / "snapshot")


def state(phase: Phase, step: int) -> RolloutState:
    assert ROLLOUT is not None
    return RolloutState(ROLLOUT.plan, phase, step, 1)


def test_newest_state_is_in_force(pod: Pod) -> None:
    assert pod.standing(POLICY).percent == 10, "nothing is published without a cluster"
    states: tuple[tuple[Phase, int, int], ...] = (
        ("Progressing", 0, 10),
        ("Progressing", 1, 50),
        ("Paused", 1, 50),
        ("Aborted", 1, 0),
        ("Completed", 2, 100),
        ("FellBack", 0, 0),
        ("FellBack", 1, 10),
    )
    for phase, step, percent in states:
        pod.publish({"Policy_team_p": state(phase, step)})
        assert pod.standing(POLICY).percent == percent
        assert pod.worker()(POLICY).percent == percent, "after a restart"


def test_state_of_other_annotations_or_of_no_policy(pod: Pod) -> None:
    pod.publish({"Policy_team_p": RolloutState("other", "Completed", 2)})
    assert pod.standing(POLICY).percent == 10
    pod.publish({})
    assert pod.standing(POLICY).percent == 10
    assert pod.standing(PolicyIR("Policy", "p", "team")).percent == 100


def test_unreadable_state_lifts_no_policy(pod: Pod) -> None:
    pod.publish({"Policy_team_p": state("Progressing", 1)})
    path = pod.folder / segment_file(ROLLOUTS)
    path.write_bytes(b"damaged")
    assert pod.worker()(POLICY).percent == 100
    assert pod.standing(POLICY).percent == 100
