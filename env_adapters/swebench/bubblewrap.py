"""Sandboxes with bubblewrap: Linux namespaces on this machine, without images or a daemon.

Owns the command line. Of the host's files a sandbox has /usr without Python's packages and a few files of /etc,
read-only; its work tree and /tmp are in memory. All namespaces are new and there are no capabilities. If this process
is root, bubblewrap runs as nobody, because the kernel's limit on the number of processes does not apply to root.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from env_adapters import data_folder
from env_adapters.swebench import instances, repositories
from env_adapters.swebench.process import ProcessSandbox, supervisor_command
from env_adapters.swebench.sandbox import MIB, WORK_TREE, Limits, SandboxError
from env_adapters.swebench.seccomp import build_filter

_NOBODY = 65534
_ID = "1000"
_HOME = "/tmp/home"
_SHARED_MEMORY = 16 * MIB
_FILES = {
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/passwd": f"agent:x:{_ID}:{_ID}::{_HOME}:/bin/bash\n",
}
_SUPERVISOR = "/supervisor"
_DATA = (instances.VARIABLE, repositories.VARIABLE, data_folder.VARIABLE)
_WHEELS = ("ensurepip", "python-wheels")
"""Folders with wheels that hold packages."""
_SHOWN = ("/etc/ld.so.cache", "/etc/alternatives")


def start_bubblewrap(limits: Limits, image: str = "", *, writable: bool = False) -> ProcessSandbox:
    """Start a sandbox; see ``backends.Start``. The image is ignored: the programs are those of this machine."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("bwrap not found; install bubblewrap (Debian, Ubuntu, Fedora: package 'bubblewrap')")
    user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with ExitStack() as stack:
        seccomp = stack.enter_context(_readable(build_filter()))
        files = {path: stack.enter_context(_readable(text.encode())) for path, text in _FILES.items()}
        shell = stack.enter_context(_readable(_bash()))
        command = bubblewrap_command(program, limits, seccomp=seccomp, files=files, shell=shell)
        return ProcessSandbox(command, limits, pass_fds=(seccomp, shell, *files.values()), cwd="/", env={}, **user)


def bubblewrap_command(program: str, limits: Limits, *, seccomp: int, files: dict[str, int], shell: int) -> list[str]:
    """Return the command line of a sandbox.

    Args:
        program: Path of bubblewrap.
        limits: The limits in the sandbox.
        seccomp: File descriptor of the system call filter.
        files: File descriptors with the content of additional files, by path.
        shell: File descriptor with the program of bash, for the first process.
    """
    variables = {
        "HOME": _HOME,
        "LANG": "C.UTF-8",
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{_interpreter() or Path('/usr')}/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "TERM": "dumb",
        "TZ": "UTC",
    }
    command = [program, "--unshare-user", "--unshare-all", "--uid", _ID, "--gid", _ID, "--disable-userns"]
    command += ["--cap-drop", "ALL", "--seccomp", str(seccomp), "--die-with-parent", "--as-pid-1"]
    # A program in the sandbox could otherwise put input into the controlling terminal. Only if there is a terminal:
    # with autogroup scheduling Linux divides CPU time between sessions, and many sandboxes with a session each would
    # leave almost none for the host's event loop.
    command += ["--new-session"] if has_terminal() else []
    command += ["--hostname", "sandbox", "--clearenv"]
    for name, value in variables.items():
        command += ["--setenv", name, value]
    for path in _system_folders():
        # On most systems these are links into /usr.
        command += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    if interpreter := _interpreter():
        command += ["--ro-bind", str(interpreter), str(interpreter)]
    for path in _hidden(interpreter):
        name = str(path)
        command += ["--tmpfs", name, "--remount-ro", name] if path.is_dir() else ["--ro-bind", os.devnull, name]
    for path in _SHOWN:
        command += ["--ro-bind-try", path, path]
    for path, descriptor in files.items():
        command += ["--ro-bind-data", str(descriptor), path]
    # The kernel protects the memory and descriptors of a process whose program may not be read: commands, which have
    # the same user, could otherwise write to /proc/1/mem and so change the limits and what the host is told.
    command += ["--perms", "0111", "--ro-bind-data", str(shell), _SUPERVISOR]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    for path in ("/tmp", WORK_TREE):
        command += ["--size", str(limits.disk * MIB), "--tmpfs", path]
    # / and /dev are in memory too, but have no size limit, so they must be read-only.
    command += ["--dir", _HOME, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORK_TREE]
    return [*command, "--", _SUPERVISOR, *supervisor_command(limits)[1:]]


@cache
def _bash() -> bytes:
    program = shutil.which("bash")
    if program is None:
        raise SandboxError("bash not found; a sandbox needs it")
    return Path(program).read_bytes()


def has_terminal() -> bool:
    """Return whether this process, and so every child in its session, has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _system_folders() -> list[str]:
    return [path for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32") if os.path.lexists(path)]


def _interpreter() -> Path | None:
    """Return the prefix of the running Python if the sandbox would have no Python otherwise.

    Where it really is, since what is hidden below is found there: through a link it would be shown under another name.
    """
    has_python = os.path.exists("/usr/bin/python3") or os.path.exists("/usr/local/bin/python3")
    return None if has_python else Path(sys.base_prefix).resolve()


def _hidden(interpreter: Path | None) -> list[Path]:
    """Return what may hold gold patches and repaired libraries: installed packages, our own files, and our data."""
    shown = [Path(path) for path in _system_folders() if not os.path.islink(path)]
    shown += [interpreter] if interpreter else []
    ours = [_checkout(interpreter) or Path(__file__).parents[1]]
    ours += [Path(path) for name in _DATA if (path := os.environ.get(name))]
    found = {path.resolve() for folder in shown for path in _package_folders(folder)}
    ours = [path for path in map(Path.resolve, ours) if path.exists()]
    found |= {path for path in ours if any(path.is_relative_to(prefix) for prefix in shown)}
    return sorted(path for path in found if not any(path.is_relative_to(other) for other in found - {path}))


def _checkout(interpreter: Path | None) -> Path | None:
    """Return the folder of the checkout that this file is in, unless it holds the interpreter."""
    folder = Path(__file__).resolve().parents[2]
    holds_interpreter = interpreter is not None and interpreter.is_relative_to(folder)
    return folder if (folder / "pyproject.toml").exists() and not holds_interpreter else None


@cache
def _package_folders(folder: Path) -> list[Path]:
    """Return the folders of packages below, of every interpreter: PyPy's, conda's with its downloads, bundled ones."""
    found: list[Path] = []
    for path, names, _ in os.walk(folder):
        of_conda = {"pkgs"} if "conda-meta" in names else set[str]()
        inside = {name for name in names if name.endswith("-packages") or name in of_conda.union(_WHEELS)}
        found += [Path(path, name) for name in inside]
        names[:] = [name for name in names if name not in inside]
    return found


@contextmanager
def _readable(data: bytes) -> Iterator[int]:
    """Provide a file descriptor from which ``data`` can be read."""
    descriptor = os.memfd_create("data")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
