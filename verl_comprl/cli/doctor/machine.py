"""Checks of this machine: device slots, free space, shared memory, ports."""

import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path

from verl_comprl.cli.doctor.finding import Problem, Skipped
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.requirements import GPU

_GIB = 2**30
_LEAST_DISK = 1 * _GIB
_RAY_FULL = 0.95
"""Share of a disk from which Ray writes nothing more to it."""
_LEAST_SHARED = 1 * _GIB
"""Weights and observations go through shared memory; a container has 64 MiB unless told otherwise."""
_LEAST_FILES = 4096


def check_device(_: Setup) -> str:
    """Check that the device that verl expects is there."""
    import torch
    from verl.plugin.platform import get_platform

    from verl_comprl.platform.detection import describe_cpu

    name = get_platform().device_name
    if name == "cpu":
        return describe_cpu()
    if torch.accelerator.is_available():
        return f"{torch.accelerator.device_count()} x {name}"
    if os.environ.get("RAY_ADDRESS"):
        raise Skipped(f"verl expects {name} on the Ray cluster {os.environ['RAY_ADDRESS']}; this machine has none")
    message = f"verl expects {name}, but PyTorch finds none"
    if chosen := os.environ.get("VERL_PLATFORM"):
        raise Problem(f"{message} (VERL_PLATFORM={chosen})", "unset VERL_PLATFORM")
    if torch.version.cuda is None:
        # Without --force-reinstall a build for CPUs of the same version counts as installed.
        remedy = f"pip install --force-reinstall torch=={GPU['torch']}"
        raise Problem(f"{message}: torch {torch.__version__} is built without CUDA", remedy)
    driver = "ubuntu-drivers install, or for a container docker run --gpus all …; to look: nvidia-smi"
    raise Problem(f"{message}: no driver, none that this torch can use, or a container without the GPU", driver)


def check_disk(setup: Setup) -> str:
    """Check the free space where a run, its bank and Ray write."""
    run = Path(setup.config.trainer.default_local_dir if setup.is_run else ".")
    ray = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    places = {"the run's folder": (run, "trainer.default_local_dir=FOLDER on another disk, or delete old checkpoints")}
    if (bank := _bank_folder(setup)) is not None:
        places["the bank's folder"] = (bank, "comprl.bank.path=FOLDER on another disk")
    places["Ray's folder"] = (ray, "export RAY_TMPDIR=FOLDER on another disk")
    found = []
    for name, (folder, remedy) in places.items():
        folder = folder.expanduser().absolute()
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(there, os.W_OK):
            raise Problem(f"{name} {folder} cannot be written: no permission for {there}", remedy)
        usage = shutil.disk_usage(there)
        if usage.free < _LEAST_DISK:
            raise Problem(f"{name} {folder} has {usage.free / _GIB:.1f} GiB free; at least 1 is needed", remedy)
        if name == "Ray's folder" and usage.used / usage.total > _RAY_FULL:
            full = f"{name} {folder} is on a disk that is {usage.used / usage.total:.0%} full"
            raise Problem(f"{full}; Ray stops writing to it at 95 %", remedy, warning=True)
        found.append(f"{usage.free / _GIB:.0f} GiB free for {name}")
    return ", ".join(found)


def _bank_folder(setup: Setup) -> Path | None:
    """Return the folder of a bank that the arguments name or imply; None if there is none or it is not known."""
    if not setup.is_run and not setup.sets("comprl.bank."):
        return None
    comprl = setup.comprl
    unused = setup.is_wrong or comprl.bank.url or not comprl.experience
    return None if unused else Path(comprl.bank.path)


def check_shared_memory(_: Setup) -> str:
    """Check the size of /dev/shm."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        raise Problem(f"/dev/shm cannot be used: {error}", "mount -t tmpfs tmpfs /dev/shm") from error
    if usage.free < _LEAST_SHARED:
        raise Problem(
            f"/dev/shm has {usage.free / 2**20:.0f} MiB free; Ray, vLLM and the weight sync need at least 1024",
            "docker run --shm-size 16g …, or mount -o remount,size=16g /dev/shm",
            warning=True,
        )
    return f"{usage.free / _GIB:.1f} GiB free in /dev/shm"


def check_ports(_: Setup) -> str:
    """Check that processes of this machine can reach one another, and open enough connections."""
    for address in dict.fromkeys(("127.0.0.1", _own_address())):
        try:
            with socket.create_server((address, 0)) as server:
                port = server.getsockname()[1]
                socket.create_connection((address, port), timeout=3).close()
        except OSError as error:
            raise Problem(
                f"no connection to a free port of {address}, by which Ray's processes on this machine talk: {error}",
                # Linux sends what is for an address of its own through the loopback interface.
                "iptables -I INPUT -i lo -j ACCEPT; to look: iptables -nvL",
            ) from error
    files, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < _LEAST_FILES:
        raise Problem(f"a process may open {files} files; Ray needs at least {_LEAST_FILES}", "ulimit -n 65536")
    return "processes of this machine reach one another"


def _own_address() -> str:
    """Return the address by which Ray finds this machine: that of the route to the outside; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("8.8.8.8", 80))
            return probe.getsockname()[0]
    except OSError:  # no network
        return "127.0.0.1"
