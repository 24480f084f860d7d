"""Record of an episode for the run's folder, sent from agent loop workers to the trainer (docs/run_folder.md).

It travels through a partition of verl's TransferQueue, as the episode's tokens do: workers may be on other nodes, and
an asynchronous trainer trains on an episode, and may resume, long after it ended. The receiver is
``trainer/run_folder/episode_log.py``.
"""

import asyncio
import json
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transfer_queue as tq

from verl_comprl.errors import panics_as_errors
from verl_comprl.record.lines import encode
from verl_comprl.record.redaction import redactor
from verl_comprl.rollout.episode import EVALUATION_KEY, TIMERS, TOKENS, Asked, Episode
from verl_comprl.rollout.failures import FailedRollout

if TYPE_CHECKING:
    from verl_comprl.rollout.conversation import Conversation

logger = logging.getLogger(__name__)

PARTITION = "comprl_episodes"
FIELD = "record"
FAILED_TAG, EVALUATION_TAG = "failed", "evaluation"


def pack(line: bytes) -> torch.Tensor:
    """Return a record's JSON as a tensor of bytes, the form in which TransferQueue neither pickles nor copies it."""
    return torch.frombuffer(bytearray(zlib.compress(line, 1)), dtype=torch.uint8)


def unpack(data: torch.Tensor) -> bytes:
    """Return the JSON that :func:`pack` packed."""
    return zlib.decompress(data.numpy().tobytes())


class EpisodeRecorder:
    """Sends the records of one worker process."""

    def __init__(self, put: Callable[..., Awaitable[Any]] = tq.async_kv_put) -> None:
        """Send with ``put``, which has the signature of TransferQueue's."""
        self._put = put
        self._complained = False

    async def record(
        self, row: Mapping[str, Any], episode: Episode | None, tokenizer: Any, failure: FailedRollout | None
    ) -> None:
        """Send the record of an episode that has ended; never raises.

        Args:
            row: Its dataset row with verl's columns.
            episode: None if the row is too broken for one.
            tokenizer: The actor's.
            failure: Its failure, if it failed.
        """
        try:
            # In a thread: decoding and compressing would hold up the other episodes of this worker.
            with panics_as_errors():
                data = await asyncio.to_thread(self.packed, row, episode, tokenizer, failure)
            tag = {FAILED_TAG: failure is not None, EVALUATION_TAG: bool(row.get(EVALUATION_KEY, False))}
            await self._put(
                key=f"{row.get('uid')}_{row.get('session_id')}", partition_id=PARTITION, fields={FIELD: data}, tag=tag
            )
        except Exception:  # the trainer counts an episode that it trains on and has no record of
            if not self._complained:
                logger.exception("an episode could not be recorded")
            self._complained = True

    def packed(
        self, row: Mapping[str, Any], episode: Episode | None, tokenizer: Any, failure: FailedRollout | None
    ) -> torch.Tensor:
        """Return the record of an episode as it is sent; the arguments are those of :meth:`record`.

        Without the secrets of this process's variables, which the trainer's need not have.
        """
        return pack(redactor()(encode(episode_record(row, episode, tokenizer, failure))))


def episode_record(
    row: Mapping[str, Any], episode: Episode | None, tokenizer: Any, failure: FailedRollout | None
) -> dict[str, Any]:
    """Return what is recorded of an episode; the trainer adds what it knows only later."""
    record = {
        "id": f"{row.get('uid')}_{row.get('session_id')}",
        "prompt": str(row.get("uid")),
        "session": int(row.get("session_id", -1)),
        "kind": "evaluation" if row.get(EVALUATION_KEY, False) else "training",
        "submitted": int(row.get("global_steps", -1)),
        "task": str(row.get("data_source", "")),
        "gts": _ground_truth(row),
        "error": _error(failure),
        "advantage": None,
        "ended_at": time.time(),
    }
    happened = _what_happened(episode or Episode({}, slot_guided=False), tokenizer)
    if failure:
        happened["outcome"] = None  # the environment's latest word on it, which is no outcome
    return record | _environment(row) | happened


def _environment(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the episode was played in; the row may be what it failed of."""
    extra = row.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    options = None
    with suppress(ValueError, TypeError):
        options = json.loads(extra.get("environment_options", ""))
    return {"environment": str(extra.get("environment", "")), "options": options, "seed": extra.get("seed")}


def _what_happened(episode: Episode, tokenizer: Any) -> dict[str, Any]:
    conversation, info = episode.conversation, episode.info
    return {
        "goal": info.get("goal", ""),
        "instructions": episode.instructions if "raw_prompt" in episode.row else "",
        "slot_guided": episode.slot_guided,
        "guided": episode.guided,
        "guide": _guide(episode),
        "turns": [
            {
                "observation": turn.observation,
                "questions": _questions(episode, number),
                "response": turn.response,
                "valid": valid,
                "reward": reward,
            }
            for number, (turn, (valid, reward)) in enumerate(zip(episode.turns, episode.actions, strict=False))
        ],
        "unfinished": _unfinished(episode),
        "final_observation": episode.final_observation,
        **_tokens_as_text(conversation, tokenizer),
        "score": episode.reward,
        "outcome": {"success": bool(info["success"]), "score": float(info["score"])} if "success" in info else None,
        "reported": episode.reported,
        "invalid_actions": episode.invalid_actions,
        "tool_calls": episode.tool_calls,
        "cut_turns": episode.cut_turns,
        "seconds": {
            **{part: episode.timing.get(timer, 0.0) for part, timer in TIMERS.items()},
            "total": time.perf_counter() - episode.started,
        },
        "tokens": {part: episode.tokens[part] for part in TOKENS},
        "weight_versions": _span(conversation.weight_versions if conversation else ()),
    }


def _guide(episode: Episode) -> dict[str, Any] | None:
    if not episode.slot_guided:
        return None
    return {
        "status": episode.guide.status,
        "entry": episode.guide.experience_id,
        "call": episode.guide.record_id,
        "entry_text": episode.entry_text,
        "text": episode.guide.text,
        "verdict": episode.judgement.verdict if episode.judgement else None,
    }


def _questions(episode: Episode, turn: int) -> list[dict[str, Any]]:
    return [_question(asked) for asked in episode.all_asked if asked.turn == turn]


def _question(asked: Asked) -> dict[str, Any]:
    answer = asked.answer
    return {
        "query": asked.question.query,
        "answer": asked.question.answer,
        "status": asked.status,
        "entry": answer.experience_id if answer else None,
        "entry_text": answer.experience_text if answer else "",
        "call": answer.record_id if answer else None,
    }


def _unfinished(episode: Episode) -> dict[str, Any] | None:
    if episode.unfinished is None:
        return None
    return {
        "observation": episode.unfinished.observation,
        "questions": _questions(episode, len(episode.turns)),
    }


def _tokens_as_text(conversation: "Conversation | None", tokenizer: Any) -> dict[str, Any]:
    """Decode prompt and response, the latter piece by piece, so that it is known which characters carry loss."""
    if conversation is None:
        return {"input": "", "output": "", "loss_spans": []}
    # Arrays: of a list, transformers looks at every number before it decodes.
    prompt, response = np.asarray(conversation.prompt_ids), np.asarray(conversation.response_ids)
    output, spans, at = "", [], 0
    for carries_loss, tokens in groupby(conversation.mask):
        count = len(list(tokens))
        piece = tokenizer.decode(response[at : at + count])
        if carries_loss:
            spans.append([len(output), len(output) + len(piece)])
        output, at = output + piece, at + count
    return {"input": tokenizer.decode(prompt), "output": output, "loss_spans": spans}


def _span(versions: Sequence[int]) -> list[int] | None:
    return [int(min(versions)), int(max(versions))] if versions else None


def _error(failure: FailedRollout | None) -> dict[str, str] | None:
    return failure and {"boundary": failure.boundary.value, "type": failure.type, "text": failure.text}


def _ground_truth(row: Mapping[str, Any]) -> Any:
    model = row.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, Mapping) else None
    return truth.tolist() if isinstance(truth, np.ndarray) else truth
