"""Installs a task's repository in a sandbox and extracts the agent's patch.

Owns installing it with one commit and no other history, and extracting what was changed. Git does both inside the
sandbox; files that an agent has touched never become files of this machine.
"""

from env_adapters.swebench.instances import Instance
from env_adapters.swebench.repositories import VARIABLE, find_repository, pack_commit
from env_adapters.swebench.sandbox import WORK_TREE, Sandbox, SandboxError

# Reads a pack with one commit; .git/shallow declares that its parents are missing.
_INSTALL = """set -e
git -c init.defaultBranch=main init -q .
git index-pack --stdin >/dev/null
echo {base} >.git/shallow
printf '[user]\\n\\tname = agent\\n\\temail = agent@localhost\\n' >>.git/config
git reset -q {mode} {base}
"""
# The base is what the image's work tree holds: files that its build left there and git does not ignore would otherwise
# be part of every patch, which then does not apply where they are already. Its commit is HEAD if there are none.
_FOLD = """set -e
git add -A
tree=$(git write-tree)
base=$(git rev-parse HEAD)
if [ "$tree" != "$(git rev-parse 'HEAD^{tree}')" ]; then
  date='2000-01-01T00:00:00+00:00'
  export GIT_AUTHOR_DATE=$date GIT_COMMITTER_DATE=$date
  base=$(git -c user.name=image -c user.email=image@localhost commit-tree -m 'The work tree of the image' "$tree")
fi
echo "$base"
"""
_REPACK = """set -e
git rev-list --objects --no-walk {base} | git pack-objects --stdout -q >/tmp/pack
rm -rf .git
"""
# The agent may have changed git's settings and state, so the options fix the format of the patch.
_DIFF = """rm -f .git/index.lock
git add -A &&
git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames --src-prefix=a/ --dst-prefix=b/ {base}
"""


def load_pack(instance: Instance, *, needed: bool) -> bytes | None:
    """Return the repository's base commit as a pack, None if the repository is not on this machine.

    Args:
        instance: The task.
        needed: Whether the repository must be on this machine, because no image contains it.

    Raises:
        ValueError: If the commit is missing, or the repository is needed and missing.
    """
    repository = find_repository(instance.repo)
    if repository is not None:
        return pack_commit(repository, instance.base_commit)
    if needed:
        folder = instance.repo.replace("/", "__")
        raise ValueError(
            f"the repository {instance.repo!r} is not on this machine: clone it to ${VARIABLE}/{folder}, or use a "
            "backend that runs the task's image"
        )
    return None


def install(sandbox: Sandbox, instance: Instance, pack: bytes | None, *, keep_history: bool = False) -> str:
    """Install the repository and return its base commit, which for an image holds all of its work tree.

    Args:
        sandbox: A fresh sandbox.
        instance: The task.
        pack: From ``load_pack``; None if the sandbox's image contains the repository.
        keep_history: Whether to leave the image's repository as it is.

    Raises:
        SandboxError: If git fails.
    """
    if pack is not None:
        _run(sandbox, _INSTALL.format(base=instance.base_commit, mode="--hard"), stdin=pack)
        return instance.base_commit
    base = _run(sandbox, _FOLD).decode(errors="replace").strip()
    if not (base.isalnum() and base.isascii()):
        raise SandboxError(f"the image of {instance.instance_id} has no git repository at {WORK_TREE}: {base[:200]!r}")
    if not keep_history:
        _run(sandbox, _REPACK.format(base=base))
        # --mixed: the work tree is that of the base already.
        _run(sandbox, f"exec </tmp/pack\nrm /tmp/pack\n{_INSTALL.format(base=base, mode='--mixed')}")
    return base


def take_patch(sandbox: Sandbox, base: str) -> bytes | None:
    """Return the diff to ``base``, or None if git fails, takes too long or the patch is too long."""
    output = sandbox.exec(f"({_DIFF.format(base=base)}) 2>/dev/null")
    return output.data if output.ok else None


def _run(sandbox: Sandbox, command: str, stdin: bytes = b"") -> bytes:
    output = sandbox.exec(command, stdin=stdin)
    if not output.ok:
        said = output.data[-500:].decode(errors="replace")
        raise SandboxError(f"the repository cannot be installed ({output.stopped or output.code}): {said}")
    return output.data
