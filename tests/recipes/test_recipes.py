"""Every recipe's tasks can be made, and each of its settings composes and passes the checks of a start."""

import copy
import json
import subprocess
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from verl_comprl.cli.main import main
from verl_comprl.config.composing import compose
from verl_comprl.config.slots import needed_slots
from verl_comprl.config.validation import ConfigError, validate
from verl_comprl.trainer.extractor.runtime import extractor_view
from verl_comprl.training import check_config

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/tasks.sh"))
PAPER = [name for name in NAMES if (RECIPES / name / "paper.yaml").exists()]
SETTINGS = [(name, file.stem) for name in NAMES for file in sorted((RECIPES / name).glob("*.yaml"))]
SMOLLM2 = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
composed_once = cache(compose)
"""Takes a second; places are read from the environment only when a config is resolved."""
ROLLOUTS = {"webshop": 64, "mix3": 384, "mix6": 768}
SEQUENCE = {"webshop": 16384, "alfworld": 16384}
STEPS = {"alfworld": 128, "mix3": 128, "mix6": 128, "webshop": 256}
ACTORS = {"swebench": "Qwen/Qwen3-4B-Instruct-2507"}


def tasks(recipe: str) -> dict[str, list[str]]:
    """What the recipe's tasks.sh says: arguments of ``comprl data`` by name."""
    script = f'needs() {{ :; }}; task() {{ printf "%s\\n" "$*"; }}; source {RECIPES / recipe / "tasks.sh"}'
    lines = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: rest for name, _, _, *rest in map(str.split, lines)}


def train_counts(recipe: str) -> list[str]:
    """How many rows of each task the recipe trains on."""
    return [
        line.split()[2]
        for line in (RECIPES / recipe / "tasks.sh").read_text().splitlines()
        if line.strip().startswith("task ")
    ]


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few rows of every task of every recipe."""
    folder = tmp_path_factory.mktemp("tasks")
    wanted = {name: arguments for recipe in NAMES for name, arguments in tasks(recipe).items()}
    for name, arguments in wanted.items():
        for split in ("train", "val"):
            output = str(folder / f"{name}-{split}.parquet")
            assert main(["data", *arguments, "--split", split, "--count", "2", "--output", output]) == 0
            # Enough rows for the recipe's own batch; drawing that many tasks would take minutes.
            pq.write_table(pa.concat_tables([pq.read_table(output)] * 8), output)
    return folder


@pytest.fixture
def composed(task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, place in {"TASKS": task_folder, "RUN": tmp_path / "run", "MODELS": tmp_path / "models"}.items():
        monkeypatch.setenv(f"COMPRL_{name}", str(place))
    for model, fields in {"actor": {}, "extractor": {}, ".": SMOLLM2}.items():
        (tmp_path / "models" / model).mkdir(parents=True, exist_ok=True)
        (tmp_path / "models" / model / "config.json").write_text(json.dumps(fields))

    def make(recipe: str, setting: str, *overrides: str) -> DictConfig:
        config = copy.deepcopy(composed_once(RECIPES, f"{recipe}/{setting}", overrides))
        OmegaConf.resolve(config)
        return config

    return make


def test_there_is_a_recipe_for_each_family_and_mix() -> None:
    single = ["alfworld", "frozenlake", "keyroom", "maze", "minihack", "river", "sokoban", "swebench", "webshop"]
    assert sorted([*single, "mix3", "mix6"]) == PAPER
    assert sorted(set(NAMES) - set(PAPER)) == ["minihack_small", "smollm2"]
    assert {setting for name, setting in SETTINGS if name in PAPER} == {"paper", "cpu"}
    assert len(tasks("mix3")) == 3 and len(tasks("mix6")) == 6
    assert tasks("mix3").items() <= tasks("mix6").items()


@pytest.mark.parametrize(("recipe", "setting"), SETTINGS)
def test_a_recipe_composes_and_passes_the_checks(composed, recipe: str, setting: str) -> None:
    config = composed(recipe, setting)
    validate(config)
    files = {Path(file).name for file in config.data.train_files}
    assert files == {f"{name}-train.parquet" for name in tasks(recipe)}
    rollout = config.actor_rollout_ref.rollout
    assert rollout.prompt_length + rollout.response_length <= rollout.max_model_len
    assert config.comprl.max_turn_tokens < rollout.response_length
    ray_init = config.ray_kwargs.ray_init
    assert (config.trainer.device, ray_init.num_gpus, ray_init.num_cpus) == (None, None, None), "found by itself"


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
@pytest.mark.parametrize(("recipe", "setting"), [("smollm2", "cpu"), ("mix3", "cpu"), ("mix6", "paper")])
def test_an_asynchronous_trainer_can_be_added_to_a_recipe(composed, recipe: str, setting: str, mode: str) -> None:
    before, config = composed(recipe, setting), composed(recipe, setting, f"shared/trainer={mode}")
    validate(config)
    assert config.trainer.v1.trainer_mode == f"comprl_{mode}"
    own_servers = config.trainer.n_gpus_per_node if mode == "separate_async" else 0
    assert needed_slots(config) == needed_slots(before) + own_servers


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
@pytest.mark.parametrize(("recipe", "setting"), [("mix3", "cpu"), ("mix6", "paper")])
def test_how_old_texts_and_episodes_get_with_an_asynchronous_trainer(
    composed, recipe: str, setting: str, mode: str
) -> None:
    """By default texts get any age, and prompts of more than eight steps are dropped."""
    config = composed(recipe, setting, f"shared/trainer={mode}")
    assert config.comprl.extractor.max_staleness == 8
    sampler = config.trainer.v1.sampler
    assert (sampler.max_off_policy_threshold, sampler.max_off_policy_strategy) == (4, "wait")


@pytest.mark.parametrize("recipe", PAPER)
def test_the_papers_numbers(composed, recipe: str) -> None:
    config = composed(recipe, "paper")
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.n, rollout.temperature, rollout.top_p, rollout.top_k) == (8, 0.99, 0.99, 100)
    assert rollout.max_model_len == SEQUENCE.get(recipe, 32768)
    for model in (config.actor_rollout_ref.actor, config.extractor.actor):
        assert (model.optim.lr, model.optim.weight_decay, model.grad_clip) == (1e-6, 0.0, 1.0)
    assert config.extractor.rollout.max_model_len == 65536
    sampling = config.extractor.rollout
    assert (sampling.temperature, sampling.top_p, sampling.response_length) == (1.0, 0.99, 8192)
    assert config.trainer.total_training_steps == STEPS.get(recipe, 145)
    assert config.comprl.max_turn_tokens == (2048 if recipe == "alfworld" else 4096)
    assert config.actor_rollout_ref.model.path == ACTORS.get(recipe, "Qwen/Qwen2.5-7B-Instruct")
    assert config.extractor.model.path == "Qwen/Qwen3-4B-Thinking-2507"
    assert config.comprl.embedder.model == "Qwen/Qwen3-Embedding-0.6B"
    for name, arguments in tasks(recipe).items():
        assert arguments[arguments.index("--max-turns") + 1] == ("40" if name in ("alfworld", "river") else "30")
    assert config.comprl.exploration == 0.1  # ours: the paper does not explore
    assert (config.comprl.warmup_steps, config.comprl.merge.every) == (10 if recipe == "webshop" else 5, 5)


@pytest.mark.parametrize("recipe", PAPER)
def test_the_papers_batch_is_counted_in_rollouts_and_trained_in_one_optimizer_step(composed, recipe: str) -> None:
    config = composed(recipe, "paper")
    actor, prompts = config.actor_rollout_ref.actor, config.data.train_batch_size
    assert prompts * config.actor_rollout_ref.rollout.n == ROLLOUTS.get(recipe, 128)
    assert (prompts / actor.ppo_mini_batch_size, actor.ppo_epochs) == (1, 1)
    rows = sum(128 if count == "all" else int(count) for count in train_counts(recipe))
    assert rows >= prompts


def test_only_the_papers_setting_has_an_embedder_on_a_gpu(composed) -> None:
    settings = {name: composed("minihack", name).comprl for name in ("paper", "cpu")}
    assert {name: comprl.embedder.device for name, comprl in settings.items()} == {"paper": "cuda", "cpu": "cpu"}
    assert settings["paper"].search_and_ask.timeout == 300


@pytest.mark.parametrize(("recipe", "setting"), SETTINGS)
def test_neither_dual_clip_nor_weight_decay(composed, recipe: str, setting: str) -> None:
    config = composed(recipe, setting)
    # A loss bounded at a billion times the advantage is not bounded.
    assert config.actor_rollout_ref.actor.clip_ratio_c == 1e9
    for model in (config.actor_rollout_ref, config.extractor):
        assert model.actor.optim.weight_decay == 0.0


@pytest.mark.parametrize("recipe", NAMES)
def test_the_cpu_setting_merges_before_it_ends(composed, recipe: str) -> None:
    config = composed(recipe, "cpu")
    steps, every = config.trainer.total_training_steps, config.comprl.merge.every
    # What a merge writes can be used only in a later step.
    merges = [step for step in range(1, steps) if every and step % every == 0]
    assert len(merges) >= (2 if recipe.startswith("mix") else 1)
    assert steps >= (12 if recipe.startswith("mix") else 3)


@pytest.mark.parametrize("recipe", PAPER)
def test_a_larger_extractor_fits_on_top_of_any_paper_recipe(composed, recipe: str) -> None:
    given, config = composed(recipe, "paper"), composed(recipe, "paper", "shared/extractor=30b")
    check_config(config)  # verl's checks too, of both models
    assert "30B-A3B" in config.extractor.model.path and config.extractor.rollout.expert_parallel_size == 4
    view = extractor_view(config)
    assert (view.trainer.nnodes, view.trainer.n_gpus_per_node) == (2, 8)
    rollout = omega_conf_to_dataclass(view.actor_rollout_ref.rollout)  # verl refuses unequal sizes here
    assert rollout.tensor_model_parallel_size == 4
    # The check fills in what depends on the device.
    given.actor_rollout_ref.rollout.dtype = config.actor_rollout_ref.rollout.dtype
    for tree in ("data", "actor_rollout_ref", "algorithm"):
        assert config[tree] == given[tree]


def test_the_small_instruct_models_lengths_hold_what_the_recipe_counts(composed) -> None:
    config = composed("smollm2", "cpu")
    (arguments,) = tasks("smollm2").values()
    turns, entry, question = int(arguments[-1]), config.comprl.bank.max_content_tokens + 62, 64 + 213 + 13
    # Counted with its tokenizer: rules 242, tool 213, a turn's observation 43, an episode for the extractor 1395.
    assert config.data.max_prompt_length >= 242 + 213 + entry
    asked = config.comprl.search_and_ask.max_calls * (64 + config.extractor.rollout.response_length + 30)
    assert config.data.max_response_length >= turns * (config.comprl.max_turn_tokens + 43) + asked
    listed = 1 + config.comprl.extractor.list_nearest
    assert config.extractor.rollout.prompt_length >= 1395 + listed * entry + question
    for model in (config.actor_rollout_ref, config.extractor):
        assert model.rollout.max_model_len >= model.rollout.prompt_length + model.rollout.response_length
        assert model.rollout.max_num_batched_tokens >= model.rollout.max_model_len
    assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n == 8
    assert turns >= 6, "the goal is six moves away"


def test_a_bucket_too_small_for_the_small_instruct_model_is_named(composed) -> None:
    config = composed("smollm2", "cpu")
    config.extractor.rollout.checkpoint_engine.update_weights_bucket_megabytes = 32
    with pytest.raises(ConfigError, match="must be at least 108"):
        validate(config)


VARIABLES = {
    "alfworld": "ALFWORLD_DATA",
    "webshop": "WEBSHOP_DATA",
    "swebench": "SWEBENCH_DATA",
    "mix3": "WEBSHOP_DATA",
    "mix6": "WEBSHOP_DATA",
}


@pytest.mark.parametrize(("recipe", "variable"), VARIABLES.items())
def test_the_papers_setting_wants_the_benchmarks_data(
    recipe: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMPRL_RECIPES", str(tmp_path / "runs"))
    for name in {*VARIABLES.values(), "COMPRL_STAND_INS"}:
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(["bash", str(RECIPES / "run.sh"), recipe], capture_output=True, text=True)
    assert done.returncode == 2 and f"run.sh: {recipe} needs its data: " in done.stderr and variable in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("recipe", ["mix3", "mix6"])
def test_a_mix_wants_the_data_of_each_benchmark(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMPRL_RECIPES", str(tmp_path / "runs"))
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    for name in ("ALFWORLD_DATA", "COMPRL_STAND_INS"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(["bash", str(RECIPES / "run.sh"), recipe], capture_output=True, text=True)
    assert done.returncode == 2 and "ALFWORLD_DATA" in done.stderr


def test_the_papers_swe_bench_runs_in_images_with_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEBENCH_DATA", "kept.jsonl")
    assert train_counts("swebench")[-1] == "all" and "backend=docker" in tasks("swebench")["swebench"]
    assert {"held_out=0", "timeout=1800", "test_timeout=1800"} <= set(tasks("swebench")["swebench"])


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs run.sh with stand-ins for the programs it calls, and returns what they were called with."""
    for name in ("comprl", "python"):
        program = tmp_path / name
        # The first makes the file that follows --output.
        make = 'mkdir -p "$(dirname "${@: -1}")" && touch "${@: -1}"' if name == "comprl" else 'echo "run $COMPRL_RUN"'
        program.write_text(f'#!/usr/bin/env bash\necho "{name} $*"\n{make}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("COMPRL_RECIPES", str(tmp_path / "runs"))
    for name in ("WEBSHOP_DATA", "ALFWORLD_DATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("COMPRL_STAND_INS", raising=False)

    def run(*arguments: str) -> list[str]:
        command = ["bash", str(RECIPES / "run.sh"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    return run


def test_each_arm_and_layout_has_a_run_of_its_own(start, tmp_path: Path) -> None:
    runs = f"run {tmp_path}/runs/minihack-paper"
    assert start("minihack")[-1] == runs == start("minihack", "paper", "data.seed=3")[-1]
    assert start("minihack", "arm=baseline", "data.seed=3", "shared/gpus=1x8")[-1] == f"{runs}-baseline-1x8"


def test_tasks_are_made_once_and_again_where_another_recipe_wants_other_rows(start) -> None:
    def made(recipe: str) -> list[str]:
        lines = [line for line in start(recipe) if line.startswith("comprl data ")]
        return [line.partition("--count ")[2].split()[0] for line in lines]

    assert made("minihack") == ["2320", "128"] and made("minihack") == []
    wanted = {"mix3": ["2048", "2048", "128", "1466", "134"], "minihack": ["2320"]}
    assert {recipe: made(recipe) for recipe in wanted} == wanted


def test_stand_ins_are_in_folders_of_their_own(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folders() -> set[str]:
        start("webshop")
        return {path.name for path in (tmp_path / "runs").iterdir()}

    monkeypatch.setenv("COMPRL_STAND_INS", "1")
    assert folders() == {"tasks-paper-stand-ins"}
    monkeypatch.delenv("COMPRL_STAND_INS")
    assert folders() == {"tasks-paper-stand-ins", "tasks-paper"}


def test_an_unknown_recipe_or_setting_names_the_known(tmp_path: Path) -> None:
    for arguments, message in ((["chess"], "there are: alfworld "), (["mix3", "laptop"], "there are: cpu paper")):
        done = subprocess.run(["bash", str(RECIPES / "run.sh"), *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr
