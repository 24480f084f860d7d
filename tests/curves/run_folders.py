"""Folders of runs as a run leaves them, with the numbers that a test gives."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def write_run(
    folder: Path,
    steps: Mapping[int, Mapping[str, float | None]],
    *,
    arm: str = "complementary",
    seed: int = 1,
    **comprl: Any,
) -> Path:
    """Write configuration and metrics of a run; returns its folder."""
    folder.mkdir(parents=True)
    config = {
        "data": {"seed": seed, "train_files": f"/data/{seed}/train.parquet", "train_batch_size": 8},
        "trainer": {"total_training_steps": 60},
        "comprl": {"arm": arm, "experience": arm not in ("baseline", "self_imitation"), **comprl},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    append(folder, steps)
    return folder


def append(folder: Path, steps: Mapping[int, Mapping[str, float | None]]) -> None:
    """Add the metrics of steps."""
    with (folder / "metrics.jsonl").open("a") as lines:
        for step, data in steps.items():
            lines.write(json.dumps({"step": step, "data": dict(data)}) + "\n")


def halves(guided: float, free: float, **more: float) -> dict[str, float]:
    """Return the metrics of a step with these successes of both halves."""
    return {
        "comprl/guided/rollouts": 4.0,
        "comprl/guided/success": guided,
        "comprl/free/rollouts": 4.0,
        "comprl/free/success": free,
        "timing_s/gen": 3.0,
        "timing_s/step": 5.0,
        **{f"comprl/{name.replace('__', '/')}": value for name, value in more.items()},
    }
