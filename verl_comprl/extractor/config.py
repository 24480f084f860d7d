"""Settings of the extractor's learning and of the distillation queue; bounds and meaning stand with each field."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, NonPositiveFloat, PositiveInt

from verl_comprl.settings import FilePath, Settings, Share, interpolated


class QueueConfig(Settings):
    """Finished episodes that wait for distillation (``comprl.queue``)."""

    folder: FilePath = interpolated(..., "${trainer.default_local_dir}/queue", min_length=1)
    """Folder for episodes that do not fit in memory and for those given up (`dead_letters.jsonl`)."""

    capacity: PositiveInt = 4096
    """Episodes in memory."""

    overflow: Literal["spill", "drop_oldest"] = "spill"
    """What happens to one more: it is written to disk (`spill`), or the one that waited longest is dropped
    (`drop_oldest`)."""

    max_attempts: PositiveInt = 5
    """Attempts to distil one episode before it is given up."""

    backoff_seconds: NonNegativeFloat = 2.0
    """Seconds to wait after the first failure; doubled after each further one up to a minute, and randomised by half so
    that episodes that failed together are not retried together."""


class ExtractorConfig(Settings):
    """How the extractor learns and where it runs (``comprl.extractor``); its model is the subtree ``extractor``."""

    train: bool = True
    """Whether the extractor is trained."""

    distill: bool = True
    """Whether it turns finished episodes into experience."""

    distill_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the finished episodes that it turns into experience; the others are only counted. Lower it when entries
    are written faster than they are used (metric `bank/uses_per_entry`)."""

    batch_size: PositiveInt = 64
    """Samples of one CISPO update, which waits until the buffer holds them."""

    max_answer_share: Share = 0.5
    """Largest share of a batch that is answers to `search_and_ask`, as long as samples of entries can take their
    place."""

    alpha: NonNegativeFloat = 0.5
    """α of Eq. 7: how fast the weight of a record falls with the number of times it was trained on."""

    cooldown: NonNegativeFloat = 1
    """δ of Eq. 7, in actor steps: a record trained on more recently has weight 0."""

    max_staleness: NonNegativeInt | None = None
    """Updates by which the weights that wrote a text may lag behind those trained on it; older samples are left out and
    counted. Null allows any lag."""

    utility: Literal["outcome", "relative"] = "outcome"
    """Reward of one use of a text: `outcome` is +1 or -1 for the guided episode; `relative` subtracts the mean outcome
    of the same prompt's free half (the paper found it to be worse)."""

    format_failure_reward: NonPositiveFloat = -1.0
    """Reward of an answer that cannot be parsed. At most a quarter of a batch is such answers."""

    max_operations: PositiveInt = 3
    """Operations allowed in one answer."""

    votes: bool = False
    """Whether it may also vote on the entries that guided an episode; votes are stored and shown, nothing more."""

    list_nearest: NonNegativeInt = 3
    """Entries that a distillation lists in addition to those which the episode read: those of the scope that are most
    similar to goal and outcome. It may update them instead of adding a near-copy; 0 lists none."""

    distillation_workers: PositiveInt = 16
    """Episodes that are distilled concurrently."""

    nnodes: PositiveInt = 1
    """Nodes of its own, in addition to those of `trainer`."""

    n_gpus_per_node: PositiveInt = 1
    """Device slots on each of them."""

    cpu_priority: Literal["normal", "idle"] = "normal"
    """Priority of its engine and server for the processors: with `idle` they get what everything else leaves over, so
    that the actor does not wait for them where both run on the same cores. Answers to `search_and_ask` then come late
    while all cores are busy."""


class MergeConfig(Settings):
    """Periodic clean-up of the bank by the extractor (``comprl.merge``)."""

    every: NonNegativeInt = 5
    """Actor steps between two passes; 0 never merges."""

    chunk: PositiveInt = 5
    """Neighbouring entries in one call, which reads at most as many of the previous call's output in addition."""

    workers: PositiveInt = 4
    """Parts of the bank that are merged concurrently; within a part, the output of a call is carried into the next."""
