"""One node's processes, without Ray."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from env_adapters.host.temporary import TEMPORARY
from verl_comprl.launch import node as node_module
from verl_comprl.launch.node import Node, gloo_interface

DAEMONS = {"RAY_task_events_max_num_task_in_gcs": "10000", "RAY_worker_niceness": "0"}
WAITS = "import time; print('up', flush=True); time.sleep(300)"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("COMPRL_LEAVE_SECONDS", "30")
    for name in DAEMONS:
        monkeypatch.delenv(name, raising=False)
    return Node(1, 2, "127.0.0.1", os.environ | {"RAY_TMPDIR": str(tmp_path), "RANK": "1", "RAY_ADDRESS": "elsewhere"})


def test_children_get_a_clean_environment_and_end_with_the_node(node: Node) -> None:
    assert not {"RANK", "RAY_ADDRESS"} & node.environment.keys()
    assert node.environment.items() >= DAEMONS.items()  # Ray's daemons are among them
    process = node.start("-c", WAITS)
    (node.folder / "ray/session_latest/logs").mkdir(parents=True)
    node.stop(keep_logs=False)
    assert process.returncode == -signal.SIGTERM and not node.folder.exists()


def test_temporary_files_of_environments_are_where_a_scheduler_has_room(tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    for place in str(scratch), str(tmp_path / "none"):
        node = Node(0, 1, "127.0.0.1", {"RAY_TMPDIR": str(tmp_path), "TMPDIR": place})
        folder = Path(node.environment[TEMPORARY])
        assert folder.is_dir() and (scratch if place == str(scratch) else node.folder) in folder.parents
        node.stop(keep_logs=True)
        assert not folder.exists()


def test_a_child_that_does_not_end_is_killed_with_its_own_children(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRL_LEAVE_SECONDS", "1")
    stubborn = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    stubborn += f"subprocess.run([sys.executable, '-c', {WAITS!r}])"
    process = node.start("-c", stubborn)
    family = psutil.Process(process.pid)
    deadline = time.monotonic() + 30
    while not (children := family.children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    node.stop(keep_logs=False)
    assert process.returncode == -signal.SIGKILL
    _, alive = psutil.wait_procs(children, timeout=10)
    assert children and not alive


@pytest.mark.parametrize(
    "given", ["--resources '{\"big\": 2}' --num-cpus 4", "--num-cpus 4 --resources='{\"big\": 2}'"]
)
def test_resources_of_the_user_join_the_nodes_own(node: Node, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Of several ``--resources`` Ray takes the last ones only, and nodes are counted by theirs."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(node, "start", lambda *command, **_: commands.append(command))
    node.environment["COMPRL_RAY_START"] = given
    node.start_ray("--head")
    (command,) = commands
    assert command.count("--resources") == 1
    assert json.loads(command[command.index("--resources") + 1]) == {"big": 2, f"comprl_node_{node.rank}": 1}
    assert command[-2:] == ("--num-cpus", "4")


@pytest.mark.parametrize("given", ["--resources big=1", "--resources [1]"])
def test_resources_that_ray_cannot_read_are_refused_by_name(
    node: Node, capfd: pytest.CaptureFixture[str], given: str
) -> None:
    node.environment["COMPRL_RAY_START"] = given
    with pytest.raises(SystemExit):
        node.start_ray("--head")
    said = capfd.readouterr().err
    assert "COMPRL_RAY_START" in said and repr(given.split()[1]) in said


def test_ray_prints_into_a_file_whose_end_a_message_can_show(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    assert node.ray_said() == ""
    node.environment["COMPRL_RAY_START"] = "--no-such-option"
    for _ in range(2):  # as a node that tries to join again
        assert node.start_ray("--head").wait(120) != 0
    assert capfd.readouterr() == ("", "")
    assert node.ray_said().startswith(":\n") and "--no-such-option" in node.ray_said()
    assert (node.folder / "ray_start.txt").read_text().count("Error") == 2
    driver = node.start("-c", "print('a step')")
    driver.wait(60)
    assert capfd.readouterr().out == "a step\n"


def test_after_a_failure_the_logs_are_kept(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    session = node.folder / "ray/session_1"
    logs, spilled = session / "logs", session / "ray_spilled_objects"
    logs.mkdir(parents=True)
    spilled.mkdir()
    (logs / "raylet.err").write_text("the reason")
    (node.folder / "ray/session_latest").symlink_to("session_1")
    node.stop(keep_logs=True)
    assert (logs / "raylet.err").read_text() == "the reason" and not spilled.exists()
    assert f"{node.folder}/ray/session_latest/logs" in capsys.readouterr().err


def test_a_child_of_a_killed_launcher_gets_sigterm(tmp_path: Path) -> None:
    child = f"import signal, sys, time\nfrom pathlib import Path\nmark = Path({str(tmp_path / 'mark')!r})\n"
    child += "signal.signal(signal.SIGTERM, lambda *_: (mark.write_text('ended'), sys.exit(0)))\n"
    child += "mark.write_text('up'); time.sleep(300)"
    launcher = "import os, time\nfrom verl_comprl.launch.node import Node\n"
    launcher += f"Node(0, 1, '127.0.0.1', os.environ).start('-c', {child!r})\ntime.sleep(300)"
    environment = os.environ | {"RAY_TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", launcher], env=environment) as process:
        for expected in ("up", "ended"):
            deadline = time.monotonic() + 60
            while not (tmp_path / "mark").exists() or (tmp_path / "mark").read_text() != expected:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.kill()


@pytest.mark.parametrize(
    ("own_name", "ip", "interface"),
    [("127.0.1.1", "10.0.0.7", "ib0"), ("10.1.0.7", "10.0.0.7", ""), ("127.0.1.1", "127.0.0.1", "")],
)
def test_gloo_is_told_an_interface_only_where_it_would_take_loopback(
    own_name: str, ip: str, interface: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    addresses = {"lo": "127.0.0.1", "eth0": "192.168.0.7", "ib0": "10.0.0.7"}
    interfaces = {name: [SimpleNamespace(address=each)] for name, each in addresses.items()}
    monkeypatch.setattr(node_module.psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(node_module.socket, "gethostbyname", lambda _: own_name)
    assert gloo_interface(ip) == interface
    environment = Node(0, 2, ip, {"RAY_TMPDIR": str(tmp_path)}).environment
    assert environment.get("GLOO_SOCKET_IFNAME", "") == interface
    assert "GLOO_SOCKET_IFNAME" not in Node(0, 1, ip, {"RAY_TMPDIR": str(tmp_path)}).environment
