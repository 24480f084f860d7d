"""Measures what an update of a small model costs with and without ``platform.allocator``: forward and backward pass.

New processes, alternately with the environment of a training engine and without it, in a thread that is not the first
one, as Ray calls a worker. The model is the miniature's actor, the batch that of one of its steps.

    python -m benchmarks.update_memory [--pairs 5] [--rows 48] [--tokens 600]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.paired import geometric_ratio, show
from verl_comprl.platform.allocator import engine_variables

MODEL = Path(__file__).parents[1] / "recipes/miniature/models/plain/actor"
UPDATES, LEFT_OUT = 8, 2
PROGRAM = """
import json, resource, sys, threading, time
import torch
from transformers import AutoConfig, AutoModelForCausalLM

model, rows, tokens, updates = sys.argv[1], *map(int, sys.argv[2:])

def measure():
    actor = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model), dtype=torch.float32)
    ids = torch.randint(5, actor.config.vocab_size, (rows, tokens))
    for _ in range(updates):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        log_probs = torch.log_softmax(actor(input_ids=ids).logits[:, :-1].float(), -1)
        log_probs.gather(-1, ids[:, 1:, None]).mean().backward()
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = time.perf_counter() - started, used.ru_stime - before.ru_stime
        print(json.dumps([*seconds, used.ru_minflt - before.ru_minflt]))

thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""


def measure(rows: int, tokens: int, variables: dict[str, str]) -> list[float]:
    """Return the means of an update's seconds, of those that the kernel used, and of page faults."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | variables
    command = [sys.executable, "-c", PROGRAM, str(MODEL), str(rows), str(tokens), str(UPDATES)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()][LEFT_OUT:]
    return [statistics.fmean(values) for values in zip(*lines, strict=True)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="processes of each kind, at least 2 (default: 5)")
    parser.add_argument("--rows", type=int, default=48, help="rollouts of a batch (default: 48)")
    parser.add_argument("--tokens", type=int, default=600, help="tokens of a rollout (default: 600)")
    options = parser.parse_args()
    os.environ["VERL_PLATFORM"] = "cpu"
    kinds = {"glibc's defaults": {}, "kept": engine_variables()}
    found: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for pair in range(options.pairs):
        for kind in sorted(kinds, reverse=bool(pair % 2)):
            found[kind].append(measure(options.rows, options.tokens, kinds[kind]))
    print("| freed memory | update, s | of it in the kernel, s of two cores | page faults |\n|---|---|---|---|")
    for kind, measured in found.items():
        seconds, kernel, faults = (statistics.fmean(values) for values in zip(*measured, strict=True))
        print(f"| {kind} | {seconds:.2f} | {kernel:.2f} | {faults:,.0f} |")
    kept, usual = ([seconds for seconds, *_ in found[kind]] for kind in ("kept", "glibc's defaults"))
    print(f"\nkept, relative: {show(geometric_ratio(kept, usual))}")


if __name__ == "__main__":
    main()
