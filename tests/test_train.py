"""The launcher, as far as it gets without a run."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from verl_comprl import train, training
from verl_comprl.config.reading import ConfigError
from verl_comprl.errors import WaitTimeout
from verl_comprl.experience import BankConfig
from verl_comprl.trainer.checkpoint.reading import UnreadableCheckpoint
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.watchdog.liveness import VitalActors
from verl_comprl.trainer.watchdog.watching import PHASES


def test_torchruns_variables_do_not_reach_the_workers(monkeypatch):
    names = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"}
    for name in names:
        monkeypatch.setenv(name, "0")
    assert train.prepare_environment()
    assert not names & os.environ.keys()


@pytest.fixture
def own_signals():
    """The launcher makes signals an interruption of its process, which is here that of the tests."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_only_torchruns_first_process_runs(monkeypatch, own_signals):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(train, "run", lambda config: pytest.fail("a second process must not train"))
    assert train.main([]) == 0


def test_several_nodes_of_torchrun_are_sent_to_the_launcher(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert train.main([]) == 2
    assert capsys.readouterr().out.startswith("error: torchrun has started this on 2 nodes; use -m verl_comprl.launch")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], False),
        (["10.0.0.1:6379"], True),
        (["local"], False),
        (["'local'"], False),
        (["10.0.0.1:6379", "local"], False),
        (["local", "null"], False),
    ],
)
def test_a_run_whose_address_is_local_is_on_no_cluster(monkeypatch, given, named):
    """Hydra takes the last of several; a run on a cluster is not asked for this machine's devices."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    overrides = [f"+ray_kwargs.ray_init.address={address}" for address in given]
    assert train._goes_to_cluster(overrides) is named
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert train._goes_to_cluster(overrides) is ("local" not in "".join(given[-1:]))


def launch(*overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verl_comprl.train", *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_tilde_in_the_run_s_folder_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "_checked", lambda *_: object())
    monkeypatch.setattr(train, "_train", lambda *_: 0)
    assert train.run(OmegaConf.create({"trainer": {"default_local_dir": "~/runs/one"}})) == 0
    assert (tmp_path / "runs" / "one" / "train.log").exists() and not (tmp_path / "~").exists()


@pytest.mark.parametrize("error", [RuntimeError("the server died"), KeyError("loss")])
def test_an_unexpected_error_is_printed_once_in_full(tmp_path, monkeypatch, capsys, error):
    def fail(*_):
        print("what verl prints")
        raise error

    monkeypatch.setattr(train, "_checked", fail)
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    assert train.run(config) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("error: Traceback") and shown.out.count(repr(error).partition("(")[0]) == 1
    assert "in fail" in shown.out and str(tmp_path / "train.log") in shown.out and shown.err == ""
    log = (tmp_path / "train.log").read_text()
    assert log.startswith("what verl prints\nTraceback") and log.count(repr(error).partition("(")[0]) == 1


def test_a_start_that_is_interrupted_says_what_was_saved(tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "_checked", interrupt)
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    assert train.run(config) == 130
    assert capsys.readouterr().out == "error: interrupted; nothing was saved since the last checkpoint\n"


def test_a_bank_s_server_is_looked_for_before_ray_starts(tmp_path, monkeypatch, capsys):
    bank = BankConfig(url="http://127.0.0.1:9", collection="run", attempts=1)
    monkeypatch.setattr(train, "check_config", lambda config: SimpleNamespace(experience=True, bank=bank))
    monkeypatch.setattr(train, "start_ray", lambda config: pytest.fail("Ray was started"))
    monkeypatch.setattr(train.detection, "uses_cpu", lambda: False)
    for name in ("asynchrony.asynchrony_notes", "variants.variant_notes"):
        monkeypatch.setattr(f"verl_comprl.config.{name}", lambda config, comprl: ())
    for name in ("compat.check_symbols", "plugin.verify", "platform.ray_session.end_ray"):
        monkeypatch.setattr(f"verl_comprl.{name}", lambda: None)
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}, "ray_kwargs": {"ray_init": {}}})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert train.run(config) == 2
    assert capsys.readouterr().out.startswith("error: experience bank run on http://127.0.0.1:9: ConnectError")
    assert tmp_path.exists() and list(tmp_path.iterdir()) == []  # the folder was there before, the log was not


@pytest.mark.parametrize(
    ("wait", "address", "line"),
    [
        ("check_config", "local", "checking settings, models and tasks: "),
        ("check_server", "local", "asking the bank's server http://127.0.0.1:9: "),
        ("start_ray", "local", "starting Ray: "),
        ("start_ray", "10.0.0.1:6379", "connecting to Ray at 10.0.0.1:6379: "),
        ("check_transfer_queue", "10.0.0.1:6379", "connecting to Ray at 10.0.0.1:6379: "),
    ],
)
def test_a_start_that_takes_long_says_what_it_waits_for(monkeypatch, wait, address, line):
    """Nothing watches the run before Ray has started."""
    said, told = [], threading.Event()
    comprl = SimpleNamespace(experience=True, bank=BankConfig(url="http://127.0.0.1:9", collection="run"))

    def waits(name, result=None):
        def work(*_):
            assert name != wait or told.wait(30)
            return result

        return work

    async def check_server(bank):
        waits("check_server")()

    def note(text):
        if text.startswith(line):
            said.append(text)
            told.set()

    monkeypatch.setattr("verl_comprl.display.long_waits.FIRST_SECONDS", 1.0)
    monkeypatch.setattr(train, "check_config", waits("check_config", comprl))
    monkeypatch.setattr("verl_comprl.experience.store.check_server", check_server)
    monkeypatch.setattr(train, "start_ray", waits("start_ray"))
    monkeypatch.setattr(train, "check_transfer_queue", waits("check_transfer_queue"))
    monkeypatch.setattr("ray.cluster_resources", dict)
    monkeypatch.setattr(train.detection, "uses_cpu", lambda: False)
    for name in ("asynchrony.asynchrony_notes", "variants.variant_notes"):
        monkeypatch.setattr(f"verl_comprl.config.{name}", lambda config, comprl: ())
    monkeypatch.setattr("verl_comprl.config.validation.check_cluster_slots", lambda config, resources: None)
    for name in ("compat.check_symbols", "plugin.verify"):
        monkeypatch.setattr(f"verl_comprl.{name}", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = OmegaConf.create({"ray_kwargs": {"ray_init": {"address": address}}})
    assert train._checked(config, SimpleNamespace(note=note)) is comprl
    assert said and said[0] == f"{line}1 s so far"


def test_a_refused_start_keeps_what_a_run_has_left(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "_checked", lambda config, display: None)
    (tmp_path / "train.log").write_text("of the run before\n")
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    assert train.run(config) == 2
    assert (tmp_path / "train.log").read_text() == "of the run before\n"


def test_the_manager_loads_while_transfer_queue_starts(tmp_path, monkeypatch):
    """With Ray, it is ended if TransferQueue cannot start."""
    events, error = [], []

    def start_queue(settings):
        events.append("queue")
        if error:
            raise error[0]

    class Training:
        def __init__(self, config):
            events.append("trainer")
            self.trainer = SimpleNamespace(prepare=lambda: events.append("manager"))

        def watched(self, display):
            return nullcontext()

        def run(self, display, **_):
            events.append("run")

    monkeypatch.setattr(train, "Training", Training)
    monkeypatch.setattr("transfer_queue.init", start_queue)
    monkeypatch.setattr(train, "check_transfer_queue", lambda: None)
    monkeypatch.setattr("transfer_queue.close", lambda: events.append("close queue"))
    monkeypatch.setattr("verl_comprl.platform.ray_session.end_ray", lambda: events.append("end"))
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}, "transfer_queue": {}})
    settings = SimpleNamespace(experience=True, guided_fraction=0.5)
    assert train._train(config, settings, SimpleNamespace()) == 0
    assert events == ["trainer", "manager", "queue", "run", "close queue", "end"]
    events.clear()
    error.append(ConnectionError("no queue"))
    with pytest.raises(ConnectionError):
        train._train(config, settings, SimpleNamespace())
    assert events == ["trainer", "manager", "queue", "end"]
    error[0] = KeyboardInterrupt()  # a second Ctrl-C, or one before training has begun
    assert train._train(config, settings, SimpleNamespace(fail=events.append)) == 130
    assert events[-2:] == ["interrupted; nothing was saved since the last checkpoint", "end"]


def test_a_start_of_transfer_queue_that_hangs_is_said(tmp_path, monkeypatch):
    said, told = [], threading.Event()

    def announce(text):
        said.append(text)
        told.set()

    class Training(training.Training):
        def __init__(self, config):
            self.trainer = SimpleNamespace(
                comprl=SimpleNamespace(watchdog=SimpleNamespace(after=0.2, factor=3, end_after=0)),
                experience_runtime=NoExperienceRuntime(),
                prepare=lambda: None,
                replay_buffer=SimpleNamespace(),
                vital=VitalActors(),
                **dict.fromkeys(PHASES, dict),
            )

        def run(self, display, **_):
            pass

    monkeypatch.setattr(train, "Training", Training)
    monkeypatch.setattr("transfer_queue.init", lambda settings: told.wait(30))
    monkeypatch.setattr(train, "check_transfer_queue", lambda: None)
    monkeypatch.setattr("transfer_queue.close", lambda: None)
    monkeypatch.setattr("verl_comprl.platform.ray_session.end_ray", lambda: None)
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}, "transfer_queue": {}})
    assert train._train(config, SimpleNamespace(experience=False), SimpleNamespace(announce=announce)) == 0
    assert said and said[0].startswith("watchdog: start of TransferQueue: ")


def test_a_start_of_transfer_queue_that_never_ends_is_an_error_with_an_exit_code(tmp_path, monkeypatch):
    """Of a baseline, too: its runtime has no experience."""
    failed, events = [], []

    class Training(training.Training):
        def __init__(self, config):
            self.trainer = SimpleNamespace(
                comprl=SimpleNamespace(watchdog=SimpleNamespace(after=0.1, factor=1, end_after=0.2)),
                experience_runtime=NoExperienceRuntime(),
                prepare=lambda: None,
                replay_buffer=SimpleNamespace(),
                vital=VitalActors(),
                **dict.fromkeys(PHASES, dict),
            )

    monkeypatch.setattr(train, "Training", Training)
    monkeypatch.setattr("transfer_queue.init", lambda settings: threading.Event().wait(60))
    monkeypatch.setattr("verl_comprl.platform.ray_session.end_ray", lambda: events.append("end"))
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}, "transfer_queue": {}})
    display = SimpleNamespace(announce=lambda text: None, fail=failed.append)
    assert train._train(config, SimpleNamespace(experience=False), display) == 1
    assert len(failed) == 1 and failed[0].startswith("start of TransferQueue hangs: nothing has moved for ")
    assert events == ["end"]


def left_behind(monkeypatch, clear):
    """A run that has ended and left rows in TransferQueue, which removes them with ``clear``."""
    left = {"train": {"p": {}, "p_0_0": {}}, "val": {}, "comprl_episodes": {"p_0": {}}}
    monkeypatch.setattr("transfer_queue.kv_list", lambda: left)
    monkeypatch.setattr("transfer_queue.kv_clear", clear)
    run = object.__new__(training.Training)
    run.agent_loops = None
    return run


def test_a_run_of_a_sweep_leaves_nothing_in_transfer_queue(monkeypatch):
    cleared = []
    left_behind(monkeypatch, lambda keys, partition: cleared.append((partition, keys))).release()
    assert cleared == [("train", ["p", "p_0_0"]), ("comprl_episodes", ["p_0"])]


@pytest.mark.timeout(60)
def test_a_transfer_queue_that_hangs_after_a_run_does_not_hang_the_sweep(monkeypatch):
    """The watchdog of the run has ended by then."""
    monkeypatch.setattr("verl_comprl.trainer.step.keys.CLEAR_SECONDS", 0.05)
    run = left_behind(monkeypatch, lambda *_: threading.Event().wait())
    with pytest.raises(WaitTimeout, match=r"waited 0\.05 s for TransferQueue to remove what a run has left"):
        run.release()


def test_the_queue_of_another_run_is_not_closed(tmp_path, monkeypatch):
    """It was made between the check of the cluster and this run's own start."""

    def check():
        raise ConfigError("another run uses this Ray cluster")

    started = SimpleNamespace(trainer=SimpleNamespace(prepare=lambda: None), watched=lambda display: nullcontext())
    monkeypatch.setattr(train, "Training", lambda config: started)
    monkeypatch.setattr(train, "check_transfer_queue", check)
    monkeypatch.setattr("transfer_queue.init", lambda settings: None)
    monkeypatch.setattr("transfer_queue.close", lambda: pytest.fail("another run's queue was ended"))
    monkeypatch.setattr("verl_comprl.platform.ray_session.end_ray", lambda: None)
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}, "transfer_queue": {}})
    shown = []
    assert train._train(config, SimpleNamespace(experience=False), SimpleNamespace(fail=shown.append)) == 2
    assert shown == ["another run uses this Ray cluster"]


def test_a_checkpoint_that_cannot_be_read_at_present_is_one_line(monkeypatch, tmp_path):
    def start(config):
        raise UnreadableCheckpoint("data.pt cannot be read at present")

    monkeypatch.setattr(train, "Training", start)
    monkeypatch.setattr("verl_comprl.platform.ray_session.end_ray", lambda: None)
    shown, config = [], OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    assert train._train(config, SimpleNamespace(experience=False), SimpleNamespace(fail=shown.append)) == 2
    assert shown == ["data.pt cannot be read at present"]


def test_help_is_one_screen(capsys):
    assert train.main(["--config-name=recipe", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "data.train_files=FILE" in shown and "arm=NAME" in shown and len(shown.splitlines()) <= 24


@pytest.mark.slow
def test_mistakes_are_printed_one_per_line_before_anything_starts(tmp_path):
    result = launch(
        "actor_rollout_ref.rollout.n=7",
        "comprl.extractor.batch_size=0",
        "actor_rollout_ref.model.path=/no/such/model",
        f"trainer.default_local_dir={tmp_path}/new/run",
    )
    assert result.returncode == 2, result.stderr
    assert list(tmp_path.iterdir()) == []
    assert "error: actor_rollout_ref.rollout.n=7 is odd" in result.stdout
    assert "comprl.extractor.batch_size=0 is not allowed; it must be a whole number greater than 0" in result.stdout
    assert "error: actor_rollout_ref.model.path=/no/such/model has no config.json" in result.stdout
    for missing in ("data.train_files", "data.val_files", "extractor.model.path"):
        assert f"error: {missing} is missing; " in result.stdout
    # A slow machine is told that the checks go on.
    assert all(line.startswith("error: ") or line.endswith(" so far") for line in result.stdout.splitlines())
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    "given",
    [
        ["a.b=1", "--cfg", "job", "+c=-2", "~d"],
        ["--cfg", "job", "a.b=1", "+c=-2", "~d"],
        ["a.b=1", "+c=-2", "--cfg", "job", "~d"],
    ],
)
def test_hydra_gets_its_options_before_the_overrides(given):
    ordered = train._options_first(given)
    assert ordered == ["--cfg", "job", "a.b=1", "+c=-2", "~d"]
    parsed = get_args_parser().parse_args([*ordered, "hydra.run.dir=."])  # Hydra's own
    assert parsed.cfg == "job" and parsed.overrides == ["a.b=1", "+c=-2", "~d", "hydra.run.dir=."]


def test_an_unknown_arm_is_one_line_with_the_nearest_name(capsys):
    assert train.main(["arm=complementry"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("error: arm=complementry is unknown; did you mean complementary? allowed: all_guided, ")


def test_an_unknown_setting_is_one_line_with_the_nearest_name(capsys):
    assert train.main(["comprl.guided_fractoin=0.5", "trainer.n_gpus_per_node=1"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("error: comprl.guided_fractoin is unknown; did you mean guided_fraction? allowed: arm, ")


def test_an_unknown_setting_of_verl_is_one_line_with_the_nearest_name():
    result = launch("trainer.total_epoch=3")
    assert result.returncode == 2 and result.stderr == ""
    assert result.stdout.startswith("error: trainer.total_epoch is unknown; did you mean total_epochs? ")
    assert len(result.stdout.splitlines()) == 1
