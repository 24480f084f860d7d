"""The store of a run, and what nodes tell each other through it before Ray is started."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_comprl.errors import INTERRUPTED
from verl_comprl.launch import __main__ as launch
from verl_comprl.launch import head, limits
from verl_comprl.launch.head import lead
from verl_comprl.launch.limits import LOST, LaunchError, poll_until
from verl_comprl.launch.member import follow
from verl_comprl.launch.node import Node
from verl_comprl.launch.store import RunStore
from verl_comprl.launch.versions import SOURCE, first_difference, installed_versions


def variables(rank: int, port: int, nodes: int = 2, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(nodes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put back the signal handlers that the launcher sets."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_without_torchrun_the_first_node_hosts_the_store(port: int) -> None:
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    assert (first.rank, second.rank, second.nodes, second.first_ip) == (0, 1, 2, "127.0.0.1")
    assert second.get("head") == ""
    first.set("head", "address")
    assert first.get("head") == "address"  # in order for one node, not for two
    assert second.get("head") == "address" and second.add("left", 1) == 1 and first.add("left", 0) == 1


def test_torchruns_node_numbers_precede_process_numbers(port: int) -> None:
    store = RunStore(variables(0, port, nodes=8, GROUP_RANK="0", GROUP_WORLD_SIZE="2"))
    assert store.nodes == 2


def test_a_second_attempt_sees_nothing_of_the_first(port: int) -> None:
    first = RunStore(variables(0, port, TORCHELASTIC_RESTART_COUNT="0"))
    first.set("end", "1")
    again = RunStore(variables(1, port, TORCHELASTIC_RESTART_COUNT="1"))
    assert again.get("end") == "" and first.get("end") == "1"


def test_a_store_that_is_gone_is_a_launch_error(port: int) -> None:
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    del first
    with pytest.raises(LaunchError, match="the store of the first node is gone"):
        poll_until(lambda: second.get("end"), 20)


@pytest.mark.parametrize(
    "name", ["RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT", "COMPRL_JOIN_SECONDS", "COMPRL_LEAVE_SECONDS"]
)
def test_a_variable_that_is_no_number_is_named(name: str, monkeypatch, capsys) -> None:
    torchrun = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"} if name.startswith("GROUP") else {}
    for given, value in (variables(0, 1) | torchrun | {name: "x"}).items():
        monkeypatch.setenv(given, value)
    assert launch.main([]) == 2
    assert capsys.readouterr().err == f"launch: {name}=x is no number\n"


def test_options_of_ray_that_cannot_be_read_are_refused_before_a_node_waits_for_another(monkeypatch, capsys) -> None:
    for given, value in (variables(0, 2) | {"COMPRL_RAY_START": "--labels 'a"}).items():
        monkeypatch.setenv(given, value)
    assert launch.main([]) == 2
    assert capsys.readouterr().err == "launch: COMPRL_RAY_START: No closing quotation\n"
    monkeypatch.setenv("COMPRL_RAY_START", "--resources big=1")
    with pytest.raises(SystemExit) as left:
        launch.main([])
    assert left.value.code == 2 and "'big=1' is no JSON" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["RANK", "MASTER_PORT"])
def test_without_its_variables_the_launcher_says_what_to_do(missing: str, monkeypatch, capsys) -> None:
    for name, value in variables(0, 1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    assert launch.main([]) == 2
    assert f"{missing} is not set; start this with torchrun" in capsys.readouterr().err


def test_mistakes_in_settings_are_found_before_anything_starts(capsys) -> None:
    assert launch.main(["comprl.guided_fractoin=0.5"]) == 2
    assert "did you mean guided_fraction" in capsys.readouterr().out


def test_further_processes_of_a_node_have_nothing_to_do(monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert launch.main([]) == 0


def test_the_first_difference_of_versions_is_named() -> None:
    here = installed_versions()
    assert first_difference(here, here) == "" and here["ray"] != "none" and len(here[SOURCE]) == 12
    message = first_difference(here, here | {"ray": "1.0", "verl": "2.0"})
    assert message == f"verl is {here['verl']} here, but 2.0 on the first node; install the same on all nodes"


def test_a_node_with_other_versions_does_not_join_and_tells_the_first(port: int, monkeypatch, capsys) -> None:
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    first.set("head", '{"address": "127.0.0.1:1", "token": "", "versions": {"ray": "1.0"}}')
    monkeypatch.setattr("verl_comprl.launch.node.Node.start_ray", lambda *_: pytest.fail("Ray must not start"))
    assert follow(second) == LOST
    assert "node 1: ray is " in first.get("lost") and "1.0 on the first node" in capsys.readouterr().err
    assert first.add("left", 0) == 1


def test_a_node_that_cannot_make_its_folder_tells_the_first(port: int, monkeypatch, capsys, tmp_path: Path) -> None:
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "missing"))
    assert follow(second) == LOST
    assert first.get("lost").startswith("node 1: ") and str(tmp_path / "missing") in first.get("lost")
    assert first.get("lost") in capsys.readouterr().err
    assert first.add("left", 0) == first.add("here", 0) == 1


def test_a_node_without_the_token_that_the_first_was_given_does_not_join_and_tells_it(
    port: int, monkeypatch, capsys
) -> None:
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    first.set("head", json.dumps({"address": "127.0.0.1:1", "versions": installed_versions()}))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # as if it were not set
    monkeypatch.setattr(Node, "start_ray", lambda *_: pytest.fail("Ray must not start"))
    assert follow(second) == LOST
    assert first.get("lost") == "node 1: RAY_AUTH_TOKEN is not set here, but on the first node; set it on all nodes"
    assert first.get("lost") in capsys.readouterr().err


@pytest.mark.parametrize("given", ["of-the-user", ""])
def test_a_token_that_the_user_has_set_is_used_on_all_nodes_and_not_in_the_store(
    port: int, monkeypatch, tmp_path: Path, given: str
) -> None:
    """One that is made for the run is published: the other nodes have it from nowhere else."""
    seen: list[str] = []

    def start_ray(node: Node, *_: str) -> Any:
        seen.append(node.environment["RAY_AUTH_TOKEN"])
        if node.rank == 0:
            (node.folder / "joined").write_text("2")
        else:
            first.set("end", "7")
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", given) if given else monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setattr(Node, "start_ray", start_ray)
    monkeypatch.setattr(Node, "start", lambda *_: None)
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    head._start_head(first, Node(0, 2, "127.0.0.1", os.environ))
    assert follow(second) == 7
    assert seen[0] == seen[1] == (given or seen[0]) and len(seen[0]) == (len(given) or 64)
    assert (seen[0] in first.get("head")) == (not given)


def test_a_node_leaves_with_the_first_ones_code_if_that_has_ended_before(port: int) -> None:
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    first.set("end", "7")
    assert follow(second) == 7
    assert first.add("left", 0) == 1


@pytest.mark.timeout(60)
def test_a_node_does_not_wait_without_end_for_a_first_one_that_says_nothing(port: int, monkeypatch, capsys) -> None:
    """Its launcher was killed, and the store is that of its torchrun, which makes another attempt."""
    monkeypatch.setenv("COMPRL_JOIN_SECONDS", "0.2")
    first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
    assert follow(second) == LOST
    said = "node 1: the first node has not said within 0.6 s where its Ray is"
    assert first.get("lost") == said and said in capsys.readouterr().err


@pytest.fixture
def cluster(port: int, tmp_path: Path, monkeypatch) -> Callable[[Callable[[Node], Any]], tuple[RunStore, RunStore]]:
    """Two nodes of which the first has published its Ray; what the second starts in its place is given."""

    def form(start_ray: Callable[[Node], Any]) -> tuple[RunStore, RunStore]:
        first, second = RunStore(variables(0, port)), RunStore(variables(1, port))
        first.set("head", json.dumps({"address": "127.0.0.1:1", "token": "", "versions": installed_versions()}))
        monkeypatch.setattr(Node, "start_ray", lambda node, *_: start_ray(node))
        return first, second

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(limits, "_POLL_SECONDS", 0.01)
    return form


@pytest.mark.timeout(60)  # without the second start it would wait for ever
@pytest.mark.parametrize("formed", [False, True])
def test_a_node_joins_again_where_ray_gave_up_before_all_had_joined(cluster, capsys, formed: bool) -> None:
    """Once all have, a Ray that ends is a lost node."""
    started: list[Any] = []

    def start_ray(_: Node) -> Any:
        started.append(SimpleNamespace(returncode=1, poll=lambda code=None if started else 1: code))
        if len(started) == 2:
            first.set("end", "7")
        return started[-1]

    first, second = cluster(start_ray)
    if formed:
        first.set("all", "1")
    assert follow(second) == (LOST if formed else 7) and len(started) == (1 if formed else 2)
    assert first.get("lost") == ("Ray on node 1 ended with 1" if formed else "")
    assert first.get("lost") in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_gets_the_signal_too_waits_for_the_first_ones_end(cluster, number: signal.Signals) -> None:
    """Its children do not ignore it, though: they would have to be killed."""
    children: list[int] = []

    def start_ray(node: Node) -> Any:
        ignored = f"import signal, sys; sys.exit(signal.getsignal({int(number)}) is signal.SIG_IGN)"
        children.append(node.start("-c", ignored).wait(60))
        signal.raise_signal(number)
        first.set("end", "7")
        return SimpleNamespace(poll=lambda: None)

    def unheard(*_: Any) -> None:
        raise AssertionError("the signal was not ignored")

    signal.signal(number, unheard)
    first, second = cluster(start_ray)
    assert follow(second) == 7 and children == [0]


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("os.kill(os.getpid(), 15)", 143)]
)
def test_a_training_that_a_signal_ended_has_the_shells_code_for_it(
    port: int, tmp_path: Path, end: str, code: int
) -> None:
    """A negative number is no exit code: torchrun would be told 247."""
    node = Node(0, 1, "127.0.0.1", os.environ | {"RAY_TMPDIR": str(tmp_path)})
    ray: Any = SimpleNamespace(poll=lambda: None)
    store = RunStore(variables(0, port, nodes=1))
    assert head._run(store, node, ray, ["-c", f"import os, sys; {end}"]) == code


@pytest.mark.parametrize(("processes", "threads", "warned"), [("2", "1", True), ("1", "1", False), ("2", "8", False)])
def test_torchruns_one_thread_for_all_workers_is_told(
    monkeypatch, capsys, processes: str, threads: str, warned: bool
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.delenv("RANK", raising=False)  # so that the launch ends here
    assert launch.main([]) == 2
    said = "torchrun set OMP_NUM_THREADS=1, for the workers too; use --nproc-per-node 1" in capsys.readouterr().err
    assert said == warned


@pytest.mark.parametrize(("restarts", "code", "returned"), [("3", 130, 0), ("0", 130, 130), ("3", 1, 1)])
def test_torchrun_does_not_start_again_what_was_stopped(
    port: int, monkeypatch, restarts: str, code: int, returned: int
) -> None:
    first = RunStore(variables(0, port))
    for name, value in variables(1, port, TORCHELASTIC_MAX_RESTARTS=restarts).items():
        monkeypatch.setenv(name, value)
    first.set("end", str(code))
    assert launch.main([]) == returned


def test_the_first_node_counts_who_came(port: int, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COMPRL_JOIN_SECONDS", "1")
    monkeypatch.setenv("COMPRL_LEAVE_SECONDS", "1")
    assert lead(RunStore(variables(0, port)), ["-c", ""]) == LOST
    assert "1 of 2 nodes joined within 1 s (COMPRL_JOIN_SECONDS)" in capsys.readouterr().err


@pytest.mark.parametrize("full", [False, True])
def test_a_first_node_that_cannot_write_ends_all_with_one_line(
    port: int, monkeypatch, capsys, tmp_path: Path, full: bool
) -> None:
    """Without its folder, or when the disk has no room for what Ray prints: the code is that of the others."""

    def find_no_room(node: Node, *options: str) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC), str(node.folder / "ray_start.txt"))

    if full:
        monkeypatch.setattr(Node, "start_ray", find_no_room)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path if full else tmp_path / "missing"))
    store = RunStore(variables(0, port, nodes=1))
    assert lead(store, ["-c", ""]) == LOST
    said = capsys.readouterr().err
    assert said.startswith("launch: node 0: ") and str(tmp_path) in said and said.count("\n") == 1
    assert store.get("end") == str(LOST) and list(tmp_path.iterdir()) == []


def test_a_signal_while_nodes_are_awaited_ends_the_launch(port: int) -> None:
    store, over = RunStore(variables(0, port)), threading.Event()

    def interrupt() -> None:
        while not over.wait(0.5):
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until ``lead`` listens
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        code = lead(store, ["-c", ""])
    finally:
        over.set()
        thread.join()
    assert code == INTERRUPTED and store.get("end") == "130"
