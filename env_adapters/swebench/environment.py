"""SWE-bench as a text environment.

Owns the episode: the task of a seed, the agent's sandbox, the answers of the tools, and when the patch is graded.
"""

import json
from dataclasses import replace
from typing import Any, ClassVar

from env_adapters.base import TextEnvironment, Transition
from env_adapters.cutting import cut
from env_adapters.dataset import split_of
from env_adapters.parsing import extract_tool_call
from env_adapters.swebench.backends import get_backend
from env_adapters.swebench.editor import run_editor
from env_adapters.swebench.evaluation import with_tests
from env_adapters.swebench.grading import grade
from env_adapters.swebench.instances import HELD_OUT, Instance, tasks_of
from env_adapters.swebench.observation import plain
from env_adapters.swebench.sandbox import MIB, WORK_TREE, Limits, Output, Sandbox, SandboxLost
from env_adapters.swebench.tools import FORMS, REFUSAL, TOOLS, build_instructions, check_call
from env_adapters.swebench.verdict import Verdict
from env_adapters.swebench.work_tree import install, load_pack, take_patch

_GRADING_OUTPUT = 64 * MIB  # logs of real test suites are long
_STOPPED = {
    "timeout": "it ran longer than {limits.timeout:g} seconds",
    "output": "it wrote more than {limits.output} bytes",
    "memory": "more than {limits.memory} MiB of memory were in use",
    "processes": "there were more than {limits.processes} processes and threads",
    "files": "there were more than {limits.files} files",
}


class SWEBenchEnvironment(TextEnvironment):
    """One task of SWE-bench: reward 1 if it is resolved, else 0."""

    # Instances share nothing, but a step waits for a command, and a host lets only a few threads work at the same time.
    thread_safe: ClassVar[bool] = False
    dataset: ClassVar[str | None] = "env_adapters.swebench.dataset:build_rows"
    repeats_observation: ClassVar[bool] = False  # an output of 8,000 characters is in the chat already
    tools: ClassVar[tuple[dict[str, Any], ...]] = TOOLS

    def __init__(
        self,
        *,
        data: str | None = None,
        backend: str = "bubblewrap",
        held_out: float = HELD_OUT,
        max_turns: int = 30,
        timeout: float = 30.0,
        test_timeout: float = 20.0,
        memory: int = 2048,
        disk: int = 512,
        processes: int = 128,
        observation_limit: int = 8000,
    ) -> None:
        """Read the tasks.

        Args:
            data: File with SWE-bench's rows; default: ``$SWEBENCH_DATA``, else ``bundled``, the
                tasks of the bundled repositories.
            backend: A key of ``backends.BACKENDS``.
            held_out: Share of the tasks that are held out, for odd seeds; with 0 odd seeds are all tasks too.
            max_turns: Turns after which the episode is truncated and the work tree graded as it is.
            timeout: Seconds that a command may run.
            test_timeout: Seconds that the tests may run.
            memory: MiB for all processes of a sandbox.
            disk: MiB for the work tree, and again for /tmp.
            processes: Processes and threads of a sandbox.
            observation_limit: Maximum number of characters of a command's output, or of a file, shown to the model.

        Raises:
            ValueError: If a value is out of range or the file is not in SWE-bench's format.
        """
        super().__init__(max_turns=max_turns)
        self._start_sandbox = get_backend(backend)
        self._has_images = backend != "bubblewrap"
        self._limits = Limits(timeout=timeout, memory=memory, disk=disk, processes=processes)
        self._test_limits = replace(self._limits, timeout=test_timeout, output=_GRADING_OUTPUT)
        if observation_limit < 100:
            raise ValueError(f"observation_limit must be at least 100, got {observation_limit!r}")
        self._observation_limit = observation_limit
        self._data, self._held_out = data, held_out
        tasks_of("train" if held_out < 1 else "val", data, held_out)  # reports a bad file now
        self.instructions = build_instructions(max_turns, timeout)
        self.admissible_actions = list(FORMS)
        self._sandbox: Sandbox | None = None

    def close(self) -> None:
        """Close the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"swebench has no reset option {next(iter(options))!r}; it has none")
        self.close()
        split, number = split_of(seed)
        tasks = tasks_of(split, self._data, self._held_out)
        self._instance: Instance = with_tests(tasks[number % len(tasks)])
        self.task_id, self.goal = self._instance.task_id, self._instance.goal
        self._pack = load_pack(self._instance, needed=not (self._has_images and self._instance.image))
        self._sandbox = self._open(self._limits)
        self._base = install(self._sandbox, self._instance, self._pack)
        listing = self._sandbox.exec("git ls-files | head -n 1000")
        files = cut(plain(listing.data).strip(), min(2000, self._observation_limit))
        return f"The repository {self._instance.repo} is in {WORK_TREE}. Its files:\n{files}"

    def _read(self, action_text: str) -> str | None:
        call = extract_tool_call(action_text)
        arguments = check_call(*call) if call else None
        return json.dumps([call[0], arguments]) if call and arguments is not None else None

    def _refusal(self) -> str:
        return REFUSAL

    def _play(self, action: str) -> Transition:
        name, arguments = json.loads(action)
        if name == "submit":
            verdict = self._grade()
            text = f"You submitted your changes. {_explain(verdict)}"
            return _outcome(text, verdict)
        assert self._sandbox is not None
        try:
            if name == "bash":
                output = self._sandbox.exec(arguments["command"], session=True)
                return Transition(self._render(output))
            edit = run_editor(self._sandbox, arguments)
            text = plain(edit.text.encode(errors="replace"))
            return Transition(cut(text, self._observation_limit), effective=edit.effective)
        except SandboxLost:
            self.close()
            return Transition("The sandbox broke down under this, and your changes with it. You lost.", 0.0, True)

    def _settle(self) -> Transition:
        verdict = self._grade()
        return _outcome(f"Your changes were taken as they were. {_explain(verdict)}", verdict)

    def _grade(self) -> Verdict:
        """Take the patch, close the agent's sandbox and grade the patch in a new one."""
        assert self._sandbox is not None
        try:
            patch = take_patch(self._sandbox, self._base)
        except SandboxLost:
            patch = None
        self.close()
        return grade(self._instance, patch, lambda: self._open(self._test_limits, writable=True), self._pack)

    def _open(self, limits: Limits, *, writable: bool = False) -> Sandbox:
        image = self._instance.image if self._pack is None else ""
        return self._start_sandbox(limits, image, writable=writable and bool(image))

    def _render(self, output: Output) -> str:
        text = cut(plain(output.data).rstrip("\n"), self._observation_limit) or "(no output)"
        if output.stopped == "exited":
            return f"{text}\n[the shell ended; a new one was started in {WORK_TREE}]"
        if output.stopped:
            reason = _STOPPED[output.stopped].format(limits=self._limits)
            return (
                f"{text}\n[the command was stopped: {reason}; everything else that was running was stopped too, and a "
                f"new shell was started in {WORK_TREE}; files are kept]"
            )
        return f"{text}\n[exit status {output.code}]" if output.code else text


def _explain(verdict: Verdict) -> str:
    if verdict.problem:
        return f"They were not tested: {verdict.problem}. The issue is not solved."
    text = f"{verdict.fixed} of {verdict.to_fix} tests for the issue pass, {verdict.broken} other tests are broken."
    return f"{text} The issue is {'solved' if verdict.resolved else 'not solved'}."


def _outcome(text: str, verdict: Verdict) -> Transition:
    return Transition(text, float(verdict.resolved), True, success=verdict.resolved, score=verdict.score)
