"""Scripted questions and merges of the miniature: in the form that a run reads, and without judgement."""

import json
import random
from collections import Counter

import pytest

from recipes.miniature.demonstrations import HEEDING, demonstrate
from recipes.miniature.entries import STYLES, moves_of, style_of
from recipes.miniature.mechanisms import answers, asking_drills, merges, merging_drills
from verl_comprl.experience.schema import Merge
from verl_comprl.experience.updates.parsing import parse_answer, parse_merge
from verl_comprl.rollout.messages import Message


def test_an_episode_asks_at_most_once_and_only_with_an_entry() -> None:
    episodes = list(demonstrate(random.Random(1), 400, obeys=(0.7,), kinds=HEEDING, asks=0.3))
    asked = [sum(bool(turn.questions) for turn in episode.turns) for episode in episodes]
    assert set(asked) == {0, 1}
    assert all(episode.entry and episode.tools for episode, count in zip(episodes, asked, strict=True) if count)
    assert all(bool(episode.tools) == (episode.entry is not None) for episode in episodes)


def test_without_questions_nothing_changes() -> None:
    episodes = list(demonstrate(random.Random(1), 50, obeys=(0.7,), kinds=HEEDING))
    assert not any(episode.tools or turn.questions for episode in episodes for turn in episode.turns)


def test_advice_is_obeyed_instead_of_the_entry() -> None:
    followed = made = 0
    for episode in demonstrate(random.Random(2), 600, obeys=(1.0,), kinds={"wrong": 1}, asks=0.5):
        advice, lit = None, 0
        for turn, (move, hit) in zip(episode.turns, episode.moves, strict=True):
            advice = moves_of(turn.questions[0].answer) if turn.questions else advice
            if advice and lit < len(advice):
                made += 1
                followed += move == advice[lit]
            lit += hit
    assert followed == made > 100


def test_a_question_is_in_the_words_of_its_goal() -> None:
    styles = Counter()
    for user, call, advice, move in asking_drills(random.Random(3), 300):
        body = call["content"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        query = json.loads(body)["arguments"]["query"]
        assert all(word in user["content"] for word in query.split())
        styles[style_of(query)] += 1
        lit = int(user["content"][-2])
        assert move["content"] == f"<action>{(moves_of(advice['content']) or ())[lit]}</action>"
    assert set(styles) == set(STYLES) and min(styles.values()) > 60


def test_an_answer_is_the_content_of_its_entry() -> None:
    for system, user, answer in answers(random.Random(4), 50):
        text = parse_answer(answer["content"])
        assert text and text in user["content"] and "advise" in system["content"]


def test_a_merge_covers_every_entry_once_and_keeps_the_text_of_the_one_that_it_names_first() -> None:
    kinds = Counter()
    for _, user, answer in merges(random.Random(5), 300):
        assert user["content"].count("(tasks: vaults/") == 2
        parsed = parse_merge(answer["content"], listed=2)
        assert parsed.format_ok
        kinds["+".join(sorted({type(operation).__name__ for operation in parsed.operations}))] += 1
        for operation in parsed.operations:
            if isinstance(operation, Merge):
                kinds[operation.ids] += 1
                assert _text(user, operation.ids[0]) == f"{operation.title}\n{operation.content}"
    assert set(kinds) == {"Merge", "Discard+Retain", "Retain", (1, 2), (2, 1)}
    assert min(kinds.values()) > 30


@pytest.mark.parametrize("records", [False, True])
def test_a_merging_drill_copies_the_entry_that_it_names_first(records: bool) -> None:
    kept = Counter()
    for user, answer in merging_drills(random.Random(6), 200, records=records):
        (operation,) = parse_merge(answer["content"], listed=2).operations
        assert isinstance(operation, Merge) and set(operation.ids) == {1, 2}
        assert _text(user, operation.ids[0]) == f"{operation.title}\n{operation.content}"
        assert user["content"].count("(tasks: vaults/") == (2 if records else 0)
        kept[operation.ids[0]] += 1
    assert min(kept[1], kept[2]) > 60


def _text(user: Message, number: int) -> str:
    """Return title and content of a listed entry."""
    blocks = user["content"].removeprefix("Entries:\n").split("\n\n")
    heading, *lines = blocks[number - 1].removeprefix(f"{number}. ").splitlines()
    return "\n".join(lines if heading.startswith("(") else [heading, *lines])
