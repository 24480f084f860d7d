"""All settings of verl-comprl: the config group ``comprl`` as typed objects.

Groups that belong to the bank or to the extractor are declared with them (``experience.config``, ``extractor.config``).
``config/comprl/default.yaml`` and ``docs/configuration.md`` are generated from here (``config.generate``).
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from env_adapters.host.host import Isolation
from verl_comprl.experience.config import BankConfig, EmbedderConfig
from verl_comprl.extractor.config import ExtractorConfig, MergeConfig, QueueConfig
from verl_comprl.settings import Settings, Share


class EnvironmentsConfig(Settings):
    """Where the actor's environments run, in each agent loop worker (``comprl.environments``)."""

    isolation: Isolation = "auto"
    """`process`: one process per running episode; `thread`: one thread; `auto`: threads for families that may share a
    process, processes for the others."""

    reset_timeout: PositiveFloat = 300.0
    """Seconds for making or resetting an environment."""

    step_timeout: PositiveFloat = 120.0
    """Seconds for one step of an environment."""

    episode_timeout: PositiveFloat = 3600.0
    """Seconds for a whole episode, the actor's generation included; after that the rollout is given up."""

    max_idle: PositiveInt = 64
    """Environments kept open for later episodes."""


class SearchAndAskConfig(Settings):
    """The tool by which a guided actor asks for experience during an episode (``comprl.search_and_ask``)."""

    max_calls: NonNegativeInt = 2
    """Calls per episode; 0 does not offer the tool."""

    timeout: PositiveFloat = 60.0
    """Seconds for one answer; after that the actor continues without it."""

    reward_entry: bool = False
    """Whether the outcome of an episode also rewards the extractor's call that wrote the entry an answer rests on; the
    call that wrote the answer is always rewarded."""


class ActorCriticConfig(Settings):
    """Before its first turn the actor judges the entry it was given (``comprl.actor_critic``; App. B.1, Eq. 8).

    It accepts, refines or rejects it; the verdict's score of 1, 0.5 or 0 is added to the entry's reward.
    """

    enabled: bool = False
    """Whether the actor judges."""

    train: bool = False
    """Whether the tokens of its judgement are trained like those of the episode."""

    max_tokens: PositiveInt = 1024
    """Tokens of a judgement."""

    timeout: PositiveFloat = 60.0
    """Seconds for a judgement; after that the entry is used as it is."""


class SelfDistillationConfig(Settings):
    """Teaches the actor to do without experience what it did with it (``comprl.self_distillation``).

    Successful guided episodes above the mean of the free half become next-token targets, with experience and questions
    removed.
    """

    weight: NonNegativeFloat = 0.0
    """Weight of such an episode's loss, the mean of -log π over its tokens, relative to the policy loss of one rollout
    with advantage 1; 0 is off."""

    source: Literal["guided", "free"] = "guided"
    """Episodes to learn from: `guided`, or as a control `free`: the actor imitates what it did without experience."""

    every: PositiveInt = 1
    """Applied every this many actor steps."""


class RecordConfig(Settings):
    """Episodes and calls of the extractor, kept in the run's folder (``comprl.record``; docs/run_folder.md)."""

    enabled: bool = True
    """Whether they are written to `episodes/` and `extractor_calls/`."""

    keep_steps: PositiveInt | None = 1000
    """Steps to keep in each of these folders, the latest ones; null keeps all. 96 episodes of 8 turns take about
    150 KB."""


class WatchdogConfig(Settings):
    """Says on the terminal and in `train.log` which part of a run waits for what (``comprl.watchdog``)."""

    after: NonNegativeFloat = 600.0
    """Report any phase or wait of a run that takes more seconds than this. 0 switches all of the watchdog off: a run
    may then wait without end for what has died or hangs."""

    factor: PositiveFloat = 3.0
    """Report it only if it also takes more than this multiple of the median of its last sixteen durations."""

    end_after: NonNegativeFloat = 3600.0
    """End the run with an error if the phase does not get on for so many seconds more; 0 is never. A finished rollout
    counts as progress. An hour on top of `after`, since a single rollout may take
    `environments.episode_timeout` without any other sign: set it higher where that is, or where one update of the actor
    takes longer. Waits that have a limit of their own (`work_timeout`) do not count. Likewise the
    limit for a store or embedder that is away while the experience manager is to be restarted."""


class ComprlConfig(Settings):
    """Everything verl-comprl adds to verl's config, except the extractor's model (the subtree ``extractor``)."""

    arm: str = "complementary"
    """Name of the arm, for logs. Choose one with the config group `arm` (`arm=baseline`)."""

    experience: bool = True
    """Whether experience is used at all. If not, neither the manager nor the extractor is started."""

    initial_bank: str = ""
    """A snapshot (a folder, or `hf://datasets/<user>/<name>`) whose entries the bank of a new run starts with."""

    guided_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of each prompt's K rollouts that are guided by experience; 1 guides all."""

    warmup_steps: NonNegativeInt = 5
    """First actor steps in which no rollout is guided and the bank is filled."""

    guide_per: Literal["rollout", "prompt"] = "rollout"
    """What an entry is retrieved for. `rollout`: the guided rollouts of a prompt may get different entries, so that
    more of the bank is tried. `prompt`: they get the same one (Eq. 4 of the paper), so that their advantages compare
    actions and not entries."""

    exploration: Share = 0.1
    """Share of guided training episodes (of prompts, with `guide_per: prompt`) that get one of the least used entries
    of the episode's task (if there are none, of the scope) at random instead of the best one: otherwise nothing is
    known about entries that retrieval passes over. 0 in the paper."""

    max_turn_tokens: PositiveInt = 4096
    """Tokens of one turn of the actor."""

    invalid_action_penalty: NonNegativeFloat = 0.0
    """Subtracted from the reward for every invalid action, in training only. A small one keeps a policy's format where
    most episodes fail: without it a failure through bad format costs no more than any other failure. Success, which the
    extractor is rewarded with, stays as it is."""

    poll_interval: PositiveFloat = 0.5
    """Seconds between checks for finished rollouts (verl's default is 2)."""

    drain_timeout: NonNegativeFloat = 60.0
    """Seconds that the end of a run waits for the rest of the distillation queue."""

    work_timeout: PositiveFloat = 3600.0
    """Seconds that the run waits at most for one long piece of work: the start of the extractor, an update of it,
    copying its weights to its servers, one of its generations in the background, saving or loading it, opening, saving
    or restoring the bank. What takes longer counts as failed. Generous, since nothing but a hanging process should
    reach it; a very large model may need more."""

    environments: EnvironmentsConfig = EnvironmentsConfig()
    search_and_ask: SearchAndAskConfig = SearchAndAskConfig()
    actor_critic: ActorCriticConfig = ActorCriticConfig()
    self_distillation: SelfDistillationConfig = SelfDistillationConfig()
    bank: BankConfig
    queue: QueueConfig
    embedder: EmbedderConfig = EmbedderConfig()
    extractor: ExtractorConfig = ExtractorConfig()
    merge: MergeConfig = MergeConfig()
    record: RecordConfig = RecordConfig()
    watchdog: WatchdogConfig = WatchdogConfig()

    @property
    def has_extractor_engine(self) -> bool:
        """Whether the run has a second model of its own, with engine and server."""
        return self.experience and self.extractor.backend == "own"

    @property
    def shares_slots(self) -> bool:
        """Whether that model is trained on the actor's device slots, in turns."""
        return self.has_extractor_engine and self.extractor.placement == "shared"

    @property
    def update_timeout(self) -> float:
        """Seconds that an update of that model may take, or copying its weights to its servers.

        In a turn the actor waits for it, so that an hour would be too long; but one that is only slow would continue on
        the device of the rollouts, without its servers: ten times the turn, and never less than ten minutes.
        """
        turn = max(600.0, 10 * self.extractor.slice_seconds) if self.shares_slots else self.work_timeout
        return min(turn, self.work_timeout)
