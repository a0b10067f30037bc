"""A pod with a limit of CPU time has no more processes than it has cores for.

The folders are those of containers: a process for each core of a large node would take
memory that the pod does not have.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kyverno_mp.settings.machine import cores

UNIFIED = "0::/\n"
SLICE = "kubepods.slice/kubepods-burstable.slice"
CONTAINER = f"{SLICE}/cri-containerd-4d7f.scope"
ON_HOST = f"0::/{CONTAINER}\n"
OLDER = "12:memory:/kubepods/pod1\n5:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/\n"


def cores_of(folder: Path, membership: str, files: Mapping[str, str]) -> int:
    for name, content in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "membership").write_text(membership)
    return cores(folder / "cgroup", folder / "membership")


@pytest.fixture(autouse=True)
def large_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param(UNIFIED, {"cpu.max": "50000 100000\n"}, 1, id="500m"),
        pytest.param(UNIFIED, {"cpu.max": "100000 100000\n"}, 1, id="1"),
        pytest.param(UNIFIED, {"cpu.max": "150000 100000\n"}, 2, id="1500m"),
        pytest.param(UNIFIED, {"cpu.max": "1000 100000\n"}, 1, id="10m"),
        pytest.param(UNIFIED, {"cpu.max": "9900000 100000\n"}, 64, id="99"),
        pytest.param(UNIFIED, {"cpu.max": "max 100000\n"}, 64, id="no limit"),
        pytest.param(UNIFIED, {}, 64, id="no controller"),
        pytest.param(UNIFIED, {"cpu.max": "x\n"}, 64, id="unreadable"),
        pytest.param(UNIFIED, {"cpu.max": "50000 0\n"}, 64, id="no period"),
        pytest.param(
            ON_HOST,
            {
                f"{CONTAINER}/cpu.max": "max 100000\n",
                f"{SLICE}/cpu.max": "300000 100000\n",
                "kubepods.slice/cpu.max": "800000 100000\n",
            },
            3,
            id="the pod's slice",
        ),
        pytest.param(ON_HOST, {"cpu.max": "200000 100000"}, 2, id="only the mount"),
        pytest.param("0::/../x\n", {"cpu.max": "200000 100000"}, 2, id="outside"),
        pytest.param(
            OLDER,
            {
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
            id="older",
        ),
        pytest.param(
            OLDER,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
            id="older, only the mount",
        ),
        pytest.param(
            OLDER,
            {
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us": "100000\n",
                "memory/kubepods/pod1/cpu.max": "50000 100000\n",
            },
            64,
            id="older, no limit",
        ),
        pytest.param("", {"cpu.max": "50000 100000"}, 64, id="no membership"),
        pytest.param("garbage\n", {}, 64, id="garbage"),
    ],
)
def test_a_limit_of_cpu_time_limits_the_cores(
    tmp_path: Path, membership: str, files: Mapping[str, str], expected: int
) -> None:
    assert cores_of(tmp_path, membership, files) == expected


def test_without_a_kernel_that_says_so_all_cores_count(tmp_path: Path) -> None:
    assert cores(tmp_path / "absent", tmp_path / "absent") == 64
