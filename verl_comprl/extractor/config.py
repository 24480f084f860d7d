"""Settings of the extractor's learning and of the distillation queue; bounds and meaning stand with each field."""

from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    NonPositiveFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

from verl_comprl.settings import FilePath, Settings, Share, checked_url, interpolated

KEY_REFUSED = (401, 403)
"""Statuses by which a server says that the key is missing or wrong."""


class QueueConfig(Settings):
    """Finished episodes that wait for distillation (``comprl.queue``)."""

    folder: FilePath = interpolated(..., "${trainer.default_local_dir}/queue", min_length=1)
    """Folder of the episodes that wait (`waiting.jsonl`), of those given up (`dead_letters.jsonl`), and of the ids of
    those that were counted (`reported.jsonl`); locked while a run has it."""

    capacity: PositiveInt = 4096
    """Episodes in memory."""

    overflow: Literal["spill", "drop_oldest"] = "spill"
    """What happens to one more: it is on disk only (`spill`), or the one that waited longest is dropped
    (`drop_oldest`)."""

    max_attempts: PositiveInt = 5
    """Attempts to distil one episode before it is given up. None is counted while extractor, store or embedder are
    away."""

    backoff_seconds: NonNegativeFloat = 2.0
    """Seconds to wait after the first failure; doubled after each further one up to a minute, and randomised by half so
    that episodes that failed together are not retried together."""


class EndpointConfig(Settings):
    """An OpenAI-compatible endpoint that answers the calls with ``backend: endpoint`` (``comprl.extractor.endpoint``).

    Lengths and sampling of a call are those of ``extractor.rollout``, as with the other back ends.
    """

    url: str = ""
    """Up to and with the version: `http://127.0.0.1:8000/v1`."""

    model: str = ""
    """The endpoint's name of its model."""

    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the endpoint's key, which is read from nowhere else; empty for an endpoint
    without a key."""

    timeout: PositiveFloat = 120.0
    """Seconds for which the endpoint may be silent. All of an answer may take ten times as long: some services send
    blank lines while a request waits its turn, or the model thinks."""

    retries: NonNegativeInt = 4
    """Further attempts of a request after status 408, 409, 429 or 5xx, a time-out or a lost connection. The pause
    before each is what the endpoint asks for (`Retry-After`, up to two minutes), otherwise 0.5 s, then doubled up to
    8 s. After the last one, or if the endpoint asks for a longer pause, the extractor is away if it took no requests,
    otherwise the call has failed: an episode is distilled again later (`comprl.queue`)."""

    max_concurrent: PositiveInt = 32
    """Requests at the same time; more wait."""

    length_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name under which the endpoint takes the length of an answer (`extractor.rollout.response_length`); newer models
    of OpenAI know the second only."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return checked_url(url)


class ExtractorConfig(Settings):
    """How the extractor learns and where it runs (``comprl.extractor``); its model is the subtree ``extractor``."""

    backend: Literal["own", "endpoint", "actor"] = "own"
    """Model that answers the extractor's calls. `own`: a second model with engine and server, the subtree `extractor`.
    `endpoint`: an OpenAI-compatible endpoint. `actor`: the actor's server with its current weights. The last two start
    nothing, need no device slots and are not trained (`train: false`)."""

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

    max_failures: NonNegativeInt = 5
    """Updates that may fail one after the other. Each is tried again after 5, 10, 20 … seconds, at most 5 minutes;
    after the last one the extractor is no longer trained and the run continues. 0: the first failure ends the run."""

    distillation_workers: PositiveInt = 16
    """Episodes that are distilled concurrently."""

    placement: Literal["own", "shared", "split"] = "own"
    """Where it runs. `own`: engine and server share slots of their own. `shared`: on the actor's slots, so that one GPU
    is enough; it is trained between the actor's update and the next rollouts. `split`: the engine has the slots below,
    its servers have others (`extractor.rollout.nnodes`, `extractor.rollout.n_gpus_per_node`) and answer while it is
    trained."""

    nnodes: PositiveInt = 1
    """Nodes on which it is trained, in addition to those of `trainer`; not used with `placement: shared`."""

    n_gpus_per_node: PositiveInt = 1
    """Device slots on each of them."""

    node_resource: str = ""
    """Name of a Ray resource that its nodes must have, such as `comprl_node_1`; empty takes any node."""

    slice_seconds: PositiveFloat = 60.0
    """With `placement: shared`, seconds of each actor step in which further updates begin while full batches wait. The
    last one is finished; if it takes longer than ten times these seconds, and than ten minutes, it counts as failed."""

    cpu_priority: Literal["normal", "idle"] = "normal"
    """Priority of its engine and server for the processors: with `idle` they get what everything else leaves over, so
    that the actor hardly waits for them where both run on the same cores. Answers to `search_and_ask` then come late
    while all cores are busy."""

    endpoint: EndpointConfig = EndpointConfig()


class MergeConfig(Settings):
    """Periodic clean-up of the bank by the extractor (``comprl.merge``)."""

    every: NonNegativeInt = 5
    """Actor steps between two passes; 0 never merges."""

    chunk: PositiveInt = 5
    """Neighbouring entries in one call, which reads at most as many of the previous call's output in addition."""

    workers: PositiveInt = 4
    """Parts of the bank that are merged concurrently; within a part, the output of a call is carried into the next."""
