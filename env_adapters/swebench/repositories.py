"""Git repositories of SWE-bench tasks on this machine.

Owns finding them, building those of the bundled tasks, and packing a single commit. On the host git runs on trusted
repositories only; files that an agent has touched stay in its sandbox.
"""

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

from env_adapters.data_folder import data_folder
from env_adapters.swebench.instances import FIXTURES, Instance, load

VARIABLE = "SWEBENCH_REPOSITORIES"
_OWNER = "comprl-fixtures"
_FIRST = ("README.md", ".gitignore")


def find_repository(name: str) -> Path | None:
    """Return the git repository of ``owner/name``, or None if it is not on this machine.

    Bundled ones are built on first use; others are clones (bare or not) at ``$SWEBENCH_REPOSITORIES/owner__name``.
    """
    folder_name = name.replace("/", "__")
    if name.startswith(f"{_OWNER}/"):
        return _fixtures() / folder_name
    root = os.environ.get(VARIABLE)
    folder = Path(root, folder_name) if root else None
    return folder if folder and folder.is_dir() else None


def pack_commit(repository: Path, commit: str) -> bytes:
    """Return a git pack with one commit and its files, without any other commit.

    Raises:
        ValueError: If the repository does not have the commit.
    """
    listed = _git(repository, "rev-list", "--objects", "--no-walk", "--end-of-options", commit)
    if listed.returncode:
        raise ValueError(f"{repository} has no commit {commit!r}: {listed.stderr.decode(errors='replace').strip()}")
    packed = _git(repository, "pack-objects", "--stdout", "-q", stdin=listed.stdout)
    packed.check_returncode()
    return packed.stdout


@cache
def _fixtures() -> Path:
    digest = hashlib.sha256()
    for path in sorted(FIXTURES.iterdir()):
        digest.update(path.read_bytes())
    return data_folder(f"swebench-fixtures-{digest.hexdigest()[:16]}", build_fixtures)


def build_fixtures(folder: Path) -> None:
    """Build the bundled repositories in ``folder``, with the same commits on every machine.

    Like real clones, each has commits before and after the base commit of its tasks; the later ones contain solutions.
    """
    for source in sorted(FIXTURES.glob("*.patch")):
        name = f"{_OWNER}/{source.stem}"
        repository = folder / name.replace("/", "__")
        repository.mkdir()
        _commit(repository, "init", "-q", "-b", "main")
        _commit(repository, "apply", "--index", str(source))
        _commit(repository, "commit", "-q", "-m", f"Start {source.stem}", "--", *_FIRST, day=1)
        _commit(repository, "commit", "-q", "-m", "Write the package and its tests", day=2)
        solved = [instance for instance in load(FIXTURES / "instances.jsonl") if instance.repo == name]
        for day, instance in enumerate(solved, 3):
            _commit(repository, "apply", "--index", stdin=instance.patch + instance.test_patch)
            _commit(repository, "commit", "-q", "-m", _title(instance), day=day)
        _commit(repository, "tag", "v1.1")


def _title(instance: Instance) -> str:
    return f"Fix: {instance.problem_statement.partition(chr(10))[0]}"


def _commit(repository: Path, *arguments: str, day: int = 1, stdin: str = "") -> None:
    date = f"2026-01-{day:02}T12:00:00+00:00"
    person = {"NAME": "Ada Example", "EMAIL": "ada@example.org", "DATE": date}
    environment = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in person.items()}
    # A user's settings, such as signing or line ends, would change the commits.
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    _git(repository, *arguments, stdin=stdin.encode(), environment=environment).check_returncode()


def _git(
    repository: Path, *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    # If git started this process, for instance from a hook, its variables would point git to another repository.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env=inherited | (environment or {}), check=False)
