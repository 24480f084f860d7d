"""Start of Ray, or connection to one; ``ray.init`` itself is replaced, since only its arguments matter here."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf

from env_adapters.host.temporary import TEMPORARY
from verl_comprl import training
from verl_comprl.config.reading import ConfigError
from verl_comprl.platform import ray_folder, temporary


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own, where Ray's token is, and where folders of sockets are made."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for longest in "_LONGEST", "LONGEST":
        monkeypatch.setattr(temporary, longest, 1000)
    return tmp_path


TASKS, NICENESS = "RAY_task_events_max_num_task_in_gcs", "RAY_worker_niceness"


@pytest.fixture(autouse=True)
def _variables(unset: Callable[..., None]) -> None:
    unset(TASKS, NICENESS)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``ray.init`` was called with."""
    given: dict[str, Any] = {}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda **settings: given.update(settings))
    return given


def config(**ray_init: Any) -> Any:
    defaults = {"num_gpus": None, "num_cpus": None, "log_to_driver": 0, "include_dashboard": False, "runtime_env": {}}
    return OmegaConf.create({"ray_kwargs": {"ray_init": defaults | ray_init}})


def test_slots_are_those_of_a_ray_that_is_started_here(started: dict[str, Any]) -> None:
    training.start_ray(config(num_gpus=2, num_cpus=32))
    assert (started["num_gpus"], started["num_cpus"], started["address"]) == (2, 32, "local")


def test_a_ray_that_is_started_here_has_folders_for_what_is_left_behind(started: dict[str, Any], home: Path) -> None:
    training.start_ray(config())
    variables = started["runtime_env"]["env_vars"]
    for variable, kind in (temporary.SOCKETS, "sockets"), (TEMPORARY, "env"):
        assert [variables[variable]] == [str(folder) for folder in home.glob(f"comprl-{kind}-*")]


@pytest.mark.parametrize(("variable", "ours"), [(TASKS, "10000"), (NICENESS, "0")])
@pytest.mark.parametrize(("address", "given"), [("", ""), ("", "7"), ("h:6379", "")])
def test_a_ray_that_is_started_here_has_daemons_as_a_run_needs_them(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, variable: str, ours: str, address: str, given: str
) -> None:
    """They do not remember more tasks with every step, and workers compete with an idle extractor at full weight."""
    if given:
        monkeypatch.setenv(variable, given)
    training.start_ray(config(**{"address": address} if address else {}))
    assert os.environ.get(variable, "") == (given or ("" if address else ours))


def test_a_ray_that_happens_to_run_here_is_not_joined(started: dict[str, Any]) -> None:
    training.start_ray(config())
    assert started["address"] == "local" and started["num_gpus"] is None


@pytest.mark.parametrize(
    ("settings", "address", "alone"),
    [
        ({}, None, True),
        ({"_node_ip_address": "10.0.0.7"}, None, False),
        ({}, "10.0.0.1:6379", False),
    ],
)
def test_a_ray_of_one_machine_is_out_of_reach_of_others(
    monkeypatch: Any, settings: dict[str, str], address: str | None, alone: bool
) -> None:
    from ray._private import services

    taken: list[str] = []
    monkeypatch.setattr(ray, "init", lambda **_: taken.append(services.resolve_ip_for_localhost("127.0.0.1")))
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda _: "192.0.2.1")
    monkeypatch.setenv("RAY_ADDRESS", address) if address else monkeypatch.delenv("RAY_ADDRESS", raising=False)
    training.start_ray(config(**settings))
    assert taken == ["127.0.0.1" if alone else "192.0.2.1"]
    assert services.resolve_ip_for_localhost("127.0.0.1") == "192.0.2.1"


@pytest.mark.parametrize(("address", "refused"), [("10.0.0.7", True), ("127.0.0.1", True), (None, False)])
def test_a_ray_that_others_reach_and_that_lets_everybody_in_is_refused(
    started: dict[str, Any], monkeypatch: Any, address: str | None, refused: bool
) -> None:
    """Ray takes an address of the machine, where it is told to listen on 127.0.0.1."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    if not refused:
        training.start_ray(config())
        assert started
        return
    with pytest.raises(ConfigError, match=rf"RAY_AUTH_MODE=disabled lets anybody who reaches {address} .*: unset it"):
        training.start_ray(config(_node_ip_address=address))
    assert not started


def test_no_other_user_can_read_the_token_that_ray_makes_at_any_time(monkeypatch: Any, home: Path) -> None:
    token = home / ".ray" / "auth_token"

    def init(**_: Any) -> None:
        token.write_text("x" * 64)  # as Ray does
        token.chmod(0o644)
        assert token.parent.stat().st_mode & 0o077 == 0

    monkeypatch.setattr(ray, "init", init)
    training.start_ray(config())
    assert token.stat().st_mode & 0o777 == 0o600


SECRET = {"env_vars": {"WANDB_API_KEY": "sk-of-the-workers"}}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, unset: Callable[..., None]) -> Iterator[Path]:
    """In the place of /tmp, and in it: pytest's own folders are of this user alone."""
    unset("RAY_TMPDIR")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(ray_folder, "_SHARED", Path(folder))
        yield Path(folder)


def test_a_ray_that_is_given_secrets_has_its_files_where_no_other_user_reads_them(
    monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    """Ray gives the folder of a session to everyone, again with every worker that starts."""
    from ray._common.utils import get_default_ray_temp_dir, try_to_create_directory
    from ray._private import worker

    def init(**_: Any) -> None:
        session = f"{get_default_ray_temp_dir()}/session_1"
        for folder in (get_default_ray_temp_dir(), session):
            try_to_create_directory(folder)
        monkeypatch.setattr(worker.global_worker, "node", SimpleNamespace(get_session_dir_path=lambda: session))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    own = shared / f"comprl-{os.getuid()}"
    own.mkdir(mode=0o755)
    training.start_ray(config(runtime_env=SECRET))
    assert (own / "ray/session_1").is_dir() and own.stat().st_mode & 0o777 == 0o700
    assert ray_folder.session_is_private()
    own.chmod(0o755)
    assert not ray_folder.session_is_private()


@pytest.mark.parametrize("why", ["no secret", "RAY_TMPDIR", "cluster"])
def test_otherwise_its_files_are_where_ray_and_the_user_put_them(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, shared: Path, why: str
) -> None:
    if why == "RAY_TMPDIR":
        monkeypatch.setenv("RAY_TMPDIR", "/elsewhere")
    if why == "cluster":
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    training.start_ray(config(runtime_env={} if why == "no secret" else SECRET))
    assert started and os.environ.get("RAY_TMPDIR") == ("/elsewhere" if why == "RAY_TMPDIR" else None)


def test_a_folder_that_another_user_may_have_made_is_refused(started: dict[str, Any], shared: Path) -> None:
    (shared / "elsewhere").mkdir()
    (shared / f"comprl-{os.getuid()}").symlink_to("elsewhere")
    with pytest.raises(RuntimeError, match="is not a folder of this user; export RAY_TMPDIR"):
        training.start_ray(config(runtime_env=SECRET))
    assert not started


@pytest.mark.parametrize("by", ["variable", "setting"])
def test_a_running_cluster_is_given_no_slots(started: dict[str, Any], by: str, monkeypatch: Any) -> None:
    if by == "variable":
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    training.start_ray(config(num_gpus=2, num_cpus=32, **({} if by == "variable" else {"address": "10.0.0.1:6379"})))
    assert started["num_gpus"] is None and started["num_cpus"] is None
    assert started.get("address") == (None if by == "variable" else "10.0.0.1:6379")


def test_a_variable_that_asks_for_a_new_ray_is_no_cluster(started: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    training.start_ray(config(num_gpus=2))
    assert started["num_gpus"] == 2


def test_workers_elsewhere_get_what_is_set_here_and_the_user_has_the_last_word(
    started: dict[str, Any], monkeypatch: Any
) -> None:
    for name, value in {"VERL_PLATFORM": "cpu", "VLLM_CPU_KVCACHE_SPACE": "3", "NCCL_DEBUG": "INFO"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("A_SECRET", "x")
    monkeypatch.setenv("COMPRL_REDACT", "LLM_ACCESS")
    training.start_ray(config(runtime_env={"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "5"}}))
    variables = started["runtime_env"]["env_vars"]
    assert variables["VERL_PLATFORM"] == "cpu" and variables["NCCL_DEBUG"] == "INFO"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "5" and variables["TRANSFER_QUEUE_ENABLE"] == "1"
    assert "A_SECRET" not in variables and variables["COMPRL_REDACT"] == "LLM_ACCESS"


def test_ray_client_is_refused(started: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(ConfigError, match=r"ray://10.0.0.1:10001; give the head's host:port"):
        training.start_ray(config())
    assert not started


def test_an_address_where_nobody_answers_is_named(started: dict[str, Any], monkeypatch: Any) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("timed out")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"no Ray cluster can be reached at 10.0.0.1:6379 .RAY_ADDRESS.: timed out"):
        training.start_ray(config())


def test_sigterm_is_still_handled_as_before_while_ray_starts_and_after(monkeypatch: Any) -> None:
    from ray._private import utils

    def init(**_: Any) -> None:
        utils.set_sigterm_handler(lambda number, _: sys.exit(number))  # as Ray does, in several places
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", init)
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        training.start_ray(config())
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_without_a_handler_of_its_own_a_process_has_rays(monkeypatch: Any) -> None:
    from ray._private import utils

    def of_ray(number: int, _: Any) -> None:
        sys.exit(number)

    monkeypatch.setattr(ray, "init", lambda **_: utils.set_sigterm_handler(of_ray))
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        training.start_ray(config())
        assert signal.getsignal(signal.SIGTERM) is of_ray
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_jobs_of_two_rays_on_one_machine_have_numbers_of_their_own(monkeypatch: Any) -> None:
    from ray._private import state

    numbers: list[int] = []
    monkeypatch.setattr(state, "next_job_id", lambda: ray.JobID.from_int(1))
    monkeypatch.setattr(ray, "init", lambda **_: numbers.append(state.next_job_id().int()))
    for _ in range(2):
        training.start_ray(config())
    assert len(set(numbers)) == 2 and all(2**31 <= number < 2**32 - 1 for number in numbers)
    assert state.next_job_id().int() == 1


class _Queue:
    """The controller of a TransferQueue that the job has made."""

    def __init__(self, job: int) -> None:
        self._ray_actor_id = SimpleNamespace(job_id=ray.JobID.from_int(job))


@pytest.mark.parametrize(("made_by", "refused"), [([7], True), ([7, None], False), ([8], False), ([None], False)])
def test_a_cluster_that_another_run_uses_is_refused(monkeypatch: Any, made_by: list[int | None], refused: bool) -> None:
    """This process's job is 8; a queue of job 7 may be about to end."""
    left = list(made_by)

    def get_actor(name: str, namespace: str) -> _Queue:
        job = left.pop(0) if left else made_by[-1]
        if job is None or (name, namespace) != ("TransferQueueController", "transfer_queue"):
            raise ValueError(name)
        return _Queue(job)

    context = SimpleNamespace(get_job_id=lambda: ray.JobID.from_int(8).hex())
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(training, "_QUEUE_SECONDS", 1.0 if not refused else 0.1)
    if not refused:
        training.check_transfer_queue()
        return
    with pytest.raises(ConfigError, match=r"another run uses this Ray cluster.*wait.*or start without RAY_ADDRESS"):
        training.check_transfer_queue()


@pytest.mark.run
def test_the_queue_of_a_run_on_a_cluster_is_found_by_the_next_and_outlives_it(tmp_path: Path) -> None:
    """Two drivers on one Ray: the second is refused, and the first one's queue still answers."""
    program = """
        import os, sys, ray, transfer_queue as tq
        from omegaconf import OmegaConf
        from verl_comprl import training
        ray_init = {"num_gpus": None, "num_cpus": 4, "log_to_driver": 0, "include_dashboard": False, "runtime_env": {}}
        if "RAY_ADDRESS" not in os.environ:  # on loopback, as by default, a Ray cannot be joined
            ray_init["_node_ip_address"] = ray.util.get_node_ip_address()
        training.start_ray(OmegaConf.create({"ray_kwargs": {"ray_init": ray_init}}))
        training._QUEUE_SECONDS = 1.0
        training.check_transfer_queue()
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        training.check_transfer_queue()
        print(ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.readline()
        print(tq.kv_list(), flush=True)
        tq.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {**os.environ, "VERL_PLATFORM": "cpu", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
    environment.pop("RAY_ADDRESS", None)
    pipe = subprocess.PIPE
    first = subprocess.Popen(command, env=environment, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True)
    try:
        assert first.stdin and first.stdout
        address = next(line for line in first.stdout if re.fullmatch(r"[\d.]+:\d+\n", line)).strip()
        second = subprocess.run(
            command,
            env=environment | {"RAY_ADDRESS": address},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert second.returncode == 1 and "ConfigError: another run uses this Ray cluster" in second.stderr
        answer, _ = first.communicate("\n", timeout=100)
        assert first.returncode == 0 and answer.strip().endswith("{}")
    finally:
        first.kill()
