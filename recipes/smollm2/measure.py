"""Share of well-formed turns and answers of a model: ``python -m recipes.smollm2.measure --model DIR``.

Plays FrozenLake on maps that the warm-up has not seen, and asks for the extractor's answers, with plain transformers in
the place of the servers. The extractor's ``top_p`` and the lengths, in tokens, are read from cpu.yaml. The temperature
is always 1, and the actor draws from the whole distribution (``top_p`` 1).
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import env_adapters
from env_adapters.dataset import split_seeds
from env_adapters.parsing import extract_tool_call
from recipes.mix_models.demonstrations import Demonstration, demonstrate
from recipes.smollm2.lake import LAKE, MAX_TURNS
from recipes.smollm2.stream import Stream
from verl_comprl.experience.schema import DistillationRequest, Outcome
from verl_comprl.extractor.calls import ExtractorCalls, Generation
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.extractor.prompts import render_entry
from verl_comprl.rollout.messages import initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

_TOOL = SEARCH_AND_ASK_SCHEMA["function"]["name"]
SPLIT, SEED = "val", 7
_LISTED = 4


class Writer:
    """A model that continues token ids; it keeps what it has read of one conversation."""

    def __init__(self, folder: Path) -> None:
        """Load model and tokenizer of a folder, in bfloat16 where that is fast."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from verl_comprl.platform.detection import server_dtype

        torch.manual_seed(0)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, server_dtype()))
        self.begin()

    def begin(self) -> None:
        """Forget the conversation."""
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._model.config)

    def write(self, ids: list[int], *, max_tokens: int, top_p: float) -> list[int]:
        """Return the tokens that follow ``ids``, which begin with those of the call before."""
        import torch

        given = torch.tensor([ids])
        written = self._model.generate(
            given,
            attention_mask=torch.ones_like(given),
            past_key_values=self._cache,
            do_sample=True,
            temperature=1.0,
            top_p=top_p,
            top_k=0,
            max_new_tokens=max_tokens,
        )
        return written[0, len(ids) :].tolist()


def play(writer: Writer, seed: int, lesson: str | None, *, max_turn_tokens: int) -> Counter[str]:
    """Play one episode and count its turns: ``action``, ``question`` and ``malformed``."""
    environment = env_adapters.make(LAKE.environment, max_turns=MAX_TURNS)
    counts: Counter[str] = Counter()
    observation, info = environment.reset(seed=seed)
    prompt = [{"role": "system", "content": environment.instructions}, {"role": "user", "content": info["goal"]}]
    messages = initial_messages(prompt, observation, lesson)
    stream = Stream(writer.tokenizer, [SEARCH_AND_ASK_SCHEMA] if lesson else [])
    ids: list[int] = []
    writer.begin()
    over = False
    while not over:
        ids += stream.context(messages)
        written = writer.write(ids, max_tokens=max_turn_tokens, top_p=1.0)
        text = writer.tokenizer.decode(written, skip_special_tokens=True)
        end = writer.tokenizer.eos_token_id
        ids += written if written[-1] == end else [*written, end]
        messages.append({"role": "assistant", "content": text})
        call = extract_tool_call(text)
        if lesson and not counts["question"] and call and call[0] == _TOOL and call[1].get("query"):
            counts["question"] += 1
            messages.append({"role": "tool", "content": lesson.partition("\n")[2]})
            continue
        observation, _, terminated, truncated, info = environment.step(text)
        counts["action" if info["action_valid"] else "malformed"] += 1
        messages.append(observation_message(observation))
        over = terminated or truncated
    environment.close()
    return counts


async def ask(calls: ExtractorCalls, episodes: list[Demonstration], merges: int, answers: int) -> Counter[str]:
    """Ask for the extractor's answers and count them: kind and ``ok`` or ``malformed``."""
    rng, counts = random.Random(SEED), Counter()
    for number, episode in enumerate(episodes):
        request = DistillationRequest(
            id=str(number),
            task=LAKE.task,
            environment=LAKE.environment,
            goal=episode.goal,
            turns=episode.turns,
            outcome=Outcome(success=episode.success),
            final_observation=episode.final_observation,
            instructions=episode.instructions,
            experience_texts=(episode.lesson.text,) if episode.lesson else (),
        )
        parsed, _ = await calls.distill(request, [LAKE.draw(rng).text])
        counts[f"distill {'ok' if parsed.format_ok else 'malformed'}"] += 1
    for _ in range(merges):
        lessons = [LAKE.draw(rng) for _ in range(rng.randint(2, _LISTED))]
        texts = [render_entry(lesson, step=1) for lesson in lessons]
        parsed, _ = await calls.merge(texts, 1, listed=[lesson.id for lesson in lessons])
        counts[f"merge {'ok' if parsed.format_ok else 'malformed'}"] += 1
    for _ in range(answers):
        text, _ = await calls.answer(LAKE.draw(rng).text, LAKE.query, 1)
        counts[f"answer {'ok' if text else 'malformed'}"] += 1
    return counts


def measure(folder: Path, *, turns: int, calls: int) -> None:
    """Print the shares of at least ``turns`` turns of the actor and of ``calls`` answers of the extractor."""
    config: Any = OmegaConf.load(Path(__file__).with_name("cpu.yaml"))
    writer, rng = Writer(folder), random.Random(SEED)
    started = time.process_time()
    acted: Counter[str] = Counter()
    for number, seed in enumerate(split_seeds(SPLIT, turns, seed=SEED)):
        lesson = LAKE.draw(rng).text if number % 2 else None
        acted += play(writer, seed, lesson, max_turn_tokens=config.comprl.max_turn_tokens)
        print(f"actor: {dict(acted)} after {time.process_time() - started:.0f} CPU seconds", flush=True)
        if acted.total() >= turns:
            break
    rollout = config.extractor.rollout

    async def generate(prompt: Prompt) -> Generation:
        writer.begin()
        written = writer.write(prompt.ids, max_tokens=rollout.response_length, top_p=rollout.top_p)
        print(f"extractor: an answer after {time.process_time() - started:.0f} CPU seconds", flush=True)
        return Generation(written, [0.0] * len(written), 0)

    asked = ExtractorCalls(writer.tokenizer, generate, max_prompt_tokens=rollout.prompt_length, max_operations=3)
    fresh = list(demonstrate(calls // 2, seed=SEED, families=[LAKE], max_turns=MAX_TURNS, split=SPLIT))
    counts = asyncio.run(ask(asked, fresh, calls // 4, calls // 4))
    well = sum(count for kind, count in counts.items() if kind.endswith("ok"))
    print(f"actor: {acted.total() - acted['malformed']} of {acted.total()} turns well-formed, {dict(acted)}")
    print(f"extractor: {well} of {counts.total()} answers well-formed, {dict(counts)}")
    print(f"{time.process_time() - started:.0f} CPU seconds")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure how well a model knows the formats.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=64, help="turns of the actor, at least (default 64)")
    parser.add_argument("--calls", type=int, default=28, help="answers of the extractor, half on episodes (default 28)")
    arguments = parser.parse_args()
    config = arguments.model / "config.json"
    if not config.is_file():
        make = f"python -m recipes.smollm2.prepare --output {arguments.model}"
        raise SystemExit(f"error: there is no {config}; make the model with {make}")
    measure(arguments.model, turns=arguments.turns, calls=arguments.calls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
