"""Plays every task of a dataset several times with a model behind an OpenAI-compatible endpoint.

Owns the loop of an episode without a trainer, and the file of attempts: a JSON line with ``task_id``, ``attempt``,
``success``, ``score``, ``reward``, ``turns`` and ``tokens`` for each. An interrupted run continues where it was.

Usage: ``python -m env_adapters.attempts --data val.parquet --endpoint http://localhost:8000/v1 --model NAME --output
attempts.jsonl``. A model on disk needs a server first, such as ``vllm serve PATH``. ``$OPENAI_API_KEY`` is the key.
"""

import argparse
import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from env_adapters.host import EnvironmentFailure, EnvironmentHost, Limits
from verl_comprl.untrusted import schema_without_delimiters, without_delimiters

Message = dict[str, Any]
Ask = Callable[[list[Message], list[dict[str, Any]]], tuple[str, int]]
"""Function from messages and tools to the model's message and the number of its tokens."""


class ChatRefused(OSError):
    """The endpoint does not take the messages, for example because they are longer than the model's context."""


def endpoint(address: str, model: str, *, temperature: float, max_tokens: int, timeout: float = 600.0) -> Ask:
    """Return a function that asks an endpoint; tool calls in its answers become text in Hermes format."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}

    def ask(messages: list[Message], tools: list[dict[str, Any]]) -> tuple[str, int]:
        body = {"model": model, "messages": messages, "temperature": temperature, "max_tokens": max_tokens}
        data = json.dumps(body | ({"tools": tools} if tools else {})).encode()
        request = urllib.request.Request(f"{address.rstrip('/')}/chat/completions", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            reason = f"{error}: {error.read()[:200].decode(errors='replace')}"
            raise (ChatRefused if error.code == 400 else OSError)(reason) from error
        return text_of(answer["choices"][0]["message"]), int((answer.get("usage") or {}).get("completion_tokens", 0))

    return ask


def text_of(message: Mapping[str, Any]) -> str:
    """Return an answer's text with its tool calls."""
    calls = []
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        with suppress(ValueError):  # the environment refuses what is no JSON, as it refuses any other text
            arguments = json.loads(arguments)
        calls.append(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")
    return "\n".join([message.get("content") or "", *calls]).strip()


async def play(host: EnvironmentHost, row: Mapping[str, Any], attempt: int, ask: Ask) -> dict[str, Any]:
    """Play one attempt of a dataset row and return its record.

    The model reads task and observations as in training, without what it would take for control tokens.
    A chat that has outgrown the model's context is cut off and graded as in training. An environment that fails gives a
    record with ``error`` and no success. What ``ask`` raises otherwise is raised.
    """
    extra = row["extra_info"]
    record: dict[str, Any] = {"task_id": extra["task_id"], "seed": extra["seed"], "attempt": attempt}
    record |= {"success": False, "score": 0.0, "reward": 0.0, "turns": 0, "tokens": 0}
    messages: list[Message] = [dict(message) for message in row["prompt"]]
    try:
        async with host.session(extra["environment"], json.loads(extra["environment_options"])) as session:
            observation, info = await session.reset(extra["seed"])
            task = without_delimiters(str(messages[-1]["content"]))
            messages[-1]["content"] = f"{task}\n\n{_shown(observation)}"
            tools, over = schema_without_delimiters(session.tools), False
            while not over:
                try:
                    text, tokens = await asyncio.to_thread(ask, messages, tools)
                except ChatRefused:
                    if not record["turns"]:  # not for the chat's length: no attempt would get further
                        raise
                    _, reward, _, _, info = await session.truncate()
                    record["reward"] += reward
                    break
                observation, reward, terminated, truncated, info = await session.step(text)
                messages += [{"role": "assistant", "content": text}]
                messages += [{"role": "user", "content": _shown(observation)}]
                record["turns"] += 1
                record["tokens"] += tokens
                record["reward"] += reward
                over = terminated or truncated
            record |= {"success": info["success"], "score": info["score"]}
    except EnvironmentFailure as error:
        record["error"] = str(error)
    return record


def _shown(observation: str) -> str:
    return f"Observation:\n{without_delimiters(observation)}"


async def play_all(
    rows: Sequence[Mapping[str, Any]], attempts: int, ask: Ask, output: Path, *, parallel: int, limits: Limits
) -> int:
    """Play the attempts that ``output`` lacks, append a line for each, and return their number."""
    done = _done(output)
    missing = [
        (row, attempt)
        for row in rows
        for attempt in range(attempts)
        if (row["extra_info"]["task_id"], row["extra_info"]["seed"], attempt) not in done
    ]
    host, slots = EnvironmentHost(limits=limits), asyncio.Semaphore(parallel)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as file:

        async def one(row: Mapping[str, Any], attempt: int) -> None:
            async with slots:
                record = await play(host, row, attempt, ask)
            file.write(json.dumps(record) + "\n")
            file.flush()

        try:
            async with asyncio.TaskGroup() as group:
                for row, attempt in missing:
                    group.create_task(one(row, attempt))
        finally:
            await host.close()
    return len(missing)


def _done(output: Path) -> set[tuple[str, int, int]]:
    """Return task, seed and number of each attempt in ``output``, and remove a line that a kill has cut off."""
    content = output.read_bytes() if output.exists() else b""
    *lines, rest = content.split(b"\n")
    if rest:
        os.truncate(output, len(content) - len(rest))
    return {(record["task_id"], record["seed"], record["attempt"]) for record in map(json.loads, lines)}


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(prog="python -m env_adapters.attempts", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="dataset, from `comprl data`")
    parser.add_argument("--endpoint", required=True, help="base address of an OpenAI-compatible server, with /v1")
    parser.add_argument("--model", required=True, help="its name there")
    parser.add_argument("--attempts", type=int, default=16, help="attempts of each task (default: 16)")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines file to write or continue")
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (default: 1)")
    parser.add_argument("--max-tokens", type=int, default=2048, help="tokens of one answer (default: 2048)")
    parser.add_argument("--parallel", type=int, default=16, help="episodes at the same time (default: 16)")
    parser.add_argument("--step-timeout", type=float, default=9300.0, help="seconds of one step (default: 9300)")
    options = parser.parse_args(arguments)
    ask = endpoint(options.endpoint, options.model, temperature=options.temperature, max_tokens=options.max_tokens)
    limits = Limits(step=options.step_timeout, episode=max(14400.0, 2 * options.step_timeout))
    try:
        rows = pq.read_table(options.data).to_pylist()
        work = play_all(rows, options.attempts, ask, options.output, parallel=options.parallel, limits=limits)
        played = asyncio.run(work)
    except (OSError, ValueError, ExceptionGroup) as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        if not isinstance(first, OSError | ValueError | LookupError):
            raise
        print(f"error: {first}", file=sys.stderr)
        return 1
    print(json.dumps({"tasks": len(rows), "played": played, "output": str(options.output)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
