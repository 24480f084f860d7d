"""Clusters of the launcher on one machine, with a tiny driver in the place of the training.

What is checked of each end: exit codes, how long it takes, and that no process is left.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import IPS, ROOT, Cluster, two_namespaces

from verl_comprl.platform.launchers import strip_launcher_variables

pytestmark = [pytest.mark.run, pytest.mark.timeout(900)]

LAUNCHER, DRIVER, RAYLET = "launch_tiny.py", "tiny_driver.py", "raylet/raylet"
FORM_SECONDS = 400
"""From the command to the driver's report: 30 s on a quiet machine."""
END_SECONDS = 120


@pytest.fixture(scope="session")
def namespaces() -> Iterator[tuple[tuple[str, ...], ...]]:
    """Commands that enter two network namespaces, which are two nodes for everything that talks over the network."""
    with two_namespaces() as entered:
        if not entered:
            pytest.skip("network namespaces cannot be made here")
        yield entered


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


@pytest.fixture
def make_cluster(tmp_path: Path, report: Path) -> Iterator:
    """Return a maker of clusters whose driver ends with a code, or sleeps."""
    made: list[Cluster] = []

    def make(mode: str, within=((), ()), address: str = "127.0.0.1", restarts: int = 0, **variables: str) -> Cluster:
        command = [str(ROOT / "tests/launch" / LAUNCHER), str(report), mode]
        made.append(Cluster(tmp_path, command, within=within, address=address, restarts=restarts, variables=variables))
        return made[-1]

    yield make
    for cluster in made:
        cluster.kill()


@pytest.fixture
def sleeping(make_cluster, namespaces, report: Path) -> Cluster:
    """A cluster of two namespaces whose driver has written its report and sleeps."""
    cluster = make_cluster("sleep", namespaces, IPS[0], TORCH_ELASTIC_SHUTDOWN_TIMEOUT="120")
    for node in (0, 1):
        cluster.start(node)
    cluster.wait_until(report.exists, FORM_SECONDS)
    return cluster


def launchers_variables(environment: dict[str, str]) -> set[str]:
    kept = dict(environment)
    strip_launcher_variables(kept)
    return environment.keys() - kept.keys()


def test_two_processes_share_a_cluster_and_leave_nothing(make_cluster, report: Path) -> None:
    cluster = make_cluster(
        "0", COMPRL_RAY_START="--num-gpus 3 --num-cpus 5 --resources '{\"big\": 1}'", RAY_ADDRESS="10.0.0.9:1"
    )
    for node in (1, 0):
        cluster.start(node)
    assert cluster.launcher_codes(FORM_SECONDS) == [0, 0], cluster.text()
    assert not cluster.left_after(10)
    seen = json.loads(report.read_text())
    assert [seen["resources"][name] for name in ("GPU", "CPU", "big")] == [6, 10, 2]
    for environment in (seen["driver"], *(node["environment"] for node in seen["nodes"])):
        assert not launchers_variables(environment)
        assert environment["RAY_AUTH_MODE"] == "token" and len(environment["RAY_AUTH_TOKEN"]) == 64
        assert not Path(environment["RAY_TMPDIR"]).exists()
    assert seen["driver"]["RAY_ADDRESS"].startswith("127.0.0.1:")
    assert len({node["environment"]["RAY_TMPDIR"] for node in seen["nodes"]}) == 2


@pytest.mark.parametrize("where", ["one address", pytest.param("namespaces", marks=pytest.mark.long)])
def test_a_node_that_never_comes_is_counted(make_cluster, where: str, request: pytest.FixtureRequest) -> None:
    seconds, network = "20", ()
    if where == "namespaces":  # the first node knows its own address and starts Ray before another comes
        seconds, network = "60", (request.getfixturevalue("namespaces"), IPS[0])
    cluster = make_cluster("0", *network, COMPRL_JOIN_SECONDS=seconds)
    cluster.start(0)
    # torchrun waits for every torchrun for 15 minutes; on this node it starts, but no launcher does.
    cluster.command = ["-m", "this"]
    cluster.start(1)
    assert cluster.launcher_codes(FORM_SECONDS) == [71, -1], cluster.text()
    assert f"1 of 2 nodes joined within {seconds} s" in cluster.text() and not cluster.left_after(10)


@pytest.mark.long
def test_a_lost_raylet_ends_the_run_on_both(make_cluster, report: Path) -> None:
    cluster = make_cluster("sleep")
    for node in (0, 1):
        cluster.start(node)
    cluster.wait_until(report.exists, FORM_SECONDS)
    cluster.of_node(1, RAYLET).kill()
    assert cluster.launcher_codes(END_SECONDS) == [71, 71], cluster.text()
    assert "Ray on node 1 ended" in cluster.text() and not cluster.left_after(10)


@pytest.mark.long
def test_in_two_namespaces_nodes_have_their_own_addresses(make_cluster, namespaces, report: Path) -> None:
    cluster = make_cluster("7", namespaces, IPS[0])
    for node in (0, 1):
        cluster.start(node)
    assert cluster.launcher_codes(FORM_SECONDS) == [7, 7], cluster.text()
    assert not cluster.left_after(10)
    nodes = json.loads(report.read_text())["nodes"]
    assert [node["ip"] for node in nodes] == list(IPS)
    assert [node["sum"] for node in nodes] == [3, 3]  # gloo went over the cable, whatever the machine's name means
    assert not any(launchers_variables(node["environment"]) for node in nodes)


@pytest.mark.long
def test_sigterm_to_the_first_torchrun_ends_the_run_on_both(sleeping: Cluster) -> None:
    sleeping.nodes[0].send_signal(signal.SIGTERM)
    assert sleeping.launcher_codes(END_SECONDS) == [130, 130], sleeping.text()
    assert not sleeping.left_after(10)


@pytest.mark.long
def test_the_others_leave_when_the_first_launcher_is_killed(sleeping: Cluster) -> None:
    launcher = next(process for process in sleeping.processes(LAUNCHER) if process.ppid() == sleeping.nodes[0].pid)
    launcher.kill()
    assert sleeping.launcher_codes(END_SECONDS) == [-1, 71], sleeping.text()
    assert not sleeping.left_after(60)  # Ray on the first node drains for 30 s, with nobody to cut that short


@pytest.mark.long
def test_torchrun_can_form_a_new_cluster_after_a_crash(make_cluster) -> None:
    cluster = make_cluster("once", restarts=1)
    for node in (0, 1):
        cluster.start(node)
    assert cluster.launcher_codes(2 * FORM_SECONDS) == [0, 0], cluster.text()
    assert cluster.text().count("launcher of this node returned 5") == 2 and not cluster.left_after(10)
