"""Our part of a checkpoint (extractor, bank, queue, buffer and counters), saved and loaded next to verl's."""

import json
import math
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from ray.exceptions import RayTaskError

from verl_comprl.config.reading import ConfigError, comprl_config
from verl_comprl.config.slots import extractor_owner, extractor_slots
from verl_comprl.errors import WaitTimeout
from verl_comprl.experience import SnapshotError, StoreError
from verl_comprl.extractor.generation_record import read_records
from verl_comprl.platform.deaths import ACTOR_AWAY
from verl_comprl.platform.ranks import RanksApart
from verl_comprl.platform.waiting import Patience, holding
from verl_comprl.record.prefix import Prefix
from verl_comprl.record.reader import EVENTS
from verl_comprl.record.settings_file import SETTINGS, read_settings
from verl_comprl.trainer.checkpoint.folders import CHECKPOINT, CheckpointFolders, called
from verl_comprl.trainer.checkpoint.manifest import EXPERIENCE, EXTRACTOR, STATE_FILE, TornCheckpoint, flaw
from verl_comprl.trainer.extractor.frozen import FrozenExtractor
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime

MODE = "trainer.v1.trainer_mode"

_OURS = (STATE_FILE, *(f"{EXPERIENCE}/{name}" for name in ("manager.json", "queue.jsonl", "bank", "buffer")))


def parts(*, has_engine: bool) -> tuple[str, ...]:
    """Return the files and folders that :func:`save` writes.

    Args:
        has_engine: Whether the extractor has an engine, whose weights are among them.
    """
    return (*_OURS, EXTRACTOR) if has_engine else _OURS


def resume_folder(config: DictConfig, tell: Callable[[str], object] = lambda text: None) -> Path | None:
    """Return the checkpoint to resume from, of which every file has been compared, or ``None`` for a fresh start.

    Args:
        config: The run's config.
        tell: Called with a line for each later checkpoint that is torn.

    Raises:
        FileNotFoundError: If ``trainer.resume_mode=resume_path`` names a folder that does not exist.
        ConfigError: If its name does not say its step.
        TornCheckpoint: If it names one that is not complete, or no checkpoint of the run is.
        UnreadableCheckpoint: If the one that is wanted cannot be read at present.
    """
    mode = config.trainer.resume_mode
    if mode == "disable":
        return None
    if mode == "resume_path":
        folder = called(Path(config.trainer.resume_from_path))
        if not folder.is_dir():
            raise FileNotFoundError(f"trainer.resume_from_path={folder.resolve()} does not exist")
        if not CHECKPOINT.fullmatch(folder.name):  # before anything is given up: verl reads the step from the name
            raise ConfigError(f"trainer.resume_from_path={folder} is not called global_step_N, where N is its step")
        if wrong := flaw(folder, thorough=True):
            raise TornCheckpoint(f"trainer.resume_from_path={folder} is torn: {wrong}")
        return folder
    return CheckpointFolders(Path(config.trainer.default_local_dir)).latest(tell, thorough=True)


def save(
    folder: Path,
    step: int,
    extractor: ExtractorRuntime | FrozenExtractor,
    save_manager: Callable[[str], object],
    limit: float | Patience,
    *,
    earlier: Path | None = None,
    given_up: bool = False,
) -> bool:
    """Write our state for ``step``; the learner pauses meanwhile, so weights and training counts match.

    Args:
        folder: Where to.
        step: Actor step.
        extractor: Engine and optimizer.
        save_manager: Lets the experience manager save into a folder; waits for that.
        limit: Seconds, at most, of waiting for a running update of the extractor.
        earlier: An earlier checkpoint, whose extractor is taken where a process of its engine has died or hangs, or its
                update takes longer than ``limit``.
        given_up: Whether the extractor is no longer trained, so that it is taken whatever keeps the engine from saving.

    Returns:
        Whether the extractor is the present one.

    Raises:
        WaitTimeout: If a part takes longer than its limit. There is no checkpoint of this step then.
        OSError: If the manager cannot write. ``SnapshotError`` if that is the bank.
        StoreError: If the bank's store cannot be reached.
    """
    # Outside: a worker that hangs now may write later, when an earlier extractor is in its place, and listed.
    unfinished = folder.with_name(f"{EXTRACTOR}_being_written")
    with ExitStack() as held:
        try:
            held.enter_context(holding(extractor.lock, limit, "a running update of the extractor to end"))
            if extractor.work_is_late and earlier is not None:  # the engine cannot save before it has ended
                raise WaitTimeout("late work of the extractor to end", 0)
            extractor.save(unfinished)
            if unfinished.exists():  # a frozen extractor writes nothing
                folder.mkdir(parents=True, exist_ok=True)
                unfinished.rename(folder / EXTRACTOR)
            version, is_present = extractor.weight_version, True
        except Exception as error:
            if earlier is None or not (given_up or isinstance(error, (*ACTOR_AWAY, WaitTimeout, RanksApart))):
                raise
            shutil.rmtree(unfinished, ignore_errors=True)
            version, is_present = _take_extractor(earlier, folder, error), False
        try:
            save_manager(str(folder / EXPERIENCE))
        except RayTaskError as error:
            if isinstance(error.cause, OSError | SnapshotError | StoreError):
                raise error.cause from error  # with its number, which Ray's error lacks
            raise
        state = {"extractor_weight_version": version, "step": step}
        (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
    return is_present


def _take_extractor(earlier: Path, folder: Path, error: Exception) -> int:
    """Copy the extractor of an earlier checkpoint, whose version is returned: the rest of the run is to be saved."""
    why = f"{type(error).__name__}: {error}"
    print(f"the extractor cannot be saved, so the checkpoint gets that of {earlier.name}: {why}", flush=True)
    # No links: a worker that hangs now may write later, into the files of both.
    shutil.copytree(earlier / EXTRACTOR, folder / EXTRACTOR)
    return json.loads((earlier / STATE_FILE).read_text(encoding="utf-8"))["extractor_weight_version"]


_SAME = ("model.path", "model.lora_rank", "actor.strategy")
"""Settings of a model on which its files in a checkpoint depend."""
_SAME_ADAPTER = ("model.lora_alpha", "model.target_modules", "model.target_parameters", "model.exclude_modules")
"""Those on which its adapter depends, too: the files do not have its scale."""


def _same(model: DictConfig) -> tuple[str, ...]:
    return (*_SAME, *_SAME_ADAPTER) if model.model.get("lora_rank") else _SAME


def check_same_run(folder: Path, config: DictConfig) -> None:
    """Check that a run which finds a checkpoint in its own folder has the arm and models of the run that wrote it.

    And that the synchronous trainer does not continue an asynchronous one.
    ``trainer.resume_mode=resume_path`` names the checkpoint, so that one may branch from it on purpose.

    Args:
        folder: The checkpoint.
        config: The config of the run that is to continue it.

    Raises:
        ConfigError: If it has others.
    """
    run = folder.parent
    if config.trainer.resume_mode != "auto" or not (run / SETTINGS).is_file():
        return
    models = ["actor_rollout_ref", *(["extractor"] if comprl_config(config).has_extractor_engine else [])]
    names = ["comprl.arm", *(f"{model}.{key}" for model in models for key in _same(config[model]))]
    try:
        before = OmegaConf.create(read_settings(run / SETTINGS))
    except ValueError as error:
        raise ConfigError(f"{error}; delete it if the checkpoint {folder.name} is of the run that you start") from error
    pairs = {name: (OmegaConf.select(before, name), OmegaConf.select(config, name)) for name in names}
    saved, wanted = (OmegaConf.select(settings, MODE, default="sync") for settings in (before, config))
    if saved.endswith("_async") and not wanted.endswith("_async"):
        pairs[MODE] = saved, wanted  # which would drop the prompts that are in flight in the checkpoint
    differing = [
        f"{name}={saved} (now {wanted})"
        for name, (saved, wanted) in pairs.items()
        if (saved is not None or name.endswith(_SAME_ADAPTER)) and _absolute(saved) != _absolute(wanted)
    ]
    if differing:
        raise ConfigError(
            f"the run in {run} has {', '.join(differing)}; give this run another trainer.default_local_dir, or, to "
            f"branch from the checkpoint, trainer.resume_mode=resume_path trainer.resume_from_path={folder}"
        )


def _absolute(value: Any) -> Any:
    """Return a folder's absolute path, and any other value as it is."""
    path = Path(value).expanduser() if isinstance(value, str) else None
    return str(path.resolve()) if path is not None and path.exists() else value


def check_ranks(folder: Path, config: DictConfig) -> None:
    """Check that the models are trained on as many slots as when a checkpoint was written: verl saves one part of each.

    Args:
        folder: The checkpoint.
        config: The config of the run that is to continue it.

    Raises:
        ConfigError: If one has another number.
    """
    trainer, comprl = config.trainer, comprl_config(config)
    slots = {"actor": ("trainer", trainer.nnodes * trainer.n_gpus_per_node)}
    if comprl.has_extractor_engine:
        owner = extractor_owner(comprl)
        slots[EXTRACTOR] = (owner, math.prod(extractor_slots(config, comprl)))
    mistakes = [
        f"{folder / model} was written on {saved} device slots, but this run has {wanted} "
        f"({owner}.nnodes * {owner}.n_gpus_per_node); resume with as many, or start another run from exported weights"
        for model, (owner, wanted) in slots.items()
        if (saved := _saved_ranks(folder / model)) not in (None, wanted)
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _saved_ranks(folder: Path) -> int | None:
    """Return the number of ranks that wrote a model with verl's FSDP engine; None if another one did."""
    part = next(folder.glob("model_world_size_*_rank_*.pt"), None)
    return int(part.name.split("_")[3]) if part else None


def check(folder: Path, *, has_engine: bool = True) -> None:
    """Check that :func:`load` can read a checkpoint. To be called first: an older release reads no bank opened by this.

    Args:
        folder: The checkpoint.
        has_engine: Whether the extractor's weights are wanted, too.

    Raises:
        FileNotFoundError: If the checkpoint has no part of ours, as one of plain verl, or lacks the weights.
        ValueError: If another release wrote it.
    """
    if not (folder / STATE_FILE).exists():
        raise FileNotFoundError(
            f"{folder} is not a verl-comprl checkpoint ({STATE_FILE} is missing); "
            "start with trainer.resume_mode=disable or another trainer.default_local_dir"
        )
    if has_engine and not (folder / EXTRACTOR).is_dir():
        raise FileNotFoundError(
            f"{folder} has no weights of an extractor: its run had comprl.extractor.backend=endpoint or actor. "
            "Continue it with one of these, or start another run with its bank: "
            f"comprl.initial_bank={folder / 'comprl' / 'bank'}"
        )
    try:
        next(read_records(folder / EXPERIENCE / "buffer" / "records.parquet"), None)
    except ValueError as error:
        raise ValueError(
            f"{error}; continue this run with the release that wrote it, or start another one with its bank: "
            f"comprl.initial_bank={folder / 'comprl' / 'bank'}"
        ) from error


def noted_events(folder: Path) -> Prefix | None:
    """Return the events in ``experience.jsonl`` that led to the bank of a checkpoint.

    Args:
        folder: The checkpoint.

    Returns:
        None if it has no bank, or does not say: earlier releases did not, nor does a manager that could not read them.
    """
    file = folder / EXPERIENCE / "manager.json"
    noted = json.loads(file.read_bytes()).get("events") if file.exists() else None
    return Prefix(**noted) if noted else None


def is_written_in(folder: Path, run: Path) -> bool:
    """Return whether the events in a run's folder led to a checkpoint, wherever that lies: a copy of one of its own.

    Args:
        folder: The checkpoint. Of one without a bank this cannot be told.
        run: The run's folder.
    """
    noted, events = noted_events(folder), run / EVENTS
    return noted is not None and noted.size > 0 and events.exists() and noted.begins(events.read_bytes())


def load_extractor(folder: Path, extractor: ExtractorRuntime | FrozenExtractor) -> None:
    """Load what :func:`save` wrote of the extractor; the manager restores the rest."""
    state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    extractor.load(folder / EXTRACTOR, state["extractor_weight_version"])
