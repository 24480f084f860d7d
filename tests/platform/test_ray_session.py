"""The end of Ray, in a real one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from env_adapters.host.temporary import TEMPORARY
from verl_comprl.platform import temporary
from verl_comprl.platform.ray_session import end_ray

pytestmark = pytest.mark.run


def test_what_a_worker_has_started_ends_with_ray() -> None:
    class Server:
        """Starts a process that Ray does not find: it is in a session of its own."""

        def start(self) -> int:
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            return subprocess.Popen(command, start_new_session=True).pid

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        server: Any = ray.remote(Server).remote()
        pid: Any = ray.get(server.start.remote())
        assert psutil.pid_exists(pid)
        end_ray()
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert not ray.is_initialized() and own.poll() is None, "what is not Ray's is left alone"
    finally:
        own.kill()
        own.wait()


def test_files_of_servers_and_environments_end_with_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in temporary.SOCKETS, TEMPORARY:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    folders = [Path(folder) for folder in temporary.make_folders().values()]
    assert len(folders) == 2
    for folder in folders:
        (folder / "left").touch()
    context: Any = ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    session = Path(context.address_info["session_dir"])
    assert [file.name for file in (session / "sockets").iterdir() if file.is_socket()]
    end_ray()
    assert session.exists() and not (session / "sockets").exists() and not any(map(Path.exists, folders))


def test_a_folder_of_the_users_is_kept_and_names_do_not_get_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in temporary.SOCKETS, TEMPORARY:
        monkeypatch.setenv(variable, str(tmp_path))
    assert temporary.make_folders() == {}
    for variable in temporary.SOCKETS, TEMPORARY:
        monkeypatch.delenv(variable)
    (long := tmp_path / (46 * "a")).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert temporary.make_folders() == {}


def test_without_ray_there_is_nothing_to_end() -> None:
    end_ray()
