"""Every GPU layout composes on top of recipes, passes the checks of a start, and adds up."""

import copy
import math
from functools import cache
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig
from verl.utils.config import omega_conf_to_dataclass

from benchmarks.gpu_memory import CARD, EMBEDDER, HEADER, Pool, compose_layout, pools
from verl_comprl.config.reading import ConfigError
from verl_comprl.config.slots import needed_slots
from verl_comprl.config.variants import variant_notes
from verl_comprl.trainer.extractor.runtime import extractor_view
from verl_comprl.training import check_config

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
LAYOUTS = sorted(path.stem for path in (RECIPES / "shared/gpus").glob("*x*.yaml"))
ONE_GPU = ("1x1", "1x1_lora")
ON_TOP = [
    *((layout, f"{name}/paper") for layout in LAYOUTS for name in ("minihack", "mix6")),
    ("1x8", "swebench/paper"),
]
LIMIT = 0.95 * CARD
composed_once = cache(compose_layout)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "rows.parquet"
    row = {"extra_info": {"environment": "minihack", "environment_options": '{"variant": "room"}'}}
    pq.write_table(pa.Table.from_pylist([row] * 96), file)
    return file


@pytest.fixture
def composed(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("TASKS", "RUN", "MODELS"):
        monkeypatch.setenv(f"COMPRL_{name}", str(tmp_path))
    monkeypatch.setattr("verl_comprl.config.weight_transfer.uses_cpu", lambda: False)
    files = tuple(f"data.{split}_files=[{rows}]" for split in ("train", "val"))

    def make(layout: str | None, recipe: str, *overrides: str) -> DictConfig:
        return copy.deepcopy(composed_once(layout, recipe, (*files, *overrides)))

    return make


def test_what_has_never_run_says_so_at_its_beginning() -> None:
    """We have had no such GPUs. Whoever runs a layout, or builds the image, takes its file out of this list."""
    never_run = dict.fromkeys(sorted((RECIPES / "shared/gpus").glob("*.yaml")), "Never run on")
    assert [path.stem for path in never_run] == ["1x1", "1x1_lora", "1x8", "2x8", "2x8_async"]
    for path, words in {**never_run, ROOT / "docker/Dockerfile": "Never built"}.items():
        beginning = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        assert words in "\n".join(beginning), path


def test_every_paper_recipe_takes_a_layout() -> None:
    for recipe in RECIPES.glob("*/paper.yaml"):
        if recipe.parent.name != "shared":
            assert "  - _self_\n  - /shared/gpus: null" in recipe.read_text(), recipe


def test_a_paper_recipe_alone_is_the_layout_of_the_papers_gpus(composed) -> None:
    assert composed(None, "minihack/paper") == composed("2x8", "minihack/paper")


@pytest.mark.parametrize(("layout", "recipe"), ON_TOP)
def test_a_layout_on_top_of_a_recipe_passes_our_checks_and_verls(composed, layout: str, recipe: str) -> None:
    config = composed(layout, recipe)
    assert list(variant_notes(config, check_config(config))) == []  # nor is there anything to remark
    for view in (config, extractor_view(config)):
        model = view.actor_rollout_ref
        rollout, actor = omega_conf_to_dataclass(model.rollout), omega_conf_to_dataclass(model.actor)
        assert rollout.enable_sleep_mode == rollout.free_cache_engine and not rollout.enforce_eager
        assert rollout.dtype == actor.fsdp_config.dtype == "bfloat16" and actor.fsdp_config.mixed_precision is None
        assert actor.strategy == "fsdp2" and actor.use_remove_padding and actor.use_dynamic_bsz
        assert model.model.override_config.attn_implementation == "flash_attention_2"
        assert model.model.lora_rank == (32 if layout == "1x1_lora" else 0)
        sizes = {"1x1": "Qwen3-0.6B", "1x1_lora": "Qwen3-1.7B"}
        assert layout not in sizes or model.model.path.endswith(sizes[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_lengths_and_sampling_stay_the_recipes(composed, layout: str) -> None:
    for recipe in ("webshop/paper", "mix6/paper"):
        config, given = composed(layout, recipe), composed(None, recipe)
        assert config.data == given.data
        ours, theirs = config.actor_rollout_ref, given.actor_rollout_ref
        assert ours.actor.ppo_mini_batch_size == theirs.actor.ppo_mini_batch_size == given.data.train_batch_size
        for key in ("n", "temperature", "top_p", "top_k", "max_model_len", "val_kwargs"):
            assert ours.rollout[key] == theirs.rollout[key]
        assert config.comprl.extractor.batch_size == given.comprl.extractor.batch_size == 64


@pytest.mark.parametrize(("layout", "slots"), [("1x1", 1), ("1x1_lora", 1), ("1x8", 8), ("2x8", 16), ("2x8_async", 16)])
def test_a_layout_asks_for_the_gpus_in_its_name(composed, layout: str, slots: int) -> None:
    assert needed_slots(composed(layout, "minihack/paper")) == slots


@pytest.mark.parametrize("recipe", ["minihack", "mix6", "webshop"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_divide_and_servers_take_every_request_at_once(composed, layout: str, recipe: str) -> None:
    """A weight sync waits up to a minute for requests that a server has accepted and not begun."""
    config = composed(layout, f"{recipe}/paper")
    comprl, asynchronous = config.comprl, config.trainer.v1.trainer_mode == "comprl_separate_async"
    rollouts = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    in_flight = rollouts * (1 + config.trainer.v1.separate_async.num_warmup_batches if asynchronous else 1)
    asking = math.ceil(in_flight * comprl.guided_fraction)
    writing = comprl.extractor.distillation_workers + comprl.merge.workers
    models = {
        "actor": (config.actor_rollout_ref, rollouts, in_flight),
        "extractor": (config.extractor, comprl.extractor.batch_size, writing + asking),
    }
    for pool in pools(config):
        model, batch, requests = models[pool.model]
        if pool.tokens:
            assert batch % (pool.gpus // model.actor.ulysses_sequence_parallel_size) == 0
        if pool.share:
            replicas, left = divmod(pool.gpus, pool.tensor_parallel)
            assert left == 0
            assert model.rollout.max_num_seqs >= math.ceil(requests / replicas)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_estimated_memory_is_less_than_a_gpu_has(composed, layout: str) -> None:
    actor, *_, extractor = found = pools(composed(layout, "minihack/paper"))
    if layout in ONE_GPU:  # both servers are awake during rollouts, and the actor's asleep is counted for safety
        assert actor.generating() + extractor.generating() + EMBEDDER < LIMIT
        assert extractor.training() + actor.server + EMBEDDER < LIMIT
    for pool in found:
        assert max(pool.generating(), pool.training()) + EMBEDDER < LIMIT, pool
        # At least two of the longest sequences fit into a server.
        assert not pool.share or pool.cached_tokens() >= 2 * (65 if "4B" in pool.path else 33), pool


def test_why_two_gpus_share_a_sequence_of_the_papers_extractor() -> None:
    def needed(tokens: int) -> float:
        return Pool(
            "extractor", "Qwen/Qwen3-4B-Thinking-2507", gpus=8, tokens=tokens, share=0.45, stays=True
        ).training()

    assert needed(65536 // 2) < LIMIT < needed(65536)


def test_why_larger_models_on_one_gpu_have_adapters_or_shorter_sequences() -> None:
    def needed(tokens: int, *, adapter: bool = False) -> float:
        extractors_server = 0.25 * CARD
        model = Pool("actor", "Qwen/Qwen3-1.7B", gpus=1, tokens=tokens, copies=3, adapter=adapter)
        return model.training() + extractors_server

    assert needed(32768) > LIMIT
    assert needed(32768, adapter=True) < LIMIT and needed(16384) < LIMIT


def test_the_table_in_the_docs_is_what_the_script_prints(composed) -> None:
    rows = [pool.row(layout) for layout in LAYOUTS for pool in pools(composed(layout, "minihack/paper"))]
    assert "\n".join([HEADER, *rows]) in (ROOT / "docs/gpus.md").read_text()


@pytest.mark.parametrize(("layout", "slots"), [("1x8", 12), ("2x8", 24)])
def test_separate_servers_are_none_on_the_gpus_that_train(composed, layout: str, slots: int) -> None:
    config = composed(layout, "minihack/paper", "shared/trainer=separate_async")
    check_config(config)
    assert not config.actor_rollout_ref.hybrid_engine and needed_slots(config) == slots


def test_texts_and_episodes_get_as_old_in_the_asynchronous_layout_as_in_the_layers(composed) -> None:
    layer = composed("2x8", "minihack/paper", "shared/trainer=separate_async")
    layout = composed("2x8_async", "minihack/paper")
    assert layout.comprl.extractor.max_staleness == layer.comprl.extractor.max_staleness
    for key in ("max_off_policy_threshold", "max_off_policy_strategy"):
        assert layout.trainer.v1.sampler[key] == layer.trainer.v1.sampler[key]


def test_a_layout_for_one_gpu_does_not_take_the_larger_extractors_servers(composed) -> None:
    config = composed("1x1", "minihack/paper", "shared/extractor=30b")
    with pytest.raises(ConfigError, match=r"extractor\.rollout\.expert_parallel_size=4 must be 1 or"):
        check_config(config)


def test_an_adapter_that_no_server_can_hold_is_refused(composed) -> None:
    config = composed("1x1_lora", "minihack/paper", "extractor.model.lora_rank=1024")
    with pytest.raises(ConfigError, match=r"the extractor's model .*: lora_rank must be less than or equal to 512"):
        check_config(config)
