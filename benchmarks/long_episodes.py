"""Measures what it takes to encode the extractor's prompt of an episode, also of one that has to be shortened for it.

Of the second episode of its kind, and later ones: an encoder begins where the episode before has ended. The last column
is the ratio to encoding the prompt that comes out, once.

    python -m benchmarks.long_episodes [--model FOLDER] [--tokens 2048] [--turns 8 32 128 512] [--rounds 20]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_comprl.experience.schema import DistillationRequest, Outcome, Turn
from verl_comprl.extractor.prompt_encoder import PromptEncoder

MODEL = Path(__file__).parents[1] / "recipes/miniature/models/plain/extractor"
OBSERVATION = "You see lamp {0}, which is green, and a door behind it. Nothing has happened since turn {0}."
RESPONSE = "I look at the lamps and think about what the last move did. <action>left</action>"


def episode(turns: int) -> DistillationRequest:
    """Return an episode with a guide."""
    return DistillationRequest(
        id="a",
        task="vaults",
        environment="vaults",
        goal="open the red vault",
        turns=tuple(Turn(observation=OBSERVATION.format(turn), response=RESPONSE) for turn in range(turns)),
        final_observation="The vault is open.",
        instructions="You stand before a vault. Each turn makes one move.",
        outcome=Outcome(success=True, score=1.0),
        experience_ids=("x",),
        experience_texts=("red vault\nworked: first left",),
        step=1,
    )


def milliseconds(work: Callable[[], Any], rounds: int) -> float:
    """Return the median processor time of this thread."""
    times = []
    for _ in range(rounds):
        started = time.thread_time()
        work()
        times.append(1000 * (time.thread_time() - started))
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the extractor's tokenizer")
    parser.add_argument("--tokens", type=int, default=2048, help="longest prompt")
    parser.add_argument("--turns", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    encoder: Any = PromptEncoder(tokenizer, max_prompt_tokens=options.tokens, max_operations=3, votes=False)
    attempts: list[Any] = []
    encoder.encode = lambda messages, encode=encoder.encode: attempts.append(messages) or encode(messages)
    print(f"{'turns':>6}{'kept':>6}{'tokens':>8}{'encoded':>9}{'ms':>8}{'once, ms':>10}{'ratio':>7}")
    for turns in options.turns:
        request = episode(turns)
        encoder.encode_episode(request, ())  # the next one begins with as many turns as fitted
        attempts.clear()
        prompt, *_ = encoder.encode_episode(request, ())
        encoded = len(attempts)
        whole = milliseconds(lambda request=request: encoder.encode_episode(request, ()), options.rounds)
        once = milliseconds(lambda prompt=prompt: encoder.encode(prompt.messages), options.rounds)
        kept = prompt.messages[-1]["content"].count(RESPONSE)
        print(f"{turns:>6}{kept:>6}{len(prompt.ids):>8}{encoded:>9}{whole:>8.2f}{once:>10.2f}{whole / once:>7.1f}")


if __name__ == "__main__":
    main()
