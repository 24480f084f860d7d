"""SWE-bench episodes: tools, turn limit, grading, determinism."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import env_adapters
from env_adapters import INFO_KEYS, TextEnvironment
from env_adapters.swebench import expert
from env_adapters.swebench.expert import solve
from env_adapters.swebench.instances import tasks_of
from env_adapters.swebench.tools import REFUSAL, TOOLS

Call = Callable[..., str]
ROOT = Path(__file__).parents[3]
EPISODE = """
import hashlib, json
import env_adapters
environment = env_adapters.make("swebench", max_turns=12)
digest = hashlib.sha256()
for seed in (0, 3):
    digest.update(environment.reset(seed=seed)[0].encode())
    for command in ("ls -a", "python3 -c 'print({str(i) for i in range(9)})'", "echo $$ $PPID", "env | sort", "nope",
                    "python3 -m unittest 2>&1 | grep -v Ran", "git log --format=%H%an%ad", "git status", "exit 4"):
        message = "<tool_call>" + json.dumps({"name": "bash", "arguments": {"command": command}})
        digest.update(repr(environment.step(message)).encode())
print(digest.hexdigest())
environment.close()
"""


def test_an_episode_with_all_tools(small: TextEnvironment, call: Call) -> None:
    instance = tasks_of("train", None, 0.25)[0]
    observation, info = small.reset(seed=0)
    assert observation.startswith(f"The repository {instance.repo} is in /testbed. Its files:\n.gitignore\nREADME.md\n")
    assert info.keys() == INFO_KEYS and info["task_id"] == f"swebench/{instance.instance_id}"
    assert instance.problem_statement.strip() in info["goal"] and instance.repo in info["goal"]
    assert instance.patch not in info["goal"] and small.tools == TOOLS
    assert small.step(call("bash", command="cd tests && ls"))[0] == "__init__.py\ntest_config.py\ntest_parser.py"
    assert small.step(call("bash", command="basename $PWD; false"))[0] == "tests\n[exit status 1]"
    path = "/testbed/notes.txt"
    small.step(call("str_replace_editor", command="create", path=path, file_text="one\n"))
    small.step(call("str_replace_editor", command="insert", path=path, insert_line=1, new_str="two"))
    observation, reward, terminated, truncated, info = small.step(
        call("str_replace_editor", command="str_replace", path=path, old_str="one", new_str="1")
    )
    assert observation.endswith("     1\t1\n     2\ttwo") and info["action_valid"] and info["action_effective"]
    assert (reward, terminated, truncated, info["success"], info["score"]) == (0.0, False, False, False, 0.0)
    *_, info = small.step(call("str_replace_editor", command="view", path="/nowhere"))
    assert info["action_valid"] and not info["action_effective"]
    assert small.step(call("bash", command="git status --short"))[0] == "?? ../notes.txt"
    observation, reward, terminated, truncated, info = small.step(call("submit"))
    assert (reward, terminated, truncated, info["success"], info["score"]) == (0.0, True, False, False, 0.0)
    assert observation.startswith(
        "You submitted your changes. 0 of 4 tests for the issue pass, 0 other tests are broken."
    )
    assert small.step(call("bash", command="ls"))[0] == "The episode is over."


def test_the_expert_solves_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert expert.main([]) == 0
    *tasks, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert total == {"tasks": 8, "solved": 8} and len({task["task"] for task in tasks}) == 8
    assert all(task["end"].endswith("The issue is solved.") for task in tasks)


def test_at_the_turn_limit_the_work_tree_is_graded_as_it_is(call: Call) -> None:
    instance = tasks_of("train", None, 0.25)[0]
    environment = env_adapters.make("swebench", max_turns=2)
    for last, valid in ((call("bash", command="echo done"), True), ("I am not sure.", False)):
        environment.reset(seed=0)
        environment.step(solve(instance)[1])
        observation, reward, terminated, truncated, info = environment.step(last)
        assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, False, True, True, 1.0)
        assert info["action_valid"] == valid and ("done" in observation) == valid
        # For the extractor, which reads how the episode ended.
        assert observation.endswith("tests are broken. The issue is solved.")
    environment.reset(seed=0)
    assert environment.truncate()[1:4] == (0.0, False, True)
    environment.reset(seed=0)
    environment.step(solve(instance)[1])
    observation, *end, _ = environment.truncate()
    assert end == [1.0, False, True] and observation.endswith("The issue is solved.")
    environment.close()


def test_an_invalid_call_is_refused_and_changes_nothing(small: TextEnvironment, call: Call) -> None:
    small.reset(seed=0)
    for text in ("", "ls", "<action>ls</action>", call("bash"), call("python", code="1"), "<tool_call>{}</tool_call>"):
        observation, reward, terminated, truncated, info = small.step(text)
        assert observation == REFUSAL and not info["action_valid"] and not info["action_effective"]
        assert (reward, terminated, truncated) == (0.0, False, False)
    assert small.step(call("bash", command="git status --short"))[0] == "(no output)"


def test_tools_accept_any_text(small: TextEnvironment, call: Call) -> None:
    small.reset(seed=0)
    for text in ("\udcff\ud800 é", "x" * 100_000, "'\"$(`\\", "\x1b[2J", "%s{}", "<<EOF", "-", "\r\n"):
        for message in (
            call("bash", command=text),
            call("bash", command=f"echo {text}"),
            call("str_replace_editor", command="view", path=text),
            call("str_replace_editor", command="create", path=f"/testbed/{text}", file_text=text),
            call("str_replace_editor", command="insert", path="/testbed/README.md", insert_line=1, new_str=text),
        ):
            observation, reward, terminated, *_, info = small.step(message)
            assert info["action_valid"] and (reward, terminated) == (0.0, False)
            assert len(observation) < 10_000 and observation.encode()
            small._turns = 0  # the turn limit is not tested here
    assert small.step(call("bash", command="echo here"))[0].endswith("here")


def test_long_outputs_are_cut_in_the_middle(call: Call) -> None:
    environment = env_adapters.make("swebench", observation_limit=200)
    environment.reset(seed=0)
    observation = environment.step(call("bash", command="seq 1000"))[0]
    assert observation.startswith("1\n2\n") and observation.endswith("\n999\n1000")
    assert "characters left out" in observation and len(observation) < 260
    environment.step(call("str_replace_editor", command="create", path="/testbed/x", file_text="y\n" * 1000))
    observation = environment.step(call("str_replace_editor", command="view", path="/testbed/x"))[0]
    assert "characters left out" in observation and len(observation) < 260
    environment.close()


def test_two_processes_see_the_same_episode() -> None:
    runs = [subprocess.Popen([sys.executable, "-c", EPISODE], cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    digests = [run.communicate()[0] for run in runs]
    assert digests[0] == digests[1] and len(digests[0]) == 65


def test_concurrent_episodes_are_independent(call: Call) -> None:
    def play(seed: int) -> list[Any]:
        environment = env_adapters.make("swebench")
        answers: list[Any] = [environment.reset(seed=seed)[0]]
        for number in range(4):
            command = f"echo {seed} >> mine; cat mine; ls /tmp; echo x > /tmp/{number}"
            answers.append(environment.step(call("bash", command=command)))
        environment.close()
        return answers

    alone = [play(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(play, range(3))) == alone


def test_nothing_remains_of_the_previous_episode(small: TextEnvironment, call: Call) -> None:
    small.reset(seed=0)
    small.step(call("bash", command="echo x > /tmp/x; echo x > x; cd /; y=1; sleep 100 &"))
    small.reset(seed=0)
    assert small.step(call("bash", command="ls /tmp; pwd; echo $y; pgrep sleep; git status --short"))[0] == (
        "home\n/testbed"
    )
    small.close()
    small.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "chroot"}, "unknown backend 'chroot'; known: bubblewrap, docker, remote"),
        ({"data": "/no/such/file.jsonl"}, "data must be an existing file"),
        ({"held_out": 1.5}, r"held_out must be in \[0, 1\], got 1.5"),
        ({"timeout": 0}, "timeout must be positive, got 0"),
        ({"observation_limit": 10}, "observation_limit must be at least 100, got 10"),
        ({"max_turns": 0}, "max_turns"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        env_adapters.make("swebench", **options)


def test_reset_has_no_options_and_an_empty_split_no_tasks(small: TextEnvironment) -> None:
    with pytest.raises(ValueError, match="no reset option 'instance'"):
        small.reset(seed=0, options={"instance": 1})
    environment = env_adapters.make("swebench", held_out=1.0)
    with pytest.raises(ValueError, match="none of them is in 'train'"):
        environment.reset(seed=0)
    assert environment.reset(seed=1)[0]
    environment.close()
