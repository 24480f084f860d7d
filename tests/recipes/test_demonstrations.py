"""Scripted data: what the environment and the parsers make of it."""

import itertools
import random
import re

import pytest

from env_adapters.minihack.dataset import build_rows
from env_adapters.parsing import extract_action
from recipes.minihack_small.actor_demonstrations import VARIANT, demonstrate, exercises
from recipes.minihack_small.extractor_demonstrations import answers, distillations, merges
from recipes.minihack_small.lessons import WORTHS, draw_lesson
from verl_comprl.experience.updates.parsing import parse_answer, parse_distillation, parse_merge
from verl_comprl.extractor.prompts.quoting import quoted


def _replay(episode, seed):
    import env_adapters

    environment = env_adapters.make("minihack", variant=VARIANT, max_turns=6)
    _, info = environment.reset(seed=seed)
    valid = []
    for turn in episode.turns:
        _, _, _, _, info = environment.step(turn.response)
        valid.append(info["action_valid"])
    environment.close()
    return valid, info["success"]


def test_episodes_are_what_the_environment_plays_on_training_seeds(episodes):
    rows = build_rows(VARIANT, "train", len(episodes), seed=0, max_turns=6)
    for episode, row in itertools.islice(zip(episodes, rows, strict=True), 20):
        valid, success = _replay(episode, row["extra_info"]["seed"])
        assert all(valid) and success == episode.success


def test_only_guided_episodes_have_experience_and_the_tool(episodes):
    assert {bool(episode.lesson) for episode in episodes} == {True, False}
    for episode in episodes:
        question = next(message["content"] for message in episode.messages if message["role"] == "user")
        assert bool(episode.tools) == ("<experience>" in question) == (episode.lesson is not None)
        if episode.lesson:
            assert episode.lesson.text in question
        else:
            assert all(message["role"] != "tool" for message in episode.messages)


def test_turns_for_the_extractor_hold_neither_experience_nor_tool_calls(episodes):
    for episode in episodes:
        assert all("<tool_call>" not in turn.response for turn in episode.turns)
        assert all("<experience>" not in turn.observation for turn in episode.turns)


def test_no_text_looks_like_the_structure_of_the_extractors_prompts(episodes):
    """It would be quoted there, and the models be taught another format than the one that the shipped results have."""
    for episode in episodes:
        assert quoted(episode.instructions, part="rules") == episode.instructions
        texts = [episode.goal, episode.final_observation, episode.lesson.text if episode.lesson else ""]
        texts += [text for turn in episode.turns for text in (turn.observation, turn.response)]
        assert list(map(quoted, texts)) == texts


def test_helpful_lessons_make_the_demonstrator_better():
    outcomes = {worth: [] for worth in (*WORTHS, None)}
    for episode in demonstrate(600, max_turns=8, seed=1):
        asked = any(message["role"] == "tool" for message in episode.messages)
        if not asked:
            outcomes[episode.lesson.worth if episode.lesson else None].append(episode.success)
    rate = {worth: sum(successes) / len(successes) for worth, successes in outcomes.items()}
    assert rate["helpful"] > rate[None] + 0.1
    assert rate["misleading"] < rate["helpful"] - 0.15


def test_the_same_seed_gives_the_same_episodes():
    first, second, other = (list(demonstrate(5, max_turns=4, seed=seed)) for seed in (3, 3, 4))
    assert first == second != other


def test_exercises_are_single_answered_turns():
    conversations = list(exercises(30, max_turns=6, seed=0))
    assert all([message["role"] for message in messages] == ["user", "assistant"] for messages in conversations)
    assert all((extract_action(messages[1]["content"]) or "").startswith("move ") for messages in conversations)
    assert any("<experience>" in messages[0]["content"] for messages in conversations)


def listed_in(prompt):
    return len(re.findall(r"^\d+\. ", prompt, re.MULTILINE))


def test_distillations_parse_without_an_error(episodes):
    kinds, updated, counts = set(), set(), set()
    for episode, messages in zip(episodes, distillations(episodes, seed=0), strict=True):
        prompt = messages[-2]["content"]
        listed = listed_in(prompt)
        counts.add(listed)
        parsed = parse_distillation(messages[-1]["content"], max_operations=3, listed=listed)
        assert parsed.operations and not parsed.errors
        kinds.update(operation.operation for operation in parsed.operations)
        updated.update(index for operation in parsed.operations for index in getattr(operation, "ids", ()))
        assert f"Outcome: {'success' if episode.success else 'failure'}" in prompt
        assert f"Final observation:\n{episode.final_observation}\n\nOutcome" in prompt
        assert prompt.startswith(f"Rules:\n{episode.instructions}\n\nTask:")
        guide = f"1. {episode.lesson.text}" if episode.lesson else "(none)"
        assert f"Earlier experience that the agent read:\n{guide}\n\nOther earlier experience:\n" in prompt
    assert kinds == {"add", "update", "return"} and counts == {0, 1, 2, 3, 4} and len(updated) > 2


def test_merges_parse_and_cover_every_entry_once():
    kinds = set()
    for messages in merges(100, seed=0):
        listed = listed_in(messages[1]["content"])
        assert (
            len(
                re.findall(
                    r"^\d+\. \(tasks: minihack/room-ultimate; age \d+ steps?; .+\)$", messages[1]["content"], re.M
                )
            )
            == listed
        )
        parsed = parse_merge(messages[-1]["content"], listed=listed)
        assert not parsed.errors
        assert sorted(index for operation in parsed.operations for index in getattr(operation, "ids", ())) == list(
            range(1, listed + 1)
        )
        kinds.update(operation.operation for operation in parsed.operations)
    assert kinds == {"retain", "merge", "discard"}


def test_answers_say_what_the_entry_says():
    for messages in answers(20, seed=0):
        answer = parse_answer(messages[-1]["content"])
        assert answer and answer in messages[1]["content"]


@pytest.mark.parametrize("worth", WORTHS)
def test_lessons_are_many_and_keep_their_worth(worth):
    rng = random.Random(0)
    lessons = [draw_lesson(rng, worth) for _ in range(300)]
    assert len({lesson.text for lesson in lessons}) >= 40 and {lesson.worth for lesson in lessons} == {worth}


def test_no_lesson_has_two_worths():
    rng = random.Random(0)
    texts = {worth: {draw_lesson(rng, worth).content for _ in range(300)} for worth in WORTHS}
    assert all(not texts[one] & texts[other] for one, other in itertools.combinations(WORTHS, 2))
