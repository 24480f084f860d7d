"""Everything of a run except the actor: experience manager, extractor and learner, started, saved and stopped together.

The trainer holds one such object; an arm without experience holds a :class:`NoExperienceRuntime`.
"""

from contextlib import suppress
from pathlib import Path

import ray
from omegaconf import DictConfig
from ray.exceptions import RayError
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.config.reading import comprl_config
from verl_comprl.manager.actor import open_bank, start_manager, wait_for
from verl_comprl.trainer import checkpoint
from verl_comprl.trainer.engines import Engines
from verl_comprl.trainer.extractor_runtime import ExtractorRuntime, extractor_view
from verl_comprl.trainer.frozen_extractor import FrozenExtractor, make_frozen_extractor
from verl_comprl.trainer.learner import ExtractorLearner

Metrics = dict[str, float]


class NoExperienceRuntime:
    """The runtime of an arm without experience: every method does nothing."""

    def open(self, folder: Path | None) -> None:
        """Open the bank.

        Args:
            folder: Checkpoint that is resumed, so that the bank keeps what it holds; None for a new run.
        """

    def start(self, engines: Engines) -> None:
        """Start engines and servers, which takes long, unless ``engines`` has them."""

    def connect(self, folder: Path | None, actor: LLMServerClient) -> None:
        """Restore from a checkpoint, if there is one, and start distillation.

        Args:
            folder: The checkpoint; None for a new run.
            actor: A client of the actor's servers, which have the actor's weights by now. It must survive their pauses.
        """

    def begin(self) -> None:
        """Start training the extractor in the background."""

    def collect(self, step: int) -> Metrics:
        """Close an actor step and return its metrics."""
        return {}

    def finish(self) -> Metrics:
        """Wait for pending distillations at the end of a run and return the totals."""
        return {}

    def stop(self) -> None:
        """Let a running update finish, then stop training the extractor."""

    def bank_checksum(self) -> str | None:
        """Return the checksum of the bank's current content."""

    def save(self, step: int) -> None:
        """Write our part of a checkpoint."""

    def close(self) -> None:
        """Close the bank."""


class ExperienceRuntime(NoExperienceRuntime):
    """Experience manager, extractor and learner of a run."""

    def __init__(self, config: DictConfig) -> None:
        """Start the manager, without waiting for it.

        Args:
            config: The run's config.
        """
        self._config = config
        self._comprl = comprl_config(config)
        self._frozen = None if self._comprl.has_extractor_engine else make_frozen_extractor(config)
        self._learner: ExtractorLearner | None = None
        self.manager, self._loaded = start_manager(config)
        self._is_open = False

    def open(self, folder: Path | None) -> None:
        """Open the bank, which fails at once if another run has it open.

        Args:
            folder: Checkpoint that is resumed, so that the bank keeps what it holds; None for a new run.
        """
        if folder is not None:
            checkpoint.check(folder, has_engine=self._frozen is None)
        if self._frozen is not None:
            self._frozen.check()
        wait_for(self._loaded)
        open_bank(self.manager, self._config, keep_content=folder is not None)
        self._is_open = True

    def start(self, engines: Engines) -> None:
        """Start the extractor's engine and server, or take them over, unless it has none."""
        if self._frozen is not None:
            self.extractor: ExtractorRuntime | FrozenExtractor = self._frozen
            return
        self.extractor = engines.extractor(extractor_view(self._config))
        self._learner = ExtractorLearner(self.extractor, self.manager)

    def connect(self, folder: Path | None, actor: LLMServerClient) -> None:
        """Restore from ``folder``, copy the weights to the extractor's server and connect it to the manager."""
        if folder is not None:
            checkpoint.load(folder, self.extractor, self.manager)
            if self._config.trainer.val_only:  # a checkpoint may be evaluated with another bank than its own
                wait_for(self.manager.replace_bank.remote(self._comprl.initial_bank))
        self.extractor.publish_weights()
        extractor = self.extractor
        wait_for(self.manager.connect.remote(extractor.generate(actor), extractor.model, extractor.prompt_length))

    def begin(self) -> None:
        """Start training the extractor in the background, unless it is frozen in this arm."""
        if self._learner is not None and self._comprl.extractor.train:
            self._learner.start()

    def collect(self, step: int) -> Metrics:
        """Turn the step's outcomes into samples, and start a merge if one is due."""
        collected = wait_for(self.manager.collect.remote(step))
        self._print_warnings()
        interval = self._comprl.merge.every
        if interval > 0 and step % interval == 0:
            wait_for(self.manager.merge.remote())  # until it has started, so that a checkpoint knows of it
        return _named(collected) | self._learned()

    def finish(self) -> Metrics:
        """Wait for the rest of the queue, at most ``comprl.drain_timeout`` seconds."""
        wait_for(self.manager.drain.remote(self._comprl.drain_timeout))
        self._print_warnings()
        return _named(wait_for(self.manager.metrics.remote())) | self._learned()

    def _learned(self) -> Metrics:
        return self._learner.metrics() if self._learner is not None else {}

    def _print_warnings(self) -> None:
        """Print what the manager warned about; the launcher redirects it to train.log."""
        for warning in wait_for(self.manager.take_warnings.remote()):
            print(f"experience manager: {warning}")

    def stop(self) -> None:
        """Let a running update finish, then stop training the extractor."""
        if self._learner is not None:
            self._learner.stop()
        with suppress(RayError):  # the manager may be what has failed
            self._print_warnings()

    def bank_checksum(self) -> str:
        """Return the checksum of the bank's entries with their counters."""
        return wait_for(self.manager.bank_checksum.remote())

    def save(self, step: int) -> None:
        """Write extractor, bank, queue, buffer and counters."""
        checkpoint.save(self._config, step, self.extractor, self.manager)

    def close(self) -> None:
        """Close the bank and end the manager."""
        try:
            if self._is_open:
                wait_for(self.manager.close.remote())
        finally:
            ray.kill(self.manager)


def _named(metrics: Metrics) -> Metrics:
    return {f"comprl/{name}": value for name, value in metrics.items()}
