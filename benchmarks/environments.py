"""Measures speed and memory of every environment family: one in a process, and 64 concurrent episodes in a host.

Actions are random admissible ones (SWE-Bench: a few shell commands). ``stall`` is the longest time for which the event
loop of the 64 episodes was blocked. Memory is what an instance adds to its process (one in a process), or the part of
the machine's memory that a running episode takes (host): processes share pages that they have not written to.

    python -m benchmarks.environments [FAMILY …] [--seconds 5] [--parallel 64]
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import env_adapters
from env_adapters.host import EnvironmentHost

ROOT = Path(__file__).parents[1]
PLAYER = ROOT / "tests" / "env_adapters"
"""Folder of the module ``families``, which plays at random; only the measuring processes have it on their path."""

TARGETS = {"minihack": 5000, "sokoban": 50_000, "webshop": 1500, "alfworld": 200}
"""Minimum steps per second in one process."""

MEBIBYTE = 2**20
INSTANCES = 4


def alone(family: str, seconds: float) -> dict[str, float]:
    """Play one episode after the other in this process."""
    from families import FAMILIES, valid_message

    rng = random.Random(0)
    environment = env_adapters.make(family, **FAMILIES[family])
    environment.reset(seed=0)
    resets: list[float] = []
    steps, stepping, seed = 0, 0.0, 0
    while stepping + sum(resets) < seconds or len(resets) < 5:
        started = time.perf_counter()
        _, info = environment.reset(seed=seed)
        resets.append(time.perf_counter() - started)
        seed += 1
        over = False
        while not over:
            message = valid_message(rng, info["admissible_actions"], list(environment.tools))
            started = time.perf_counter()
            _, _, terminated, truncated, info = environment.step(message)
            stepping += time.perf_counter() - started
            steps += 1
            over = terminated or truncated
    before = psutil.Process().memory_full_info().uss
    others = [env_adapters.make(family, **FAMILIES[family]) for _ in range(INSTANCES)]
    for other in others:
        other.reset(seed=seed)
    grown = psutil.Process().memory_full_info().uss - before
    percentiles = statistics.quantiles(resets, n=100, method="inclusive")
    return {
        "steps": steps / stepping,
        "reset_p50": percentiles[49] * 1000,
        "reset_p99": percentiles[98] * 1000,
        "memory": max(0.0, grown / INSTANCES / MEBIBYTE),
    }


async def together(family: str, parallel: int, seconds: float) -> dict[str, float]:
    """Play many episodes concurrently; creating the environments counts for the stall only."""
    from families import FAMILIES, valid_message

    host = EnvironmentHost(max_idle=parallel)
    ready = asyncio.Barrier(parallel + 1)
    steps, longest, done = 0, 0.0, False

    async def watch() -> None:
        nonlocal longest
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - started - 0.001)

    async def episodes(number: int) -> None:
        nonlocal steps
        rng = random.Random(number)
        async with host.session(family, FAMILIES[family]) as session:
            over, seed, info = True, 2 * number, {}
            await session.reset(seed)
            await ready.wait()
            while not done:
                if over:
                    _, info = await session.reset(seed)
                    seed += 2 * parallel
                _, _, terminated, truncated, info = await session.step(
                    valid_message(rng, info["admissible_actions"], session.tools)
                )
                over = terminated or truncated
                steps += 1

    async with host.session(family, FAMILIES[family]) as session:
        await session.reset(0)  # imports the family, which holds the interpreter's lock for a while
    watching = asyncio.create_task(watch())
    playing = [asyncio.create_task(episodes(number)) for number in range(parallel)]
    free = psutil.virtual_memory().available
    await ready.wait()
    steps, started = 0, time.perf_counter()
    await asyncio.sleep(seconds)
    rate = steps / (time.perf_counter() - started)
    used = free - psutil.virtual_memory().available
    done = True
    await asyncio.gather(*playing)
    watching.cancel()
    await host.close()
    return {"steps": rate, "stall": longest * 1000, "memory": max(0.0, used / parallel / MEBIBYTE)}


def measure(family: str, options: argparse.Namespace) -> list[str]:
    """Return a family's row; each part runs in a process of its own."""
    found: dict[str, Any] = {}
    for part in ("alone", "together"):
        command = [sys.executable, "-m", "benchmarks.environments", family, "--part", part]
        command += ["--seconds", str(options.seconds), "--parallel", str(options.parallel)]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{PLAYER}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found[part] = json.loads(done.stdout.splitlines()[-1])
    single, many = found["alone"], found["together"]
    target = TARGETS.get(family)
    verdict = "" if target is None else f" (target {target:,}{'' if single['steps'] >= target else ', MISSED'})"
    return [
        family,
        f"{single['steps']:,.0f}{verdict}",
        f"{single['reset_p50']:.2f} / {single['reset_p99']:.2f}",
        f"{single['memory']:.1f}",
        f"{many['steps']:,.0f}",
        f"{many['stall']:.0f}",
        f"{many['memory']:.1f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=env_adapters.list_environments(), metavar="FAMILY")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each part (default: 5)")
    parser.add_argument("--parallel", type=int, default=64, help="concurrent episodes in the host (default: 64)")
    parser.add_argument("--part", choices=("alone", "together"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "alone":
        print(json.dumps(alone(options.families[0], options.seconds)))
    elif options.part == "together":
        print(json.dumps(asyncio.run(together(options.families[0], options.parallel, options.seconds))))
    else:
        header = ["family", "steps/s", "reset p50 / p99, ms", "MiB per instance"]
        header += [f"steps/s of {options.parallel}", "stall, ms", "MiB per episode"]
        print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
        for family in options.families:
            print("| " + " | ".join(measure(family, options)) + " |", flush=True)


if __name__ == "__main__":
    main()
