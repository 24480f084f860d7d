"""Extractors without a model of their own in the run: an OpenAI-compatible endpoint, or the actor's server.

Neither has an engine, so there is nothing to start, to sync, to save or to load.
"""

import asyncio
import os
import threading
from pathlib import Path

from omegaconf import DictConfig
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.config.reading import comprl_config
from verl_comprl.extractor.calls import Generate
from verl_comprl.extractor.endpoint import Endpoint
from verl_comprl.manager.served_model import ServedModel, sampling_of


class FrozenExtractor:
    """The actor's current weights as the extractor (``comprl.extractor.backend=actor``)."""

    weight_version = 0
    """Updates of the extractor: none."""
    is_down = False
    """Whether an update has left the servers in no state to answer."""
    work_is_late = False
    """Whether work of the engine that took longer than its limit continues."""

    def __init__(self, config: DictConfig) -> None:
        """Take the run's config."""
        self.lock = threading.RLock()
        """Held while a checkpoint is written; nothing else takes it."""
        self.model: DictConfig = config.actor_rollout_ref.model
        """Model whose tokenizer encodes prompts."""
        self.prompt_length: int = config.extractor.rollout.prompt_length
        self._sampling = sampling_of(config.extractor.rollout)

    def check(self) -> None:
        """Check, before anything is started, that the extractor can be reached."""

    def generate(self, actor: LLMServerClient) -> Generate:
        """Return what answers the extractor's calls.

        Args:
            actor: A client of the actor's servers that survives their pauses.
        """
        return ServedModel(actor, self._sampling)

    def publish_weights(self) -> None:
        """Do nothing: a server of the extractor would get its weights here."""

    def save(self, folder: Path) -> None:
        """Do nothing."""

    def load(self, folder: Path, weight_version: int) -> None:
        """Do nothing, also if the checkpoint is of a run that had an engine."""


class EndpointExtractor(FrozenExtractor):
    """An endpoint as the extractor (``comprl.extractor.backend=endpoint``).

    It gets messages. Their length is measured with the actor's tokenizer, since that of the endpoint's model may not be
    had; it is an estimate.
    """

    def __init__(self, config: DictConfig) -> None:
        """Take the run's config, and the key from this process's environment."""
        super().__init__(config)
        settings = comprl_config(config).extractor.endpoint
        # Read here and not by the manager, which may run on another node.
        self._endpoint = Endpoint(settings, os.environ.get(settings.key_variable, ""), self._sampling)

    def check(self) -> None:
        """Send a request.

        Raises:
            EndpointError: If the endpoint refuses it or cannot be reached.
        """
        asyncio.run(self._endpoint.check())

    def generate(self, actor: LLMServerClient) -> Generate:
        """Return the endpoint."""
        return self._endpoint


def make_frozen_extractor(config: DictConfig) -> FrozenExtractor:
    """Return the extractor of a run whose extractor has no engine."""
    backend = comprl_config(config).extractor.backend
    return {"endpoint": EndpointExtractor, "actor": FrozenExtractor}[backend](config)
