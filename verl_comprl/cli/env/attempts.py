"""``comprl env attempts``: a model plays every task of a dataset several times, without a trainer.

Owns the loop of an episode outside a run, and the file of attempts: a JSON line with ``task_id``, ``seed``,
``attempt``, ``success``, ``score``, ``reward``, ``turns`` and ``tokens`` for each. An interrupted command continues.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from env_adapters.host import EnvironmentFailure, EnvironmentHost, Limits
from env_adapters.json_lines import objects_of
from verl_comprl.cli.env.chat import Chat, ChatRefused
from verl_comprl.cli.local_model import reachable
from verl_comprl.display.printable import printable
from verl_comprl.record.redaction import text_redactor
from verl_comprl.rollout.messages import Message, initial_messages, observation_message
from verl_comprl.untrusted import schema_without_delimiters

Ask = Callable[[list[Message], list[dict[str, Any]]], Awaitable[tuple[str, int]]]
"""Function from messages and tools to the model's answer and the number of its tokens."""
_EPISODE_SECONDS = 14400.0
_KEYS = ("environment", "environment_options", "seed", "task_id")
"""In ``extra_info`` of a row."""
_ATTEMPT = {"task_id": str, "seed": int, "attempt": int}
"""In a line of the output, to tell which attempt it is."""
_MESSAGE = {"role", "content"}
"""In each message of a row's prompt."""
_SHOWN = 80
"""Characters of a wrong value that an error shows."""


def run(options: argparse.Namespace) -> int:
    """Play what the output file lacks, and print how much that was.

    Raises:
        OSError: If a file cannot be read or written.
        ValueError: If an argument is wrong, the model cannot be served, or the endpoint does not answer.
        ImportError: If the environment's dependencies are missing, or vLLM for ``--local``.
    """
    import pyarrow.parquet as pq

    rows = pq.read_table(options.data).to_pylist()
    for number, row in enumerate(rows):
        if mistake := _mistake(row):
            raise ValueError(f"--data {options.data}: row {number} has {mistake}; make it with `comprl data`")
    played = asyncio.run(_play_with_model(rows, options))
    print(json.dumps({"tasks": len(rows), "played": played, "output": str(options.output)}))
    return 0


def _mistake(row: Mapping[str, Any]) -> str | None:
    """Return what keeps a row of the data from being played, or None."""
    extra, prompt = row.get("extra_info"), row.get("prompt")
    extra = extra if isinstance(extra, Mapping) else {}
    if missing := [key for key in _KEYS if key not in extra] or {"prompt"} - row.keys():
        return f"no {', '.join(sorted(missing))}"
    if not isinstance(prompt, list) or not all(isinstance(said, dict) and said.keys() >= _MESSAGE for said in prompt):
        return f"a prompt that is no list of messages: {str(prompt)[:_SHOWN]!r}"
    given = extra["environment_options"]
    try:
        is_object = isinstance(json.loads(given), dict)
    except (TypeError, ValueError, RecursionError):
        is_object = False
    return None if is_object else f"environment_options that are no JSON object: {str(given)[:_SHOWN]!r}"


async def _play_with_model(rows: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> int:
    limits = Limits(step=options.step_timeout, episode=max(_EPISODE_SECONDS, 2 * options.step_timeout))
    async with reachable(options) as options:
        chat = Chat(options)
        try:
            return await play_all(
                rows, options.attempts, chat, options.output, parallel=options.parallel, limits=limits
            )
        finally:
            await chat.close()


async def play_all(
    rows: Sequence[Mapping[str, Any]], attempts: int, ask: Ask, output: Path, *, parallel: int, limits: Limits
) -> int:
    """Play the attempts that ``output`` lacks, append a line for each, and return their number.

    What the first one raises ends the others, and is raised. A model that refuses the first prompt of a task costs its
    attempts; where it has refused those of all, and there are no earlier attempts, that is raised in the end.
    """
    done = _done(output)
    missing = [
        (row, attempt)
        for row in rows
        for attempt in range(attempts)
        if (row["extra_info"]["task_id"], row["extra_info"]["seed"], attempt) not in done
    ]
    host, slots, raised = EnvironmentHost(limits=limits), asyncio.Semaphore(parallel), list[Exception]()
    refused = list[ChatRefused]()
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as file:

        async def one(row: Mapping[str, Any], attempt: int) -> None:
            try:
                try:
                    async with slots:
                        record = await play(host, row, attempt, ask)
                except ChatRefused as error:
                    if not refused:  # for want of which nobody would know until the last task
                        told = printable(f"comprl env: {row['extra_info']['task_id']}: {error}")
                        print(told, file=sys.stderr, flush=True)
                    refused.append(error)
                    record = unplayed(row, attempt) | {"error": str(error)}
                file.write(json.dumps(record) + "\n")
                file.flush()
            except Exception as error:
                raised.append(error)
                raise

        try:
            async with asyncio.TaskGroup() as group:
                for row, attempt in missing:
                    group.create_task(one(row, attempt))
        except ExceptionGroup:
            raise raised[0] from None
        finally:
            await host.close()
    if len(refused) == len(missing) and refused and not done:
        raise refused[0]
    return len(missing)


def unplayed(row: Mapping[str, Any], attempt: int) -> dict[str, Any]:
    """Return the record of an attempt before its first turn."""
    known = {"task_id": row["extra_info"]["task_id"], "seed": row["extra_info"]["seed"], "attempt": attempt}
    return known | {"success": False, "score": 0.0, "reward": 0.0, "turns": 0, "tokens": 0}


async def play(host: EnvironmentHost, row: Mapping[str, Any], attempt: int, ask: Ask) -> dict[str, Any]:
    """Play one attempt of a dataset row and return its record.

    The model reads task and observations as in training, without what it would take for control tokens; those of its
    tokenizer alone are not known here. A chat that has outgrown the model's context is cut off and graded as in
    training. An environment that fails gives a record with ``error`` and no success. What ``ask`` raises otherwise is
    raised, also where the model refuses the first prompt.
    """
    extra, record = row["extra_info"], unplayed(row, attempt)
    try:
        async with host.session(extra["environment"], json.loads(extra["environment_options"])) as session:
            observation, info = await session.reset(extra["seed"])
            messages = initial_messages(row["prompt"], observation)
            tools, over = schema_without_delimiters(session.tools), False
            while not over:
                try:
                    text, tokens = await ask(messages, tools)
                except ChatRefused:
                    if not record["turns"]:
                        raise
                    _, reward, _, _, info = await session.truncate()
                    record["reward"] += float(reward)
                    break
                observation, reward, terminated, truncated, info = await session.step(text)
                messages += [{"role": "assistant", "content": text}, observation_message(observation)]
                record["turns"] += 1
                record["tokens"] += tokens
                record["reward"] += float(reward)  # of NumPy, in an environment of this process
                over = terminated or truncated
            record |= {"success": bool(info.get("success")), "score": float(info.get("score", 0.0))}
    except EnvironmentFailure as error:
        record["error"] = text_redactor()(str(error))  # an environment sees the variables of who starts it
    return record


def _done(output: Path) -> set[tuple[str, int, int]]:
    """Return task, seed and number of each attempt in ``output``, and remove a line that a kill has cut off.

    One that has failed is played again.

    Raises:
        ValueError: If a line is no attempt; nothing is removed then.
    """
    content = output.read_bytes() if output.exists() else b""
    *lines, rest = content.split(b"\n")
    done: set[tuple[str, int, int]] = set()
    for number, record in objects_of(output, lines):
        if "error" in record:
            continue
        if not all(isinstance(record.get(key), kind) for key, kind in _ATTEMPT.items()):
            raise ValueError(f"--output {output}, line {number} is no attempt: it needs {', '.join(_ATTEMPT)}")
        done.add((record["task_id"], record["seed"], record["attempt"]))
    if rest:
        os.truncate(output, len(content) - len(rest))
    return done
