"""A long run, watched from outside: memory, threads and open files of every process, queues, requests, Ray's objects.

    python -m benchmarks.soak [--steps 200] [--output outputs/soak]
    python -m benchmarks.soak --report        # tables of what has been measured

The run is the miniature's arm ``complementary``. Memory is what a process would give back if it ended (USS); a process
is flat if its mean over the last ``--window`` steps is within 5 % of its mean over those from ``--from`` on. It must
have lived in these already, unless it is short-lived. After an interruption, or with more steps, the same command
continues; its processes are others, so that ``--from`` has to be a later step then. The exit code is 1 if something is
not flat, not bounded, leaked or not measured (``soak_verdict``); the last lines name it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from benchmarks.soak_verdict import grown, leaked, not_flat
from verl_comprl.sweep.checked_run import FINISHED

ROOT = Path(__file__).parents[1]
SECONDS = 10.0
"""Between two samples."""
SHORT_LIVED = 0.5
"""A process that is new in the last steps may be in less than this share of their samples: it has replaced another one
just then, or is to end soon. The others also miss some, while the run ends."""
MEASURES = ("megabytes", "threads", "files")
BOUNDED = ("comprl/queue/depth", "comprl/buffer/samples", "comprl/buffer/records")
"""Metrics that must not grow."""
REQUESTS = tuple(f"comprl/under_way/{kind}" for kind in ("episodes", "manager", "actor_requests", "extractor_requests"))
"""Metrics of what must end."""
QUEUES = ("queue/depth", "buffer/samples", "buffer/records", "bank/size", "failures", "rollouts/failed", "under_way")
WELL = "Everything is flat and bounded, and nothing has leaked."
RUN = "runs/complementary-3-1"


def family(root: psutil.Process) -> Iterator[psutil.Process]:
    """Yield a process and all that descend from it; Ray's own daemons among them."""
    yield root
    yield from root.children(recursive=True)


def name_of(process: psutil.Process) -> str:
    """Return what a process is: the title that Ray and vLLM give it, else its program."""
    command = process.cmdline()
    if not command:
        return process.name()
    if command[0].startswith(("ray::", "VLLM::")):
        return command[0].split()[0].partition(".")[0]
    words = [Path(word).name for word in command if not word.startswith("-")]
    return next((word for word in words if not word.startswith("python")), words[0])


def sample(root: psutil.Process) -> dict[str, dict[str, Any]]:
    """Return the measures of every process that lives, by its id and when it began: ids are used again."""
    found = {}
    for process in family(root):
        try:
            with process.oneshot():
                found[f"{process.pid} {process.create_time():.0f}"] = {
                    "name": name_of(process),
                    "megabytes": process.memory_full_info().uss / 2**20,
                    "threads": process.num_threads(),
                    "files": process.num_fds(),
                }
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def ray_address(root: psutil.Process) -> str | None:
    """Return the address of the Ray that a process has started, which need not be the only one on the machine."""
    for process in family(root):
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and Path(command[0]).name == "raylet":
                return next((word.partition("=")[2] for word in command if word.startswith("--gcs-address=")), None)
    return None


# ``ray memory`` prints the same, but cannot reach a Ray on loopback, as ours are by default. In a process of its own,
# so that this one has no connection when the run ends.
_COUNT_OBJECTS = """
import sys
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from verl_comprl.platform.patches import ray_on_loopback
with ray_on_loopback():
    print(get_memory_info_reply(get_state_from_address(sys.argv[1])).store_stats.num_local_objects)
"""


def objects_in_store(address: str) -> int | None:
    """Return how many objects Ray's shared memory holds, or None if Ray does not say."""
    command = ["nice", "-n", "19", sys.executable, "-c", _COUNT_OBJECTS, address]
    environment = os.environ | {"RAY_AUTH_MODE": "token"}  # as of every cluster that a run of ours starts
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
        return int(done.stdout.rpartition("\n")[0].rpartition("\n")[2])
    except (subprocess.SubprocessError, ValueError) as error:  # the run goes on, and with it all other samples
        reason = str(getattr(error, "stderr", None) or error).strip()
        print(f"Ray's objects cannot be counted: {reason[-500:]}", file=sys.stderr, flush=True)
        return None


def last_step(run: Path) -> int:
    """Return the step of the last line of metrics, 0 before the first."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return 0
    lines = file.read_text().splitlines()
    return json.loads(lines[-1])["step"] if lines else 0


def watch(output: Path, steps: int) -> int:
    """Run, and append a line to ``samples.jsonl`` every ten seconds; returns the run's exit code.

    Nothing is done for a run that has finished, whose samples would be followed by those of a start alone.
    """
    arguments = ["--arms", "complementary", "--seeds", "1", "--steps", str(steps), "--every", "50"]
    command = [sys.executable, "-m", "recipes.miniature.run", *arguments, "--output", str(output)]
    output.mkdir(parents=True, exist_ok=True)
    run = output / RUN
    if (run / FINISHED).exists() and last_step(run) >= steps:
        return 0
    mode = "a" if last_step(run) else "w"  # a new run: what is there is of one whose folder was removed
    with (output / "samples.jsonl").open(mode) as file, subprocess.Popen(command, cwd=ROOT) as running:
        root = psutil.Process(running.pid)
        count = 0
        while running.poll() is None:
            step = last_step(run)
            line: dict[str, Any] = {"step": step, "processes": sample(root)}
            if step and count % 6 == 0 and (address := ray_address(root)):
                line["objects"] = objects_in_store(address)
            print(json.dumps(line), file=file, flush=True)
            count += 1
            time.sleep(SECONDS)
    return running.returncode


def report(output: Path, first: int, window: int) -> tuple[str, list[str]]:
    """Return the tables, and a line for everything that is not as it should be."""
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    last = max(line["step"] for line in lines)
    # Without the last step, in which an evaluation needs three times as many threads of an agent loop.
    early, late = range(first, first + window), range(last - 1 - window, last - 1)
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for period, steps in (("early", early), ("late", late)):
            if line["step"] in steps:
                for pid, process in line["processes"].items():
                    for measure in MEASURES:
                        values[pid, process["name"]][f"{period} {measure}"].append(process[measure])
    text = [f"Steps {early[0]} to {early[-1]} against {late[0]} to {late[-1]}.", ""]
    text += ["| process | MB, early | late | change | threads | open files |", "|---|---|---|---|---|---|"]
    faults: list[str] = []
    table: list[str] = []
    lived = sum(line["step"] in late for line in lines)
    for (_, name), found in sorted(values.items(), key=lambda item: -max(item[1].get("late megabytes", [0]))):
        if not found["early megabytes"] and len(found["late megabytes"]) >= SHORT_LIVED * lived:
            faults.append(f"{name}: has begun after step {early[-1]}, so that nothing says whether it grows")
        if not found["early megabytes"] or not found["late megabytes"]:
            continue
        mean = {key: fmean(numbers) for key, numbers in found.items()}
        faults += not_flat(name, mean)
        before, after = mean["early megabytes"], mean["late megabytes"]
        counts = [f"{mean[f'early {what}']:.0f} → {mean[f'late {what}']:.0f}" for what in ("threads", "files")]
        change = f"{after / before - 1:+.1%}"
        table.append(f"| `{name}` | {before:.0f} | {after:.0f} | {change} | {counts[0]} | {counts[1]} |")
    text += table
    if not table:
        faults.append(f"no process lived in steps {early[0]} to {early[-1]} and {late[0]} to {late[-1]}: not measured")
    objects = [(line["step"], line["objects"]) for line in lines if line.get("objects") is not None]
    text += ["", "Objects in Ray's store by step: " + ", ".join(f"{count} ({step})" for step, count in objects[::3])]
    series = read_series(output / RUN / "metrics.jsonl")
    faults += grown("objects in Ray's store", objects, first)
    faults += [line for name in BOUNDED for line in grown(name, series.get(name, []), first)]
    faults += [line for name in REQUESTS for line in leaked(name, series.get(name, []), first)]
    return "\n".join([*text, "", queues(series)]), faults


def read_series(file: Path) -> dict[str, list[tuple[int, float]]]:
    """Return step and value of the metrics that could grow."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in map(json.loads, file.read_text().splitlines()):
        for name, value in row["data"].items():
            if name.removeprefix("comprl/").startswith(QUEUES):
                series[name].append((row["step"], value))
    return dict(series)


def queues(series: dict[str, list[tuple[int, float]]]) -> str:
    """Return the largest and the last value of each."""
    lines = ["| metric | largest | last |", "|---|---|---|"]
    for name, found in series.items():
        lines.append(f"| `{name}` | {max(value for _, value in found):.0f} | {found[-1][1]:.0f} |")
    return "\n".join(lines)


def main() -> int:
    """Run, unless only the report is wanted, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--from", type=int, default=50, dest="first", help="first step of the comparison")
    parser.add_argument("--window", type=int, default=10, help="steps that a mean is over")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs/soak")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    code = 0 if options.report else watch(options.output.resolve(), options.steps)
    text, faults = report(options.output, options.first, options.window)
    print(text, "", *(f"NOT AS IT SHOULD BE: {fault}" for fault in faults), sep="\n")
    if not faults:
        print(WELL)
    return code or int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
