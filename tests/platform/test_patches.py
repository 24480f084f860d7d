"""Each patch still has something to repair, and repairs it. In processes of their own: patches are global."""

import logging
import os
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from contextvars import Context, ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from packaging.version import Version

from verl_comprl.platform import patches


def run(tmp_path: Path, program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "VERL_PLATFORM": "cpu", **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_verl_still_names_gloo_twice_for_the_cpu_and_torch_still_refuses(tmp_path: Path) -> None:
    program = """
        import os
        import torch
        from verl.utils import distributed

        def works(initialize):
            result = initialize()
            total = torch.ones(2)
            torch.distributed.all_reduce(total)
            assert total.tolist() == [1, 1]
            distributed.destroy_global_process_group()
            return result

        ray, plain = distributed.initialize_global_process_group_ray, distributed.initialize_global_process_group
        for initialize in (ray, plain):
            os.environ["DIST_INIT_METHOD"] = f"file://{os.getcwd()}/{initialize.__name__}"
            try:
                original = getattr(initialize, "__wrapped__", None)
                if original is not None:
                    original()
                else:
                    torch.distributed.init_process_group("cpu:gloo,cpu:gloo", rank=0, world_size=1)
            except ValueError as error:
                print("refused:", " ".join(str(error).split()))
            else:
                print("NOT NEEDED ANY MORE")
                distributed.destroy_global_process_group()
            print("works:", works(initialize))
    """
    lines = run(tmp_path, program, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["refused", "works", "refused", "works"]
    assert "cpu:gloo,cpu:gloo" in lines[0]
    assert lines[3] == "works: (0, 0, 1)"


@pytest.mark.run
def test_ray_still_has_to_be_told_to_stay_on_loopback(tmp_path: Path) -> None:
    program = """
        import os, psutil

        os.environ.pop("RAY_AUTH_MODE", None)
        import ray
        from ray._private import services
        from verl_comprl.platform.patches import ray_on_loopback

        services.node_ip_address_from_perspective = lambda address: "192.0.2.1"
        print("Ray replaces it:", services.resolve_ip_for_localhost("127.0.0.1") == "192.0.2.1")
        with ray_on_loopback():
            ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)

        @ray.remote
        def address():
            return ray.util.get_node_ip_address()

        print("workers:", ray.get(address.remote()))
        me = psutil.Process()
        listening = {
            connection.laddr.ip.removeprefix("::ffff:")
            for process in (me, *me.children(recursive=True))
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        print("listening:", *sorted(listening))
        print("authentication:", os.environ.get("RAY_AUTH_MODE"))
    """
    lines = run(tmp_path, program, RAY_raylet_start_wait_time_s="100").splitlines()
    expected = ["Ray replaces it: True", "workers: 127.0.0.1", "listening: 127.0.0.1", "authentication: token"]
    assert lines[-4:] == expected


@pytest.mark.run
def test_ray_still_replaces_the_handler_of_sigterm_and_counts_its_jobs_from_1(tmp_path: Path) -> None:
    program = """
        import signal, ray
        from verl_comprl.platform.patches import random_ray_job, ray_keeps_sigterm_handler

        def start():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
            own = signal.getsignal(signal.SIGTERM) is signal.default_int_handler

            @ray.remote
            def job():
                return ray.get_runtime_context().get_job_id()

            here, there = ray.get_runtime_context().get_job_id(), ray.get(job.remote())
            print("started:", own, here == "01000000", there == here)
            ray.shutdown()

        start()
        with ray_keeps_sigterm_handler(), random_ray_job():
            start()
    """
    lines = run(tmp_path, program, RAY_raylet_start_wait_time_s="100").splitlines()
    assert lines[-2:] == ["started: False True True", "started: True False True"]


@pytest.mark.slow
def test_vllm_still_frees_a_weight_that_the_next_sync_has_to_fill(tmp_path: Path) -> None:
    program = """
        import torch
        from vllm.model_executor.layers import utils
        from verl_comprl.platform.patches import keep_vllm_cpu_weights

        def linear(dtype):
            return torch.nn.Linear(64, 32, dtype=dtype)

        freed = []
        for dtype in (torch.float32, torch.bfloat16):
            layer = linear(dtype)
            utils.dispatch_cpu_unquantized_gemm(layer, True)
            freed.append(layer.weight.numel() == 0)
        print("freed", any(freed))

        keep_vllm_cpu_weights()
        patched = utils.dispatch_cpu_unquantized_gemm
        keep_vllm_cpu_weights()
        print("once", utils.dispatch_cpu_unquantized_gemm is patched)

        for dtype in (torch.float32, torch.bfloat16):
            layer, x = linear(dtype), torch.randn(3, 64, dtype=dtype)
            for _ in range(2):  # the second time after a weight sync
                utils.dispatch_cpu_unquantized_gemm(layer, True)
                with torch.no_grad():
                    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
                    actual = layer.cpu_linear(x, layer.weight, layer.bias)
                    print("kept", tuple(layer.weight.shape), torch.allclose(actual, expected, atol=0.05))
                    layer.weight.copy_(torch.randn(32, 64))
    """
    lines = run(tmp_path, program).splitlines()
    lines = [line for line in lines if line.split()[0] in ("freed", "once", "kept")]
    assert lines == ["freed True", "once True", *["kept (32, 64) True"] * 4]


@pytest.mark.slow
def test_verl_still_sets_weights_in_host_memory_aside_without_copying_them(tmp_path: Path) -> None:
    program = """
        import os
        import torch
        from torch.distributed.fsdp import fully_shard
        from verl.utils.fsdp_utils import fsdp2_sharded_load_from_cpu, fsdp2_sharded_save_to_cpu
        from verl_comprl.platform.patches import independent_copy

        torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/s", rank=0, world_size=1)
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        for save in (fsdp2_sharded_save_to_cpu, independent_copy(fsdp2_sharded_save_to_cpu)):
            model = fully_shard(torch.nn.Linear(3, 2), mesh=mesh)
            before = model.weight.full_tensor().clone()
            saved, spec = save(model)
            with torch.no_grad():
                model.weight.add_(1.0)  # an update
            kept = torch.equal(saved["weight"][0], before)
            fsdp2_sharded_load_from_cpu(model, saved, spec)
            print("kept", kept, torch.equal(model.weight.full_tensor(), before))
    """
    lines = [line for line in run(tmp_path, program).splitlines() if line.startswith("kept")]
    assert lines == ["kept False False", "kept True True"]


def test_verl_still_gives_metrics_backends_every_key_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import trainer_base as imported

    def tracking(**settings: Any) -> None:
        given.append(settings)
        raise InterruptedError  # the training would follow

    trainer_base: Any = imported
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(trainer_base, "Tracking", tracking)
    monkeypatch.setattr(trainer_base, "SkipManager", SimpleNamespace(init=lambda config: None))
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    names = {"project_name": "p", "experiment_name": "e", "logger": ["wandb"]}
    trainer: Any = SimpleNamespace(config=OmegaConf.create({"trainer": names, "key": "${oc.env:SOME_API_KEY}"}))
    for clean in (nullcontext(), patches.trackers_get({"key": "reference"})):
        with clean, pytest.raises(InterruptedError):
            trainer_base.PPOTrainer.fit(trainer, None)
    assert [settings["config"]["key"] for settings in given] == ["sk-0123456789", "reference"]
    assert given[1]["default_backend"] == ["wandb"] and trainer_base.Tracking is tracking


def test_verl_still_looks_for_trackios_run_in_every_context(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils.rollout_trace import RolloutTraceConfig

    logged: list[Any] = []
    current_run: ContextVar[Any] = ContextVar("current_run")
    trackio: Any = ModuleType("trackio")
    trackio.context_vars = SimpleNamespace(current_run=current_run)
    trackio.log = lambda traces, step: current_run.get().log(traces, step)
    trackio.Trace = dict
    monkeypatch.setitem(sys.modules, "trackio", trackio)

    def construct(init: Any) -> None:
        current_run.set(SimpleNamespace(log=lambda traces, step: logged.append((traces, step))))
        for _ in range(2):  # the second does nothing
            init("project", "experiment", "trackio")

    patched: Any = RolloutTraceConfig.init
    for init in (patched.__wrapped__.__get__(RolloutTraceConfig), patched):
        monkeypatch.setattr(RolloutTraceConfig, "_instance", None)
        Context().run(construct, init)
        client: Any = RolloutTraceConfig.get_client()
        with nullcontext() if init is patched else pytest.raises(LookupError):
            client.log({"name": client.Trace(messages=[])}, step=1)
    assert logged == [({"name": {"messages": []}}, 1)]


def test_verl_still_gives_flush_to_a_logger() -> None:
    import inspect

    from verl.trainer.ppo.v1 import trainer_separate_async

    source = inspect.getsource(trainer_separate_async.PPOTrainerSeparateAsync._setup)
    assert "flush=True" in source, "not needed any more"
    records: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        """Not pytest's, which got nothing once, after tests of the command line."""

        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger: Any = logging.Logger("test_flush", logging.INFO)  # unknown to whatever else configures logging
    logger.addHandler(Keeper())
    with pytest.raises(TypeError):
        logger.info("servers: %d", 1, flush=True)
    for _ in range(2):  # every trainer asks for it
        patches.accept_flush(logger)
    logger.info("servers: %d", 2, flush=True)
    assert [record.getMessage() for record in records] == ["servers: 2"]
    assert records[0].filename == "test_patches.py"


def test_the_vllm_plugin_does_nothing_outside_a_cpu_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="comprl_cpu")
    register, patched = plugin.load(), []
    monkeypatch.setattr(patches, "keep_vllm_cpu_weights", lambda: patched.append(True))
    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    register()
    monkeypatch.delenv("VERL_PLATFORM")
    register()
    assert patched == []
    monkeypatch.setenv("VERL_PLATFORM", " CPU ")
    register()
    assert patched == [True]


def test_verls_pools_still_wait_for_their_slots_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.single_controller.ray import base

    waits = []
    get = base.RayResourcePool.get_placement_groups
    monkeypatch.setattr("ray.get", lambda references, **limits: waits.append(limits))
    monkeypatch.setattr(base, "placement_group", lambda **_: SimpleNamespace(ready=lambda: None))
    monkeypatch.setattr(base, "sort_placement_group_by_node_ip", lambda groups: groups)
    monkeypatch.setattr(
        base, "get_platform", lambda: SimpleNamespace(device_name="cpu", ray_resource_name=lambda: "GPU")
    )
    getattr(get, "__wrapped__", get)(base.RayResourcePool([1], name_prefix="any"), device_name="cpu")
    assert waits == [{}], "NOT NEEDED ANY MORE"


@pytest.mark.slow
def test_a_rank_of_verl_whose_disk_is_full_still_does_not_come_to_the_barrier_of_the_others(tmp_path: Path) -> None:
    """What the ranks do instead: ``test_ranks.py``."""
    program = """
        import errno
        import os

        from torch import distributed
        from verl.utils.checkpoint import fsdp_checkpoint_manager as module

        calls = []
        distributed.barrier = lambda *_: calls.append("barrier")
        manager = object.__new__(module.FSDPCheckpointManager)
        manager.rank = manager.world_size = 1
        manager.checkpoint_save_contents = ["model"]
        manager.previous_saved_paths, manager.model = [], object()

        def full(*arguments, **options):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        module.get_fsdp_state_ctx = full
        try:
            manager.save_checkpoint("checkpoint", global_step=1)
        except OSError as error:
            print(error.strerror, calls)
    """
    assert run(tmp_path, program) == "No space left on device ['barrier']\n", "one before, none after"


def test_verl_s_trainer_still_has_no_option_for_the_environment_of_its_workers() -> None:
    import inspect

    from verl.single_controller.ray.base import RayWorkerGroup
    from verl.trainer.ppo.v1 import trainer_base

    assert "worker_env" not in inspect.getsource(trainer_base)
    assert 'kwargs.get("worker_env"' in inspect.getsource(RayWorkerGroup.__init__)
    made: list[dict[str, Any]] = []
    module: Any = SimpleNamespace(RayWorkerGroup=lambda **given: made.append(given))
    group = module.RayWorkerGroup
    with pytest.raises(KeyError), patches.variables_of_workers(module, {"A": "1"}):
        module.RayWorkerGroup(device_name="cpu")
        raise KeyError
    assert made == [{"device_name": "cpu", "worker_env": {"A": "1"}}] and module.RayWorkerGroup is group


@pytest.mark.parametrize("patched", [False, True])
def test_a_progress_bar_of_a_process_that_is_killed_leaves_no_semaphore(patched: bool) -> None:
    program = """
        import multiprocessing, sys
        multiprocessing.set_start_method("spawn")  # as vLLM's engine is started
        if sys.argv[1] == "True":
            from verl_comprl.platform.patches import lock_progress_bars_with_threads
            lock_progress_bars_with_threads()
        from tqdm.auto import tqdm
        list(tqdm(range(2), disable=True))
        lock = getattr(tqdm.get_lock(), "mp_lock", None)
        print(lock._semlock.name if lock else "none")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(patched)]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert (name == "none") == patched, "tqdm has another lock now: remove the patch"


def test_verls_torch_on_gpus_still_cannot_forget_a_pass_that_was_broken_off() -> None:
    """If it fails, ``reset_iter_state`` is there, too, and ``broken_pass._forget`` can go."""
    pins = (Path(__file__).parents[2] / "docker/constraints.txt").read_text().splitlines()
    (version,) = (pin.partition("==")[2] for pin in pins if pin.startswith("torch=="))
    assert Version(version) < Version("2.13")
