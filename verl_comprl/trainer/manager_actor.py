"""The experience manager as a Ray actor: opens the bank, connects the extractor's server.

The logic is :class:`verl_comprl.service.ExperienceManager`; this is what ties it to Ray and verl.
"""

import time
import uuid
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.utils.tokenizer import hf_tokenizer
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.experience import BankConfig, Discard, ExperienceBank, SentenceTransformerEmbedder
from verl_comprl.extractor.calls import ExtractorCalls, Generation
from verl_comprl.rollout.guidance import manager_name
from verl_comprl.service import ExperienceManager, ManagerConfig


class _ManagerActor(ExperienceManager):
    """Constructed empty, since a Ray actor's constructor cannot await; :meth:`open` does the work."""

    def __init__(self) -> None:
        pass

    async def open(self, settings: dict[str, Any], *, keep_content: bool) -> None:
        """Open bank and embedder. A run that starts anew sets what the folder still holds aside."""
        embedder = SentenceTransformerEmbedder(settings["embedder"]["model"], device=settings["embedder"]["device"])
        bank = await ExperienceBank.open(BankConfig(**settings["bank"]), embedder)
        if len(bank) and not keep_content:
            await _set_aside(bank, Path(f"{settings['bank']['path']}-{time.strftime('%Y%m%d-%H%M%S')}"))
        extractor = settings["extractor"]
        config = ManagerConfig(
            batch_size=extractor["batch_size"],
            alpha=extractor["alpha"],
            cooldown=extractor["cooldown"],
            format_failure_reward=extractor["format_failure_reward"],
            distillation_workers=extractor["distillation_workers"],
            merge_chunk=settings["merge"]["chunk"],
            answer_timeout=settings["search_and_ask"]["timeout"],
        )
        super().__init__(config, bank)

    async def connect(self, client: LLMServerClient, view: DictConfig) -> None:
        """Connect the extractor's server; distillation starts."""
        rollout, model = view.actor_rollout_ref.rollout, view.actor_rollout_ref.model
        sampling = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
            "logprobs": True,
            "max_tokens": rollout.response_length,
        }

        async def generate(prompt_ids: list[int]) -> Generation:
            output = await client.generate(uuid.uuid4().hex, prompt_ids=prompt_ids, sampling_params=dict(sampling))
            version = output.extra_fields.get("max_global_steps") or 0
            return Generation(list(output.token_ids), list(output.log_probs or []), version)

        tokenizer = hf_tokenizer(model.get("tokenizer_path") or model.path, trust_remote_code=model.trust_remote_code)
        self.start(
            ExtractorCalls(
                tokenizer,
                generate,
                max_prompt_tokens=rollout.prompt_length,
                max_operations=view.comprl.extractor.max_operations,
            )
        )


async def _set_aside(bank: ExperienceBank, folder: Path) -> None:
    await bank.save(folder)
    ids = [entry.id for entry in bank.entries()]
    everything = Discard(ids=tuple(range(1, len(ids) + 1)))
    await bank.apply(
        [everything], call_id=str(uuid.uuid4()), listed=ids, task="", environment="", step=0, weight_version=0
    )


def wait_for(reference: Any) -> Any:
    """Return what a call to a Ray actor returned."""
    return ray.get(reference)


def start_manager(config: DictConfig, *, keep_content: bool) -> Any:
    """Start the manager of this Ray job and open its bank.

    Args:
        config: The run's config.
        keep_content: Whether the bank's folder belongs to the run that is resumed.

    Returns:
        The actor's handle.

    Raises:
        ray.exceptions.RayTaskError: If the bank cannot be opened; the cause says why.
    """
    manager = ray.remote(_ManagerActor).options(name=manager_name(), max_concurrency=4096, num_cpus=1).remote()
    ray.get(manager.open.remote(OmegaConf.to_container(config.comprl, resolve=True), keep_content=keep_content))
    return manager
