"""Finding repositories, installing them in a sandbox and extracting patches."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from env_adapters.swebench.grading import grade
from env_adapters.swebench.instances import Instance
from env_adapters.swebench.repositories import build_fixtures, find_repository, pack_commit
from env_adapters.swebench.sandbox import Sandbox, SandboxError
from env_adapters.swebench.work_tree import install, load_pack, take_patch


def git(repository: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_the_bundled_repositories_have_the_same_commits_everywhere(
    instances: dict[str, Instance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_DATE", "1999-01-01T00:00:00")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    build_fixtures(tmp_path)
    for instance in instances.values():
        built, kept = tmp_path / instance.repo.replace("/", "__"), find_repository(instance.repo)
        assert kept is not None and git(built, "rev-parse", "v1.1") == git(kept, "rev-parse", "main")
        # One commit before the base commit, and after it one solution for each task.
        after = git(built, "log", "--format=%s", f"{instance.base_commit}..main").splitlines()
        assert f"Fix: {instance.problem_statement.partition(chr(10))[0]}" in after and len(after) == 2
        assert len(git(built, "rev-list", instance.base_commit).split()) == 2


def test_a_pack_has_one_commit_and_its_files(instances: dict[str, Instance], tmp_path: Path) -> None:
    instance = instances["chronos-1"]
    repository = find_repository(instance.repo)
    assert repository is not None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    pack = pack_commit(repository, instance.base_commit)
    subprocess.run(["git", "-C", str(tmp_path), "index-pack", "--stdin"], input=pack, capture_output=True, check=True)
    kinds = git(tmp_path, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert kinds.count("commit") == 1 and kinds.count("tree") == 3 and kinds.count("blob") == 8
    for unknown in ("0" * 40, "--all", "no-such-branch"):
        with pytest.raises(ValueError, match="has no commit"):
            pack_commit(repository, unknown)


def test_clones_are_found_by_the_name_of_their_repository(
    instances: dict[str, Instance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = find_repository("comprl-fixtures/chronos")
    monkeypatch.setenv("SWEBENCH_REPOSITORIES", str(tmp_path))
    elsewhere = replace(instances["chronos-1"], repo="someone/chronos")
    with pytest.raises(ValueError, match=r"'someone/chronos' is not on this machine.*someone__chronos"):
        load_pack(elsewhere, needed=True)
    assert load_pack(elsewhere, needed=False) is None
    subprocess.run(["git", "clone", "-q", "--bare", str(ours), str(tmp_path / "someone__chronos")], check=True)
    assert load_pack(elsewhere, needed=True)


def test_a_patch_contains_all_changes(start: Callable[..., Sandbox], instances: dict[str, Instance]) -> None:
    instance = instances["textgrid-1"]
    sandbox = start()
    base = install(sandbox, instance, load_pack(instance, needed=True))
    assert base == instance.base_commit and take_patch(sandbox, base) == b""
    assert sandbox.exec("git status --porcelain; git log --format=%s").data == b"Write the package and its tests\n"
    # Commits, settings and programs of the agent do not hide its changes.
    sandbox.exec(
        "echo new > 'a b.txt'; printf '\\0\\1' > binary; rm README.md; git add -A; git commit -qm mine; mkdir x\n"
        "git config diff.external false; git config color.ui always; git config diff.noprefix true\n"
        "echo 'export GIT_DIR=/nowhere' > ~/.bashrc; export GIT_DIR=/nowhere; touch x/__init__.py .git/index.lock",
        session=True,
    )
    patch = take_patch(sandbox, base)
    assert patch is not None
    fresh = start()
    install(fresh, instance, load_pack(instance, needed=True))
    applied = fresh.exec("git apply - && git status --porcelain", stdin=patch)
    assert applied.data.decode().splitlines() == [" D README.md", '?? "a b.txt"', "?? binary", "?? x/"]
    sandbox.exec("rm -rf .git")
    assert take_patch(sandbox, base) is None


def test_the_history_of_an_images_repository_is_removed(
    start: Callable[..., Sandbox], instances: dict[str, Instance]
) -> None:
    sandbox = start()
    with pytest.raises(SandboxError, match="cannot be installed"):
        install(sandbox, instances["chronos-1"], None)
    # As in an image: several commits, other branches, remotes, and a work tree that is not clean.
    made = sandbox.exec(
        "set -e; git init -q -b main; git config user.name x; git config user.email x; git remote add origin /nowhere\n"
        "for i in 1 2 3; do echo $i > file; git add file; git commit -qm $i; done\n"
        "git tag future; git branch other; git reset -q --hard HEAD~1; echo changed > file; echo built > untracked"
    )
    assert made.ok, made
    history = sandbox.exec("git rev-list --all").data.decode().split()
    head = sandbox.exec("git rev-parse HEAD").data.decode().strip()
    kept = install(sandbox, instances["chronos-1"], None, keep_history=True)
    assert sandbox.exec("git rev-list --all").data.decode().split() == history
    assert sandbox.exec("git rev-parse HEAD").data.decode().strip() == head
    base = install(sandbox, instances["chronos-1"], None)
    assert base == kept != head
    assert sandbox.exec("git rev-list --all --reflog").data.decode().split() == [base]
    assert sandbox.exec("git tag; git remote; git stash list; ls /tmp/pack 2>/dev/null; cat file untracked").data == (
        b"changed\nbuilt\n"
    )
    for commit in set(history) - {base}:
        assert not sandbox.exec(f"git cat-file -e {commit}").ok
    assert take_patch(sandbox, base) == b""
    # A work tree without changes keeps the commit.
    assert install(sandbox, instances["chronos-1"], None) == base


def test_what_an_images_build_left_is_not_part_of_a_patch(
    start: Callable[..., Sandbox], instances: dict[str, Instance]
) -> None:
    task = instances["chronos-2"]

    def image() -> Sandbox:
        """A sandbox as an image of the task would be: its repository, and a file that the build left."""
        sandbox = start(timeout=20)
        install(sandbox, task, load_pack(task, needed=True))
        assert sandbox.exec("echo 1 > built.txt").ok
        return sandbox

    sandbox = image()
    base = install(sandbox, task, None)
    assert sandbox.exec("git apply -", stdin=task.patch.encode()).ok
    patch = take_patch(sandbox, base)
    assert patch is not None and b"built.txt" not in patch
    assert grade(task, patch, image, None).resolved
