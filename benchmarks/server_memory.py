"""Measures memory and time of a vLLM server's engine on the CPU by how many compiled matrix products oneDNN keeps.

It compiles one for each number of tokens in a batch. New processes, alternately with its default and with what a run
sets (``platform.detection``): prompts of one length, then of many lengths, then the same ones again. The model is the
miniature's actor.

    python -m benchmarks.server_memory [--pairs 4] [--lengths 1000]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from benchmarks.paired import geometric_ratio, show
from benchmarks.update_memory import MODEL
from verl_comprl.platform.detection import CPU_DEFAULTS

NAME = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
KINDS = {"1,024 (oneDNN's default)": "1024", f"{CPU_DEFAULTS[NAME]} (a run's)": CPU_DEFAULTS[NAME]}
SHORTEST, LONGEST = 100, 2500
PROGRAM = """
import json, random, sys, time
import psutil
from vllm import LLM, SamplingParams

model, count, shortest, longest = sys.argv[1], *map(int, sys.argv[2:])
engine = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=3072, max_num_seqs=64,
             max_num_batched_tokens=4096, gpu_memory_utilization=0.1, skip_tokenizer_init=True)
drawn = random.Random(0)
many = drawn.sample(range(shortest, longest), count)

def measure(lengths):
    started = time.perf_counter()
    for length in lengths:
        prompt = {"prompt_token_ids": [drawn.randrange(5, 900) for _ in range(length)]}
        engine.generate([prompt], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
    return psutil.Process().memory_full_info().uss / 2**20, time.perf_counter() - started

measure([longest] * 10)
print(json.dumps([*measure([shortest] * 200)[:1], *measure(many), *measure(many)[1:]]))
"""


def measure(capacity: str, lengths: int) -> list[float]:
    """Return MB after one length and after many, and the seconds of the many and of the same once more."""
    environment = os.environ | CPU_DEFAULTS | {NAME: capacity, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [sys.executable, "-c", PROGRAM, str(MODEL), *map(str, (lengths, SHORTEST, LONGEST))]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4, help="processes of each kind, at least 2 (default: 4)")
    parser.add_argument("--lengths", type=int, default=1000, help="different lengths of prompts (default: 1000)")
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for pair in range(options.pairs):
        for kind in sorted(KINDS, reverse=bool(pair % 2)):
            found[kind].append(measure(KINDS[kind], options.lengths))
    print(f"| kept | MB after one length | after {options.lengths:,} | seconds of these | of the same again |")
    print("|---|---|---|---|---|")
    for kind, measured in found.items():
        one, many, first, again = (statistics.fmean(values) for values in zip(*measured, strict=True))
        print(f"| {kind} | {one:,.0f} | {many:,.0f} | {first:.1f} | {again:.1f} |")
    usual, ours = found.values()
    for column, name in ((2, "seconds"), (3, "seconds of the same again")):
        ratio = geometric_ratio([row[column] for row in ours], [row[column] for row in usual])
        print(f"{name}, relative: {show(ratio)}")


if __name__ == "__main__":
    main()
