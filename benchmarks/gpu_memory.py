"""Estimates memory per GPU of each layout in recipes/shared/gpus: ``python -m benchmarks.gpu_memory`` prints a table.

Arithmetic on top of a paper recipe, no measurement: nothing of it has been compared with a GPU. Sizes are in GiB.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.composing import compose
from verl_comprl.config.reading import comprl_config
from verl_comprl.config.slots import extractor_slots

RECIPES = Path(__file__).parents[1] / "recipes"
GIB = 2**30
CARD = 79.0
"""What an 80 GB card shows."""
RESERVE = 4.0
"""CUDA contexts, a layer's whole weights, buckets of the weight sync, fragmentation: a guess."""
SERVER_RESERVE = 3.0
"""Activations and graphs of a server, inside its share: a guess."""
EMBEDDER = 3.0
"""The embedder of the paper's recipes, on the first GPU of a node; not in the table."""
LAYER_WIDTH = 40
"""Values per token and hidden unit while one layer is recomputed and differentiated; the rest are checkpoints."""
ADAPTER_SHARE = 0.02
"""Weights of an adapter of rank 32 on all linear layers, as a part of the model's; rounded up."""
HEADER = (
    "| layout | GPUs | what | server | engine while it generates | training | tokens in the cache |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Model:
    """Sizes from the model's config.json on the hub."""

    parameters: float
    layers: int
    hidden: int
    key_value_heads: int
    vocabulary: int
    head_size: int = 128


MODELS = {
    "Qwen/Qwen3-0.6B": Model(0.6e9, 28, 1024, 8, 151936),
    "Qwen/Qwen3-1.7B": Model(1.72e9, 28, 2048, 8, 151936),
    "Qwen/Qwen3-4B-Thinking-2507": Model(4.02e9, 36, 2560, 8, 151936),
    "Qwen/Qwen2.5-7B-Instruct": Model(7.62e9, 28, 3584, 4, 152064),
}


@dataclass(frozen=True)
class Pool:
    """GPUs on which one model is trained, served, or both."""

    model: str
    path: str
    gpus: int
    tokens: int = 0
    """Of a micro-batch on each GPU; 0: nothing is trained here."""
    share: float = 0.0
    """Of a GPU's memory that a server takes; 0: no server."""
    stays: bool = False
    """The server is awake while the engine trains."""
    neighbour: float = 0.0
    """Share of the other model's server that is awake on these GPUs meanwhile."""
    tensor_parallel: int = 1
    copies: int = 1
    """Of the logits; a temperature other than 1 makes a copy and a gradient more."""
    adapter: bool = False
    resident: int = 12
    """Bytes per weight that stay on the GPUs while the server generates: weights 4, Adam 8, less what is offloaded."""

    @property
    def sizes(self) -> Model:
        """The model's."""
        return MODELS[self.path]

    @property
    def server(self) -> float:
        """GiB of the server's share."""
        return self.share * CARD

    def _state(self, weights: int, trained: int) -> float:
        """GiB per GPU of ``weights`` bytes for each weight and ``trained`` more for each trained one."""
        share = ADAPTER_SHARE if self.adapter else 1.0
        return self.sizes.parameters * (weights + trained * share) / self.gpus / GIB

    def logits(self) -> float:
        """GiB of one copy of a micro-batch's logits in bfloat16."""
        return self.tokens * self.sizes.vocabulary * 2 / GIB

    def training(self) -> float:
        """GiB at the peak of an update with the longest sequences, with the servers that stay."""
        if not self.tokens:
            return 0.0
        activations = self.tokens * self.sizes.hidden * (self.sizes.layers + LAYER_WIDTH) * 2 / GIB
        engine = self._state(4, 12) + self.copies * self.logits() + activations + RESERVE
        return engine + (self.server if self.stays else 0.0) + self.neighbour * CARD

    def idle_engine(self) -> float:
        """GiB that the engine keeps while the server generates."""
        weights = min(self.resident, 4)
        return self._state(weights, self.resident - weights) if self.tokens else 0.0

    def generating(self) -> float:
        """GiB while the server generates."""
        return self.server + self.idle_engine() if self.share else 0.0

    def cached_tokens(self) -> int:
        """Tokens whose keys and values one server holds, in thousands."""
        sizes = self.sizes
        per_token = sizes.layers * sizes.key_value_heads * sizes.head_size * 2 * 2
        weights = sizes.parameters * 2 / self.tensor_parallel / GIB
        return int((self.server - weights - SERVER_RESERVE) * self.tensor_parallel * GIB / per_token / 1000)

    def row(self, layout: str) -> str:
        """The pool's line in the table of docs/gpus.md."""
        name = self.path.partition("/")[2]
        what = "" if self.share and self.tokens else (", trained" if self.tokens else ", served")
        server = f"{self.server:.0f}{' (stays)' if self.stays else ''}" if self.share else "-"
        idle = f"{self.idle_engine():.0f}" if self.share and self.tokens else "-"
        parts = f"logits {self.copies} * {self.logits():.1f}"
        parts += f", the other server {self.neighbour * CARD:.0f}" if self.neighbour else ""
        training = f"{self.training():.0f} ({parts})" if self.tokens else "-"
        cache = f"{self.cached_tokens()} k" if self.share else "-"
        return f"| `{layout}` | {self.gpus} | {self.model}, {name}{what} | {server} | {idle} | {training} | {cache} |"


def pools(config: DictConfig) -> list[Pool]:
    """Return where the two models of a composed config are trained and served."""
    actor, trainer, comprl = config.actor_rollout_ref, config.trainer, comprl_config(config)
    # The extractor's server is awake until its own model is trained; the actor's one sleeps during both updates.
    neighbour = config.extractor.rollout.gpu_memory_utilization if comprl.extractor.placement == "shared" else 0.0
    trained = _pool("actor", actor, trainer.nnodes * trainer.n_gpus_per_node, neighbour)
    placed = [trained]
    if not actor.hybrid_engine:
        standalone = actor.rollout.nnodes * actor.rollout.n_gpus_per_node
        placed = [
            Pool(**{**vars(trained), "share": 0.0, "stays": False}),
            Pool(**{**vars(trained), "gpus": standalone, "tokens": 0}),
        ]
    return [*placed, _pool("extractor", config.extractor, math.prod(extractor_slots(config, comprl)))]


def _pool(role: str, model: Any, gpus: int, neighbour: float = 0.0) -> Pool:
    engine = model.actor.fsdp_config
    return Pool(
        model=role,
        path=model.model.path,
        gpus=gpus,
        tokens=model.actor.ppo_max_token_len_per_gpu,
        share=model.rollout.gpu_memory_utilization,
        stays=not model.rollout.free_cache_engine,
        neighbour=neighbour,
        tensor_parallel=model.rollout.tensor_model_parallel_size,
        copies=1 if model.rollout.temperature == 1 else 3,
        adapter=model.model.lora_rank > 0,
        resident=(0 if engine.param_offload else 4) + (0 if engine.optimizer_offload else 8),
    )


def compose_layout(layout: str | None, recipe: str = "minihack/paper", overrides: tuple[str, ...] = ()) -> DictConfig:
    """Return a recipe's config with a layout on top.

    Args:
        layout: File of recipes/shared/gpus, without its ending; None for the recipe alone.
        recipe: File of recipes, without its ending.
        overrides: Further Hydra overrides.
    """
    chosen = [f"shared/gpus={layout}"] if layout else []
    config = compose(RECIPES, recipe, [*chosen, *overrides])
    OmegaConf.resolve(config)
    return config


def main() -> None:
    """Print the table."""
    for name in ("TASKS", "RUN"):
        os.environ.setdefault(f"COMPRL_{name}", ".")
    print(HEADER)
    for file in sorted((RECIPES / "shared/gpus").glob("*x*.yaml")):
        for pool in pools(compose_layout(file.stem)):
            print(pool.row(file.stem))


if __name__ == "__main__":
    main()
