"""verl's ``trainer.rollout_data_dir`` with episodes of our agent loop: one line per output."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted import ANSWER, GUIDE, MOVE_TURN, TOOL_TURN, ScriptedManager, ScriptedServer, change_settings, play, row
from tensordict import TensorDict
from verl.trainer.ppo.v1 import agent_loop_tq, trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

VERDICT = "<verdict>accept</verdict>"


class Shelf:
    """TransferQueue's two functions that are used here, in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    async def async_kv_batch_put(self, *, keys: list[str], fields: TensorDict, tags: Any, partition_id: str) -> None:
        assert partition_id == "train" and len(tags) == len(keys)
        self.rows |= {key: fields[index] for index, key in enumerate(keys)}

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        rows = [self.rows[key] for key in keys]
        ragged = ("prompts", "responses", "rm_scores")
        found: Any = TensorDict(batch_size=[len(keys)])
        for name in select_fields:
            values = [row[name] for row in rows]
            found[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged) if name in ragged else values
        return found


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf()
    for module in (agent_loop_tq, trainer_base):
        monkeypatch.setattr(module, "tq", shelf)
    return shelf


def worker() -> Any:
    """Return verl's worker with what it asks other processes for left out; our episodes bring their reward."""
    kind: Any = agent_loop_tq.AgentLoopWorkerTQ
    found = object.__new__(kind.__ray_metadata__.modified_class)

    async def nothing(*_: Any, **__: Any) -> None:
        return None

    found._compute_score = found._compute_teacher_logprobs = nothing
    found._compute_multi_modal_inputs = lambda *_: {}
    found._compute_position_ids = lambda ids, *_: torch.arange(ids.shape[1]).unsqueeze(0)
    return found


def trainer(tokenizer: Any) -> Any:
    found: Any = object.__new__(PPOTrainerSync)
    found.tokenizer, found.global_steps, found._dump_futures = tokenizer, 5, []
    found._dump_executor = ThreadPoolExecutor(1)
    return found


async def test_a_line_per_output_with_what_the_model_read_and_wrote(
    make_loop: Any, tokenizer: Any, shelf: Shelf, tmp_path: Path
) -> None:
    storing = worker()
    for session, turns in ((0, [VERDICT, TOOL_TURN, *[MOVE_TURN] * 3]), (1, [MOVE_TURN] * 3)):
        loop = make_loop(ScriptedServer(tokenizer, turns), ScriptedManager(GUIDE, ANSWER), n=2)
        change_settings(loop, "actor_critic", enabled=True, train=True)
        columns = row(session)
        outputs = await play(loop, **columns)
        await storing._agent_loop_postprocess(outputs, False, **columns)
    assert sorted(shelf.rows) == ["u_0_0", "u_0_1", "u_1_0"]

    writing = trainer(tokenizer)
    batch = SimpleNamespace(keys=["u_1_0", "u_0_1", "u_0_0"], partition_id="train")
    writing._log_rollout_data(batch, {}, str(tmp_path))
    writing._shutdown_dump_executor()
    judged, guided, free = map(json.loads, (tmp_path / "5.jsonl").read_text().splitlines())
    assert [line["uid"] for line in (judged, guided, free)] == ["u_0_0", "u_0_1", "u_1_0"]
    assert {line["step"] for line in (judged, guided, free)} == {5}
    assert judged["output"] == VERDICT and guided["output"].count(MOVE_TURN) == 3
    entry = str(GUIDE.text)
    assert entry in judged["input"] and entry in guided["input"] and entry not in free["input"]
    # A verdict has the reward of its episode, and the rows of our environments no ground truth.
    assert judged["score"] == guided["score"] and {line["gts"] for line in (judged, guided, free)} == {""}
