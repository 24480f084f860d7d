"""A model on verl's servers as the extractor's back end: token ids in, token ids and log-probs out."""

import uuid
from dataclasses import asdict

from omegaconf import DictConfig
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.extractor.calls import Generation, Sampling
from verl_comprl.extractor.prompt_encoder import Prompt


def sampling_of(rollout: DictConfig) -> Sampling:
    """Return sampling and length of answers.

    Args:
        rollout: The subtree ``extractor.rollout``, which says so for every back end.
    """
    return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.response_length)


class ServedModel:
    """Samples responses through a client of verl's servers."""

    def __init__(self, client: LLMServerClient, sampling: Sampling) -> None:
        """Use a client that survives pauses of the servers: it resumes aborted generations."""
        self._client = client
        self._sampling = asdict(sampling) | {"logprobs": True}

    async def __call__(self, prompt: Prompt) -> Generation:
        """Sample one response to the prompt's token ids."""
        output = await self._client.generate(
            uuid.uuid4().hex, prompt_ids=prompt.ids, sampling_params=dict(self._sampling)
        )
        version = output.extra_fields.get("max_global_steps") or 0
        return Generation(list(output.token_ids), list(output.log_probs or []), version)
