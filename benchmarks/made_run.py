"""Makes the folder of a run that never took place, of any size, for the viewer's benchmark, tests and picture.

The numbers follow a simple model: an entry has a worth, a guided episode succeeds more often by that, and entries that
did well are used more. The texts are those of keys and doors in small rooms.
"""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.made_metrics import evaluation, step_metrics
from benchmarks.made_texts import ADDITIONS, CONFIG, LESSONS, MOVES, ROOM, TASKS, WORDS

K = 8


class Maker:
    """Draws one run and writes its folder."""

    def __init__(self, folder: Path, steps: int, prompts: int, written: int, seed: int, turns: int, words: int) -> None:
        """Write into ``folder``; see :func:`make_run`."""
        self.folder, self.steps, self.prompts, self.written, self.turns = folder, steps, prompts, written, turns
        self.draw = random.Random(seed)
        self.words = words
        self.worth: dict[str, float] = {}
        self.text: dict[str, tuple[str, str]] = {}
        self.writer: dict[str, str] = {}
        self.tasks: dict[str, set[str]] = {}
        self.record: dict[str, list[bool]] = {}
        self.present: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.samples: list[tuple[str, float]] = []
        self.updates = 0

    def run(self) -> None:
        """Write everything."""
        for step in range(1, self.steps + 1):
            calls: list[dict[str, Any]] = []
            episodes = [item for prompt in range(self.prompts) for item in self._group(step, prompt, calls)]
            self._write_entries(step, episodes, calls)
            self._train(step, calls)
            self._measure(step, episodes)
            for kind, lines in (("episodes", episodes), ("extractor_calls", calls)):
                self._lines(f"{kind}/step_{step}.jsonl.gz", lines)
        for name in ("metrics", "evaluations"):
            self._lines(f"{name}.jsonl", getattr(self, name))
        self._lines("experience.jsonl", self.events)
        (self.folder / "config.yaml").write_text(CONFIG.format(prompts=self.prompts, steps=self.steps), "utf-8")

    def _lines(self, name: str, lines: list[dict[str, Any]]) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        file.write_bytes(gzip.compress(text, 1) if name.endswith(".gz") else text)

    def _noise(self) -> str:
        return " ".join(["", *self.draw.choices(WORDS, k=self.words)])

    def _skill(self, step: int, task: str) -> float:
        return 0.12 + 0.38 * step / self.steps - 0.06 * TASKS.index(task)

    def _choose(self) -> str | None:
        if not self.present:
            return None
        pool = self.draw.sample(self.present, min(12, len(self.present)))
        return max(
            pool, key=lambda id: (sum(self.record[id]) + 1) / (len(self.record[id]) + 2) + self.draw.random() / 4
        )

    def _group(self, step: int, number: int, calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        prompt, task = f"{step:04x}{number:04x}{self.draw.getrandbits(64):016x}", TASKS[number % len(TASKS)]
        difficulty = self.draw.uniform(-0.15, 0.15)
        seed = self.draw.randrange(10_000)
        for session in range(K):
            guided = session < K // 2 and bool(self.present) and step > 2
            entry = self._choose() if guided else None
            chance = self._skill(step, task) + difficulty + (self.worth[entry] if entry else 0)
            success = self.draw.random() < chance
            id = f"{prompt}_{session}"
            yield self._episode(id, prompt, session, step, task, seed, entry, session < K // 2, success, calls)
            if entry:
                self.record[entry].append(success)
                reward = 1.0 if success else -1.0
                self._read(step, entry, id, task, success, False)
                self.samples.append((self.writer[entry], reward))
                calls.append(
                    {
                        "event": "use",
                        "call": self.writer[entry],
                        "step": step,
                        "episode": id,
                        "success": success,
                        "judged": 0.0,
                        "reward": reward,
                    }
                )

    def _read(self, step: int, entry: str, episode: str, task: str, success: bool, asked: bool) -> None:
        text = "\n".join(self.text[entry])
        self.events.append(
            {
                "event": "read",
                "step": step,
                "entry": entry,
                "text": text,
                "asked": asked,
                "episode": episode,
                "task": task,
                "goal": "Reach the exit.",
                "success": success,
            }
        )

    def _episode(
        self,
        id: str,
        prompt: str,
        session: int,
        step: int,
        task: str,
        seed: int,
        entry: str | None,
        slot: bool,
        success: bool,
        calls: list[dict[str, Any]],
    ) -> dict[str, Any]:
        goal = "Push every box onto a target." if "sokoban" in task else "Find the key, open the door, reach the exit."
        text = "\n".join(self.text[entry]) if entry else None
        turns, output, spans = [], "", []
        for number in range(max(2, int(self.draw.gauss(self.turns - 2 * success, 1.5)))):
            questions = []
            if entry and number == 1 and self.draw.random() < 0.25:
                questions.append(self._question(step, entry, calls))
                call = {"name": "search_and_ask", "arguments": {"query": questions[0]["query"]}}
                query = f"<tool_call>{json.dumps(call)}</tool_call>"
                spans.append([len(output), len(output) + len(query)])
                output += (
                    query + f"<|im_end|>\n<|im_start|>tool\n{questions[0]['answer']}<|im_end|>\n<|im_start|>assistant\n"
                )
            room = ROOM.format(a=self.draw.choice("..k$"), b=self.draw.choice(".>."))
            move = self.draw.choice(MOVES)
            valid = self.draw.random() < 0.88
            because = (text or "").partition("\n")[0].lower() or "nothing is known about this room"
            response = (
                f"<think>I have read: {because}. The door is in the east, and I stand two squares away from it."
                f"{self._noise()}</think>\n<action>{move}</action>"
            )
            spans.append([len(output), len(output) + len(response) + 10])
            output += f"{response}<|im_end|>\n<|im_start|>user\n{room}<|im_end|>\n<|im_start|>assistant\n"
            turns.append(
                {"observation": room, "questions": questions, "response": response, "valid": valid, "reward": 0.0}
            )
        turns[-1]["reward"] = float(success)
        output = output[: spans[-1][1]]
        system = "You walk through a small room. Actions: " + ", ".join(MOVES) + "."
        advice = f"\n\nExperience from earlier episodes:\n{text}" if text else ""
        return {
            "id": id,
            "prompt": prompt,
            "session": session,
            "kind": "training",
            "status": "trained",
            "step": step,
            "submitted": step,
            "task": task,
            "environment": task.split("/")[0],
            "options": {"size": 6},
            "seed": seed,
            "goal": goal,
            "instructions": system,
            "slot_guided": slot,
            "guided": bool(entry),
            "guide": {
                "status": "found" if entry else "nothing",
                "entry": entry,
                "entry_text": text or "",
                "call": self.writer.get(entry or ""),
                "text": text,
                "verdict": None,
            }
            if slot
            else None,
            "turns": turns,
            "unfinished": None,
            "final_observation": "The door opens. You are outside." if success else "Nothing happens. The time is up.",
            "input": f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{goal}{advice}\n\n"
            f"{turns[0]['observation']}<|im_end|>\n<|im_start|>assistant\n",
            "output": output,
            "loss_spans": spans,
            "score": float(success),
            "outcome": {"success": success, "score": float(success)},
            "gts": None,
            "advantage": round(self.draw.gauss(0.8 if success else -0.6, 0.2), 3),
            "invalid_actions": sum(not turn["valid"] for turn in turns),
            "tool_calls": sum(len(turn["questions"]) for turn in turns),
            "cut_turns": 0,
            "reported": True,
            "error": None,
            "seconds": {"guide": 0.01, "ask": 0.0, "generate": 2.1, "environment": 0.04, "report": 0.01, "total": 2.2},
            "tokens": {"prompt": 310, "experience": 60 if text else 0, "generated": 40 * len(turns)},
            "weight_versions": [step - 1, step - 1],
            "ended_at": 1767225600.0 + 60 * step,
        }

    def _question(self, step: int, entry: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        call, query = (
            f"answer-{len(self.events)}-{len(calls)}",
            "I am in front of the door and it does not open. What now?",
        )
        answer = self.text[entry][1].partition(".")[0] + "."
        calls.append(self._call(call, "answer", step, query, answer, entry=entry, query=query, text=answer))
        return {
            "query": query,
            "answer": answer,
            "status": "answered",
            "entry": entry,
            "entry_text": "\n".join(self.text[entry]),
            "call": call,
        }

    def _call(self, call: str, kind: str, step: int, prompt: str, answer: str, **given: Any) -> dict[str, Any]:
        record = {
            "event": "call",
            "call": call,
            "step": step,
            "kind": kind,
            "weight_version": self.updates,
            "messages": [
                {"role": "system", "content": "You read finished episodes of an agent and keep a bank of lessons."},
                {"role": "user", "content": prompt},
            ],
            "answer": answer,
            "format_ok": True,
            "errors": [],
            "operations": [],
            "listed": [],
            "entries": [],
            "removed": [],
            "rejections": {},
            "episode": None,
            "query": None,
            "entry": None,
            "text": None,
            "reward": None,
            "tokens": {"prompt": 800, "response": 60},
            "at": 1767225600.0 + 60 * step,
        }
        return record | given

    def _write_entries(self, step: int, episodes: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
        for number in range(self.written):
            episode = self.draw.choice(episodes)
            call, entry = f"distill-{step}-{number}", f"{step:04x}{number:04x}-{self.draw.getrandbits(48):012x}"
            prompt = (
                f"Goal: {episode['goal']}\n\nTrajectory:\n{episode['output'][:600]}\n\nThe episode "
                f"{'succeeded' if episode['outcome']['success'] else 'failed'}."
            )
            if self.draw.random() < 0.04:
                answer = "<answer>[{operation: add, title: unclosed"
                error = [{"kind": "not_json", "message": "Expecting property name enclosed in double quotes"}]
                calls.append(
                    self._call(
                        call,
                        "distill",
                        step,
                        prompt,
                        answer,
                        format_ok=False,
                        errors=error,
                        episode=episode["id"],
                        reward=-1.0,
                    )
                )
                continue
            merge = number % 11 == 10 and len(self.present) > 8
            update = not merge and number % 3 == 0 and len(self.present) > 4
            parents = (
                self.draw.sample(self.present[-40:], self.draw.randint(2, 4) if merge else 1) if merge or update else []
            )
            title, content, worth = max(
                (self.draw.choice(LESSONS) for _ in range(1 + step * 3 // self.steps)), key=lambda lesson: lesson[2]
            )
            if parents and not merge:
                title, content = self.text[parents[0]]
                worth = self.worth[parents[0]] + 0.03
            content += self.draw.choice(ADDITIONS) + self._noise()
            operation = {
                "operation": "merge" if merge else "update" if update else "add",
                "title": title,
                "content": content,
            }
            if parents:
                operation["ids"] = list(range(1, len(parents) + 1))
            call = call.replace("distill", "merge") if merge else call
            answer = (
                "<think>What held in this episode should hold in others.</think>\n<answer>"
                + json.dumps([operation])
                + "</answer>"
            )
            calls.append(
                self._call(
                    call,
                    "merge" if merge else "distill",
                    step,
                    prompt,
                    answer,
                    operations=[operation],
                    listed=parents,
                    entries=[entry],
                    removed=parents,
                    episode=None if merge else episode["id"],
                )
            )
            own = set() if merge else {episode["task"]}
            self.tasks[entry] = own.union(*(self.tasks[parent] for parent in parents))
            text = {
                "entry": entry,
                "title": title,
                "content": content,
                "tasks": sorted(self.tasks[entry]),
                "parents": parents,
                "weight_version": self.updates,
                "call": call,
                "step": step,
            }
            if merge:
                self.events.append({"event": "merged", **text})
            else:
                self.events.append(
                    {
                        "event": "written",
                        "task": episode["task"],
                        "goal": episode["goal"],
                        "episode": episode["id"],
                        "success": episode["outcome"]["success"],
                        **text,
                    }
                )
            for parent in parents:
                self.present.remove(parent)
                self.events.append(
                    {"event": "removed", "step": step, "entry": parent, "reason": "replaced", "call": call}
                )
            self.worth[entry], self.text[entry], self.writer[entry] = worth, (title, content), call
            self.record[entry] = []
            self.present.append(entry)

    def _train(self, step: int, calls: list[dict[str, Any]]) -> None:
        if len(self.samples) < 24:
            return
        self.updates += 1
        mean = sum(reward for _, reward in self.samples) / len(self.samples)
        for call, reward in dict(self.samples).items():
            calls.append(
                {
                    "event": "trained",
                    "call": call,
                    "step": step,
                    "update": self.updates,
                    "reward": reward,
                    "weight": 1.0,
                    "advantage": round(reward - mean, 3),
                }
            )
        self.samples = []

    def _measure(self, step: int, episodes: list[dict[str, Any]]) -> None:
        self.metrics.append(step_metrics(self.draw, step, len(self.present), episodes))
        if step % max(1, self.steps // 6) == 0:
            chances = {task: self._skill(step, task) for task in TASKS}
            self.evaluations.append(evaluation(self.draw, step, chances, 0.05 + 0.2 * step / self.steps))


def make_run(
    folder: Path, steps: int = 60, prompts: int = 6, written: int = 12, seed: int = 0, turns: int = 7, words: int = 0
) -> None:
    """Write the folder of a run.

    Args:
        folder: Folder of the run.
        steps: Actor steps.
        prompts: Prompts of a step, eight episodes each.
        written: Entries written in a step.
        seed: Of all random numbers.
        turns: Turns of an episode, about.
        words: Random words in each entry and turn, so that they compress like different texts.
    """
    Maker(folder, steps, prompts, written, seed, turns, words).run()
