"""``comprl bank distill`` with a chat endpoint over HTTP: a bank from episodes that were played already."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, Messages, refusal
from fake_embedder import FakeEmbedder
from qdrant_double import QdrantDouble

from verl_comprl.cli.bank import embedder as bank_embedder
from verl_comprl.cli.main import main
from verl_comprl.experience import Add, BankConfig, ExperienceBank, Merge, Return, Update, derive_id
from verl_comprl.extractor import offline
from verl_comprl.extractor.trajectories import read_episodes

Run = Callable[..., Any]
CALL: dict[str, Any] = {"task": "vaults", "environment": "e", "step": 1, "weight_version": 0}


def lesson(messages: Messages) -> str:
    """Answer a distillation: the episode's number is its goal's."""
    number = int(re.search(r"vault number (\d+)", messages[1]["content"])[1])  # type: ignore[index]
    if number == 2:
        return 'Nothing new. <answer>[{"operation": "return"}]</answer>'
    if number == 3:
        return "I do not know."
    operation = {"operation": "add", "title": f"vault {number}", "content": f"press {number} first"}
    return f"<answer>{json.dumps([operation])}</answer>"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatEndpoint]:
    async def fake(model: str = "builtin", url: str = "", **_: Any) -> FakeEmbedder:
        embedder = FakeEmbedder("fake" if model == "builtin" else model)
        if not url:
            embedder.identity["weights"] = "some"  # as a model in this process has
        return embedder

    monkeypatch.setattr(bank_embedder, "make_embedder", fake)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    found = ChatEndpoint(lambda messages: "yes" if len(messages) == 1 else lesson(messages))
    found.server.start()
    yield found
    found.server.stop()


@pytest.fixture
def episodes(tmp_path: Path) -> Path:
    file = tmp_path / "episodes.jsonl"
    lines = (
        {
            "id": f"episode-{number}",
            "task": "vaults",
            "goal": f"open vault number {number}",
            "success": number % 2 == 0,
            "messages": [{"role": "user", "content": "a door"}, {"role": "assistant", "content": "push"}],
        }
        for number in range(6)
    )
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def arguments(endpoint: ChatEndpoint, bank: Path, episodes: Path) -> list[object]:
    return ["distill", "--path", bank, "--episodes", episodes, "--endpoint", endpoint.url, "--model", "tiny"]


def test_a_file_without_episodes_makes_no_bank(comprl_bank: Run, endpoint: ChatEndpoint, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("\n")
    done = comprl_bank(*arguments(endpoint, tmp_path / "bank", file))
    assert (done.code, done.err) == (2, f"comprl bank: --episodes {file} has no episode to distil\n")
    assert not (tmp_path / "bank").exists() and not endpoint.requests


@pytest.mark.parametrize("wrong", ["-5", "-0.1", "nan", "inf", "x"])
def test_a_temperature_that_no_endpoint_takes_is_refused(
    wrong: str, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = map(str, [*arguments(endpoint, tmp_path / "bank", episodes), f"--temperature={wrong}"])
    with pytest.raises(SystemExit) as ended:
        main(["bank", *given])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and f"--temperature: must be a finite number of at least 0, got {wrong}" in shown


def test_episodes_become_entries_with_their_provenance(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    done = comprl_bank(*arguments(endpoint, tmp_path / "bank", episodes))
    assert done.code == 1, done.err  # for the answer that cannot be read
    assert done.out == (
        "6 episodes: 4 gave experience, 1 had nothing new, 1 gave an answer that cannot be read; "
        "the bank has 4 entries\n"
    )
    entries = {entry["title"]: entry for entry in comprl_bank("list", "--path", tmp_path / "bank", "--json").objects}
    assert set(entries) == {"vault 0", "vault 1", "vault 4", "vault 5"}
    assert entries["vault 4"]["content"] == "press 4 first" and entries["vault 4"]["tasks"] == ["vaults"]
    assert (
        entries["vault 4"]["source_trajectory"].startswith("episode-4:")
        and entries["vault 4"]["source_success"] is True
    )
    assert entries["vault 1"]["source_success"] is False
    assert endpoint.keys == {"Bearer secret"}


def test_neither_endpoint_nor_bank_gets_the_keys_that_an_episode_shows(
    comprl_bank: Run, endpoint: ChatEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRL_REDACT", "")  # which the command extends
    monkeypatch.setenv("HUB_TOKEN", "canary-of-the-hub")
    monkeypatch.setenv("MY_ENDPOINT", "canary-of-the-endpoint")
    said = "vault number 1, HUB_TOKEN=canary-of-the-hub MY_ENDPOINT=canary-of-the-endpoint"

    def repeat(messages: Messages) -> str:
        operation = {"operation": "add", "title": "seen", "content": messages[-1]["content"][-900:]}
        return f"<answer>{json.dumps([operation])}</answer>"

    endpoint.reply = repeat
    file = tmp_path / "episodes.jsonl"
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "push"}]
    file.write_text(json.dumps({"id": "1", "task": "vaults", "goal": said, "success": True, "messages": messages}))
    done = comprl_bank(*arguments(endpoint, tmp_path / "bank", file), "--key-variable", "MY_ENDPOINT")
    assert done.code == 0, done.err
    assert endpoint.keys == {"Bearer canary-of-the-endpoint"}
    assert "HUB_TOKEN=***" in json.dumps(endpoint.requests) and "canary" not in json.dumps(endpoint.requests)
    kept = b"".join(file.read_bytes() for file in (tmp_path / "bank").rglob("*") if file.is_file())
    assert b"HUB_TOKEN=***" in kept and b"canary" not in kept


def test_the_same_command_goes_on_where_it_was(
    comprl_bank: Run,
    endpoint: ChatEndpoint,
    episodes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [*arguments(endpoint, tmp_path / "bank", episodes), "--workers", 1]
    reply, asked = endpoint.reply, []

    def failing(messages: Messages) -> str:
        asked.append(messages)
        if len(asked) > 3:  # the check and two episodes
            endpoint.failures.append(refusal(400))
        return reply(messages)

    endpoint.reply = failing
    monkeypatch.setattr(offline, "_GIVE_UP", 1)
    done = comprl_bank(*given)
    assert done.code == 1 and "3 episodes are not distilled, last failure: BadRequestError" in done.err
    endpoint.reply, before = reply, len(endpoint.requests)
    done = comprl_bank(*given)
    assert done.code == 1 and "6 episodes: 3 done before, 2 gave experience" in done.out
    assert len(endpoint.requests) - before == 1 + 3  # the check, and nothing that was done before


def test_an_answer_that_cannot_be_read_is_asked_for_again(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    given = [*arguments(endpoint, tmp_path / "bank", episodes), "--max-tokens", 40]
    done = comprl_bank(*given)
    assert done.code == 1 and "1 of the answers" in done.err and "--max-tokens than 40" in done.err
    with (tmp_path / "bank" / "distilled.jsonl").open("a") as journal:  # as older releases did
        journal.write(json.dumps({"id": read_episodes(episodes)[3].id, "became": "unreadable"}) + "\n")
    endpoint.reply = lambda messages: "yes" if len(messages) == 1 else '<answer>[{"operation": "return"}]</answer>'
    before = len(endpoint.requests)
    done = comprl_bank(*given)
    assert done.code == 0 and done.out.startswith("6 episodes: 5 done before, 1 had nothing new;")
    assert len(endpoint.requests) - before == 1 + 1 and "cannot be read" not in done.err
    done = comprl_bank(*given)
    assert done.code == 0 and done.out.startswith("6 episodes: 6 done before; the bank has 4 entries")


def test_an_episode_that_was_written_but_not_noted_is_not_written_twice(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    given = arguments(endpoint, tmp_path / "bank", episodes)
    comprl_bank(*given)
    journal = tmp_path / "bank" / "distilled.jsonl"
    kept = journal.read_text().splitlines()[:1]
    journal.write_text(kept[0] + '\n{"id": "epis')  # killed while it wrote
    done = comprl_bank(*given)
    assert re.match("6 episodes: [45] done before", done.out) and done.out.endswith("the bank has 4 entries\n")
    assert "5 done before" in comprl_bank(*given).out  # what is noted next is no part of the line that was cut off


def test_an_existing_bank_grows_and_lists_what_is_near(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, folder: Path
) -> None:
    done = comprl_bank(*arguments(endpoint, folder, episodes), "--embedder-url", "http://127.0.0.1:1")
    assert done.out.endswith("the bank has 10 entries\n"), done.err
    prompts = [request["messages"][1]["content"] for request in endpoint.requests if len(request["messages"]) == 2]
    assert all("1. " in prompt.partition("Other earlier experience:")[2] for prompt in prompts)


@pytest.mark.parametrize("failures", [1, 99])
def test_a_refused_key_is_an_error_of_one_line_before_anything_is_made(
    failures: int, comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    endpoint.failures += [refusal(401)] * failures
    done = comprl_bank(*arguments(endpoint, tmp_path / "bank", episodes))
    assert done.code == 2 and not (tmp_path / "bank").exists()
    assert done.err.count("\n") == 1 and "--model tiny" in done.err and "OPENAI_API_KEY" in done.err
    assert "secret" not in done.err


def test_an_endpoint_that_is_not_there_is_no_matter_of_its_key(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    given = arguments(endpoint, tmp_path / "bank", episodes)
    done = comprl_bank(*("http://127.0.0.1:1/v1" if value == endpoint.url else value for value in given))
    assert done.code == 2 and "--endpoint http://127.0.0.1:1/v1 with --model tiny: " in done.err
    assert "key is read from" not in done.err


def test_a_bad_line_is_named_before_anything_is_asked(comprl_bank: Run, endpoint: ChatEndpoint, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"success": true}\n')
    done = comprl_bank(*arguments(endpoint, tmp_path / "bank", tmp_path / "bad.jsonl"))
    assert done.code == 2 and "line 1: messages: Field required" in done.err and not endpoint.requests


def write_run(file: Path) -> list[str]:
    """Write two episodes with ids as a run gives them, without a checksum; returns the ids."""
    ids = [f"{derive_id(number)}_0" for number in (4, 5)]
    lines = (
        {"id": id, "goal": f"open vault number {number}", "outcome": {"success": True}}
        | {"turns": [{"observation": "a door", "response": "push"}]}
        for number, id in enumerate(ids, start=4)
    )
    file.write_text("\n".join(map(json.dumps, lines)))
    return ids


def test_what_an_older_journal_names_of_a_run_is_done(comprl_bank: Run, endpoint: ChatEndpoint, tmp_path: Path) -> None:
    """It has the ids without the checksum."""
    endpoint.reply = lambda messages: "yes" if len(messages) == 1 else '<answer>[{"operation": "return"}]</answer>'
    ids = write_run(tmp_path / "run.jsonl")
    given = arguments(endpoint, tmp_path / "bank", tmp_path / "run.jsonl")
    assert comprl_bank(*given).out.startswith("2 episodes: 2 had nothing new;")
    journal = tmp_path / "bank" / "distilled.jsonl"
    assert {json.loads(line)["id"].partition(":")[0] for line in journal.read_text().splitlines()} == set(ids)
    journal.write_text(json.dumps({"id": ids[0], "became": "return"}) + "\n")
    assert comprl_bank(*given).out.startswith("2 episodes: 1 done before, 1 had nothing new;")


def test_the_journal_of_another_bank_is_set_aside(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a collection of the same name on another server, or of one that was emptied."""
    monkeypatch.chdir(tmp_path)
    servers = [QdrantDouble().start() for _ in range(2)]
    given = arguments(endpoint, tmp_path / "bank", episodes)[3:]
    try:
        for server in servers:
            done = comprl_bank("distill", "--url", server.url, "--collection", "c", *given)
            assert done.out.startswith("6 episodes: 4 gave experience"), done.err
            assert ("so c.distilled.jsonl is of another one" in done.err) == (server is servers[1])
        again = comprl_bank("distill", "--url", servers[1].url, "--collection", "c", *given)
        assert again.out.startswith("6 episodes: 5 done before") and "another one" not in again.err
    finally:
        for server in servers:
            server.close()
    assert len([*tmp_path.glob("c.distilled.jsonl-*")]) == 1


def test_a_bank_that_is_empty_since_nothing_was_new_keeps_its_journal(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    endpoint.reply = lambda messages: "yes" if len(messages) == 1 else '<answer>[{"operation": "return"}]</answer>'
    given = arguments(endpoint, tmp_path / "bank", episodes)
    assert comprl_bank(*given).out.startswith("6 episodes: 6 had nothing new;")
    assert comprl_bank(*given).out.startswith("6 episodes: 6 done before;")


@pytest.mark.parametrize("later", ["as it was", "refined", "merged", "imported"])
def test_a_run_is_not_distilled_again_into_its_own_bank(
    comprl_bank: Run, endpoint: ChatEndpoint, tmp_path: Path, later: str
) -> None:
    """Its calls name the episodes without a checksum; an import from its bank says nothing of the calls."""
    ids = write_run(tmp_path / "run.jsonl")
    embedder = FakeEmbedder()
    embedder.identity["weights"] = "some"

    async def run() -> None:
        bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / "bank")), embedder)
        entries = [
            await bank.apply(
                [Return(), Add(title="vault", content=id)], call_id=derive_id("distill", id), listed=(), **CALL
            )
            for id in ids
        ]
        listed = [id for report in entries for id in report.new_ids]
        if later == "refined":
            for number, content in enumerate(("better", "best")):
                update = [Update(ids=(1,), title="vault", content=content)]
                (listed[0],) = (await bank.apply(update, call_id=str(number), listed=listed, **CALL)).new_ids
        if later == "merged":
            merge = [Merge(ids=(1, 2), title="vault", content="all")]
            await bank.apply(merge, call_id="merge", listed=listed, **CALL)
        await bank.save(tmp_path / "snapshot")
        await bank.close()

    asyncio.run(run())
    where = tmp_path / "bank"
    if later == "imported":
        where = tmp_path / "other"
        comprl_bank("import", tmp_path / "snapshot", "--path", where)
    done = comprl_bank(*arguments(endpoint, where, tmp_path / "run.jsonl"))
    if later == "imported":
        assert done.out.startswith("2 episodes: 2 gave experience; the bank has 4 entries"), done.err
    else:
        assert done.out.startswith("2 episodes: 2 done before; the bank has "), done.err
        assert len(endpoint.requests) == 1  # the check


def test_an_imported_entry_of_any_length_keeps_no_other_from_the_list(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    async def seed() -> None:
        config = BankConfig(path=str(tmp_path / "bank"), max_title_chars=300_000)
        bank = await ExperienceBank.open(config, FakeEmbedder("fake"))
        added = [Add(title="open vault number " * 15_000, content="c"), Add(title="a vault", content="short lesson")]
        await bank.apply(added, call_id="seed", listed=(), **CALL)
        await bank.close()

    asyncio.run(seed())
    done = comprl_bank(*arguments(endpoint, tmp_path / "bank", episodes), "--embedder-url", "http://127.0.0.1:1")
    assert done.out.endswith("the bank has 6 entries\n"), done.err
    prompts = [request["messages"][1]["content"] for request in endpoint.requests if len(request["messages"]) == 2]
    assert all("short lesson" in prompt and "number open vault" not in prompt for prompt in prompts)


def test_what_the_next_start_of_the_banks_run_sets_aside_is_said(
    comprl_bank: Run, endpoint: ChatEndpoint, episodes: Path, tmp_path: Path
) -> None:
    (tmp_path / "global_step_5").mkdir()
    note = f"note: if the run in {tmp_path} goes on, it has the bank of its checkpoint again: "
    for said in (True, False):  # the second time nothing is new
        done = comprl_bank(*arguments(endpoint, tmp_path / "bank", episodes))
        assert (f"{note}what was distilled is saved aside\n" in done.out) == said == ("note: " in done.out)
