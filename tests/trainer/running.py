"""Training runs of the small models, each in a process of its own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
from arm_settings import CANARY, KEY

from env_adapters.host.temporary import TEMPORARY as OF_ENVIRONMENTS
from verl_comprl.cli.doctor.leftovers import files_in_use
from verl_comprl.record import RunRecord
from verl_comprl.record.reader import METRICS

ROOT = Path(__file__).parents[2]
MARKER = "COMPRL_TEST_RUN"
SHARED_MEMORY = Path("/dev/shm")
TEMPORARY = Path("/tmp")
START_SECONDS = 600


def warm_started() -> Path:
    """Make the two models of recipes/minihack_small, or take them from the recipes' cache; returns their folder."""
    models = ROOT / "outputs/models/minihack_small"
    command = [sys.executable, "-m", "recipes.minihack_small.prepare", "--output", str(models)]
    subprocess.run(command, cwd=ROOT, check=True)
    return models


def with_tasks(folder: Path, models: Path) -> Path:
    """Put models and tasks into a folder of runs; returns it."""
    (folder / "models").symlink_to(models)
    for split, count in (("train", 16), ("val", 2)):
        command = [sys.executable, "-m", "verl_comprl.cli.main", "data", "minihack", "--variant", "room-ultimate"]
        options = ["--split", split, "--count", str(count), "--max-turns", "6"]
        output = ["--output", str(folder / "data" / f"small-room-{split}.parquet")]
        subprocess.run([*command, *options, *output], cwd=ROOT, check=True)
    return folder


def undocumented(metrics: Iterable[str]) -> list[str]:
    """Return those of our metrics that no pattern in the first column of docs/metrics.md names."""
    rows = [line.split(" | ")[0] for line in (ROOT / "docs/metrics.md").read_text().splitlines() if line[:1] == "|"]
    patterns = [f"comprl/{name}" for row in rows for name in re.findall(r"`([^`]+)`", row)]
    ours = [name for name in metrics if name.startswith("comprl/")]
    return [name for name in ours if not any(fnmatch(name, pattern) for pattern in patterns)]


def extractor_was_updated(run: Path) -> bool:
    """Whether the metrics of a run tell of an update of its extractor."""
    metrics = run / "metrics.jsonl"
    return metrics.exists() and re.search(r'"comprl/extractor/updates":[1-9]', metrics.read_text()) is not None


def read_steps(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of each step of a run."""
    lines = map(json.loads, (run / METRICS).read_text().splitlines())
    return [line["data"] | {"step": line["step"]} for line in lines]


def check_arm(arm: str, last: dict[str, Any]) -> None:
    """Check the metrics of the second and last step of an arm's run."""
    assert last["step"] == 2
    assert undocumented(last) == []
    assert last["training/rollout_probs_diff_mean"] < 1e-2 or arm == "variants"
    if arm == "self_imitation":  # without experience
        assert last["comprl/free/rollouts"] > 0 and "comprl/bank/size" not in last
        return
    assert last["comprl/guided/rollouts"] > 0
    assert (last["comprl/free/rollouts"] == 0) == (arm == "all_guided")
    assert ("actor/grad_norm" in last) == (arm != "experience_only")
    assert ("comprl/guided/advantage_std" in last) == (arm != "shared_baseline")
    assert last["comprl/bank/size"] == 4 if arm == "offline" else last["comprl/operations/added"] > 0


def last_step(run: Path) -> int:
    """Step of a run's latest checkpoint."""
    return int((run / "latest_checkpointed_iteration.txt").read_text())


def comprl_bank(folder: Path, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verl_comprl.cli.main", "bank", action, "--path", str(folder / "run" / "bank")]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def run_environment(folder: Path) -> dict[str, str]:
    """The environment that recipes/run.sh makes, for models, tasks and run in ``folder``."""
    return os.environ | {
        "COMPRL_MODELS": str(folder / "models"),
        "COMPRL_TASKS": str(folder / "data"),
        "COMPRL_RUN": str(folder / "run"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "tests/trainer", "tests/chaos")),
    }


def run_lent(folder: Path, runs: list[dict[str, Any]], common: list[str], name: str = "lent") -> None:
    """Run ``lent_run.py``, whose files are called ``name``."""
    specification, output = folder / f"{name}.json", folder / f"{name}.txt"
    specification.write_text(json.dumps({"common": common, "runs": runs}))
    command = [sys.executable, str(ROOT / "tests/trainer/lent_run.py"), str(specification)]
    with output.open("w") as log:
        environment = run_environment(folder) | {KEY: CANARY}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=2 * START_SECONDS)
    assert done.returncode == 0, output.read_text()[-5000:]


def after_a_moment(find: Callable[[], list[str]], seconds: float = 10) -> list[str]:
    """Return what is found once nothing is, or at last."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _as_in_a_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Run:
    """A training run in a process of its own; everything it starts carries its marker in the environment."""

    def __init__(self, folder: Path, *overrides: str, script: str = "", in_terminal: bool = False) -> None:
        """Start the launcher, or a test's ``script`` around it, which gets ``self.probe`` as its first argument.

        Args:
            folder: Has models and data; the run's folder is made in it.
            overrides: Of its config.
            script: Name in ``tests/trainer``.
            in_terminal: As the foreground job of a terminal, so that ``press_ctrl_c`` reaches all its processes.
        """
        self.marker = uuid.uuid4().hex
        self.started = time.time()
        self.keeping_memory: list[str] = []
        self.beside: list[subprocess.CompletedProcess[str]] = []
        self.left: list[str] = []
        self.probe = folder / f"{Path(script).stem}-{self.marker}.jsonl"
        self.output = folder / f"output-{self.marker}.txt"
        environment = run_environment(folder) | {MARKER: self.marker}
        command = [
            sys.executable,
            *([str(ROOT / "tests/trainer" / script), str(self.probe)] if script else ["-m", "verl_comprl.train"]),
            *("--config-dir", str(ROOT / "recipes"), "--config-name", "minihack_small/cpu"),
            *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
            "trainer.max_actor_ckpt_to_keep=null",
            *("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
            *("comprl.warmup_steps=1", "comprl.extractor.batch_size=8"),
            *overrides,
        ]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=in_terminal,
                # Whoever started the tests in the background has let them ignore it.
                preexec_fn=_as_in_a_terminal if in_terminal else None,
            )

    def press_ctrl_c(self) -> None:
        """Send SIGINT to the run's process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def hang_up(self) -> None:
        """Send SIGHUP, as a terminal does that is closed."""
        os.killpg(self.process.pid, signal.SIGHUP)

    def text(self) -> str:
        return self.output.read_text()

    def wait_until(self, condition: Callable[[], object], pause: float = 0.5) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(pause)

    def leftovers(self) -> list[str]:
        """What this run has started or made and is still there after a moment: processes, shared memory, files."""
        found = self._processes, self._shared_memory, self._sockets, self._folders
        return after_a_moment(lambda: [left for find in found for left in find()])

    def processes(self) -> list[str]:
        """The same without shared memory, of which a process that is killed leaves what is its own.

        What Ray was just starting looks for the dead Ray: a worker for half a minute, an agent of a node for one.
        """
        return after_a_moment(lambda: [*self._processes()], seconds=90)

    def listening(self) -> dict[str, set[str]]:
        """Addresses on which the run's processes listen for connections, by the process's name."""
        found: dict[str, set[str]] = {}
        for process in self._alive():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                connections = process.net_connections("tcp")
                addresses = {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
                found.setdefault(process.name().partition(".")[0], set()).update(addresses)  # a method may follow
        return found

    def having(self, variable: str) -> list[str]:
        """Names of the run's processes whose environment has a variable."""
        found: list[str] = []
        for process in self._alive():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if variable in process.environ():
                    found.append(process.name().partition(".")[0])
        return found

    def _processes(self) -> Iterator[str]:
        for process in self._alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                yield f"{process.pid} {process.name()}"

    def _alive(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get(MARKER) == self.marker and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def _sockets(self) -> list[str]:
        """Sockets in the file system that were made since the start, without those of runs that are still there."""
        opened = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
        folders = [TEMPORARY, *TEMPORARY.glob("comprl-sockets-*"), *TEMPORARY.glob("ray/session_*/sockets")]
        found: list[Path] = []
        for folder in {folder.resolve() for folder in folders}:  # one of Ray's is a link to the latest
            try:
                files = [file for file in folder.iterdir() if file.is_socket()]
            except OSError:  # another run removes it just now, or it is another user's
                continue
            is_anothers = folder != TEMPORARY and any(str(file) in opened for file in files)
            found += [] if is_anothers else [file for file in files if str(file) not in opened]
        return [str(file) for file in found if file.exists() and file.stat().st_ctime >= self.started]

    def _folders(self) -> list[str]:
        """Folders of environments' temporary files that were made since the start, without those of other runs."""
        used = set[str | None]()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                used.add(process.environ().get(OF_ENVIRONMENTS))
        found = [folder for folder in TEMPORARY.glob("comprl-env-*") if str(folder) not in used]
        return [str(folder) for folder in found if folder.exists() and folder.stat().st_ctime >= self.started]

    def _shared_memory(self) -> set[str]:
        """Files that were made since the start, and that no process uses: those of other runs are left out."""
        found = dict[tuple[int, int], str]()
        for file in SHARED_MEMORY.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = file.lstat()
                if status.st_ctime >= self.started:
                    found[status.st_dev, status.st_ino] = str(file)
        for used in files_in_use() if found else ():
            found.pop(used, None)
        return {*found.values()}


def check_record(run: Path) -> None:
    """Check that the episodes on disk are those that the metrics count, across a resume, and that calls are there."""
    record = RunRecord(run)
    episodes = list(record.episodes())
    trained = Counter(episode["step"] for episode in episodes if episode["status"] == "trained")
    halves = ("comprl/guided/rollouts", "comprl/free/rollouts")
    assert trained == {line["step"]: sum(line["data"][half] for half in halves) for line in record.metrics()}
    assert len({episode["id"] for episode in episodes}) == len(episodes)
    assert all(episode["advantage"] is not None for episode in episodes if episode["status"] == "trained")
    read = {episode["guide"]["call"] for episode in episodes if episode["guided"]} - {None}
    assert read <= {call["call"] for call in record.calls()}
