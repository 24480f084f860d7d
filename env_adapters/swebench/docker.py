"""Sandboxes with Docker: containers without network and capabilities.

Owns the command line of the ``docker`` client, which can also use a remote engine (``DOCKER_HOST``). The first process
of a container is the same supervisor as with bubblewrap, so both kinds of sandbox behave alike.
"""

import secrets
import shutil
import subprocess

from env_adapters.swebench.process import ProcessSandbox, supervisor_command
from env_adapters.swebench.sandbox import MIB, WORK_TREE, Limits, SandboxError

DEFAULT_IMAGE = "python:3.11"
"""Image for tasks whose repository is copied into the sandbox; it has bash, git and Python."""
_PROGRAM = "/tmp/.supervisor"
_UNREADABLE = f'cp "$BASH" {_PROGRAM} && chmod 0111 {_PROGRAM} && exec {_PROGRAM} "$@"'
"""Starts the supervisor with a program that it may not read: without capabilities, not even as root. The kernel then
keeps the memory and the files of such a process from all others, whatever ``kernel.yama.ptrace_scope`` is."""


def start_docker(limits: Limits, image: str = "", *, writable: bool = False) -> ProcessSandbox:
    """Start a container; see ``backends.Start``."""
    program = shutil.which("docker")
    if program is None:
        raise SandboxError("docker not found; install Docker's client and engine, or use backend 'bubblewrap'")
    name = f"comprl-swebench-{secrets.token_hex(8)}"

    def remove() -> None:
        subprocess.run([program, "rm", "--force", "--volumes", name], capture_output=True, check=False)

    command = docker_command(program, limits, image, name, writable=writable)
    return ProcessSandbox(command, limits, on_close=remove)


def docker_command(program: str, limits: Limits, image: str, name: str, *, writable: bool = False) -> list[str]:
    """Return the command line of a container called ``name``."""
    disk = limits.disk * MIB
    command = [program, "run", "--rm", "--interactive", "--name", name, "--network", "none"]
    command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", str(2 * limits.processes)]
    # Docker counts files on tmpfs as memory.
    memory = f"{limits.memory + 2 * limits.disk}m"
    command += ["--memory", memory, "--memory-swap", memory, "--ulimit", f"fsize={disk}"]
    command += [] if writable else ["--read-only"]
    command += ["--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={disk},mode=1777"]
    # An anonymous volume starts with the image's content at this path and is removed with the container.
    if image:
        command += ["--volume", WORK_TREE]
    else:
        command += ["--tmpfs", f"{WORK_TREE}:rw,exec,nosuid,nodev,size={disk},mode=1777"]
    command += ["--workdir", WORK_TREE, "--hostname", "sandbox", "--env", "PYTHONHASHSEED=0", "--env", "TZ=UTC"]
    command += ["--env", "PYTHONUNBUFFERED=1", "--env", "PYTHONDONTWRITEBYTECODE=1", "--env", "TERM=dumb"]
    first, *arguments = supervisor_command(limits, before=f"rm {_PROGRAM}")
    arguments = ["--noprofile", "--norc", "-c", _UNREADABLE, first, *arguments]
    return [*command, "--entrypoint", first, image or DEFAULT_IMAGE, *arguments]
