"""The experience manager as a Ray actor: opens the bank, connects the extractor's server.

The logic is :class:`verl_comprl.manager.manager.ExperienceManager`; this is what ties it to Ray and verl.
"""

import gc
import time
import uuid
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.utils.tokenizer import hf_tokenizer
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.experience import BankConfig, ExperienceBank, make_embedder
from verl_comprl.experience.transfer.snapshot import snapshot_folder
from verl_comprl.extractor.calls import ExtractorCalls, Generation
from verl_comprl.extractor.queue import QueueConfig
from verl_comprl.manager.inspection import BankInspection, remove_address, write_address
from verl_comprl.manager.kept_warnings import KeptWarnings
from verl_comprl.manager.manager import ExperienceManager, ManagerConfig
from verl_comprl.names import manager_name


class _ManagerActor(BankInspection, ExperienceManager):
    """Constructed empty, since a Ray actor's constructor cannot await; :meth:`open` does the work."""

    def __init__(self) -> None:
        self._warnings = KeptWarnings()

    async def open(self, settings: dict[str, Any], reader: dict[str, Any], *, keep_content: bool) -> None:
        """Open bank and embedder.

        Args:
            settings: The config group ``comprl``.
            reader: The actor's model: ``path`` of its tokenizer, which measures entries, and ``trust_remote_code``.
            keep_content: Whether the bank belongs to this run; one that starts anew sets what it finds aside.
        """
        embedder = await make_embedder(**settings["embedder"])
        tokenizer = hf_tokenizer(reader["path"], trust_remote_code=reader["trust_remote_code"])
        config = BankConfig(**settings["bank"])
        bank = await ExperienceBank.open(config, embedder, tokenizer=tokenizer)
        if len(bank) and not keep_content:
            await bank.save(f"{settings['bank']['path']}-{time.strftime('%Y%m%d-%H%M%S')}")
            await bank.delete([entry.id for entry in bank.entries()])
        if settings["initial_bank"] and not keep_content:
            await bank.add_snapshot(snapshot_folder(settings["initial_bank"]))
        extractor = settings["extractor"]
        super().__init__(
            ManagerConfig(
                batch_size=extractor["batch_size"],
                alpha=extractor["alpha"],
                cooldown=extractor["cooldown"],
                max_staleness=extractor["max_staleness"],
                format_failure_reward=extractor["format_failure_reward"],
                distillation_workers=extractor["distillation_workers"],
                distill=extractor["distill"],
                relative_utility=extractor["utility"] == "relative",
                exploration=settings["exploration"],
                merge_chunk=settings["merge"]["chunk"],
                merge_workers=settings["merge"]["workers"],
                answer_timeout=settings["search_and_ask"]["timeout"],
                queue=QueueConfig(**settings["queue"]),
            ),
            bank,
        )
        self._address_folder = None if config.url else Path(config.path)
        if self._address_folder is not None:
            write_address(self._address_folder, _actor_name())
        _relieve_garbage_collector()

    async def take_warnings(self) -> list[str]:
        """Return what was logged as a warning or worse since the last call, with tracebacks."""
        return self._warnings.take()

    async def restore(self, folder: str) -> None:
        """Replace the state by what ``save`` wrote."""
        await super().restore(folder)
        _relieve_garbage_collector()

    async def replace_bank(self, address: str) -> None:
        """Put a snapshot in the place of the bank's content, unless ``address`` is empty."""
        if address:
            await self._bank.restore(snapshot_folder(address))

    async def close(self) -> None:
        """Stop, close the bank, and say no longer that it is here."""
        if self._address_folder is not None:
            remove_address(self._address_folder)
        await super().close()

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
                votes=view.comprl.extractor.votes,
            )
        )


def _actor_name() -> str:
    return manager_name(ray.get_runtime_context().get_job_id())


def _relieve_garbage_collector() -> None:
    """Exempt what is in memory now from garbage collection, and collect less often.

    Scanning a bank of 20,000 entries takes 100 ms, during which no retrieval is answered (``benchmarks/retrieval.py``).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


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
    manager = ray.remote(_ManagerActor).options(name=_actor_name(), max_concurrency=4096, num_cpus=1).remote()
    model = config.actor_rollout_ref.model
    reader = {"path": model.get("tokenizer_path") or model.path, "trust_remote_code": model.trust_remote_code}
    settings = OmegaConf.to_container(config.comprl, resolve=True)
    ray.get(manager.open.remote(settings, reader, keep_content=keep_content))
    return manager
