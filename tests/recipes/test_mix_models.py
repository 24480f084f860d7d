"""Scripted data of the mixes' models: what the environments and the parsers make of it."""

import itertools
import random
import re

import pytest

import env_adapters
from env_adapters.dataset import split_seeds
from recipes.mix_models.answers import answers, distillations, merges
from recipes.mix_models.demonstrations import Demonstration, demonstrate
from recipes.mix_models.families import FAMILIES, MAX_TURNS
from verl_comprl.experience.schema import Add, Update
from verl_comprl.experience.updates.parsing import parse_answer, parse_distillation, parse_merge

COUNT = 6


@pytest.fixture(scope="module")
def episodes() -> list[Demonstration]:
    return list(demonstrate(COUNT, seed=0))


def test_each_family_is_played_with_valid_actions_on_training_seeds(episodes) -> None:
    assert [episode.family for episode in episodes] == [family for family in FAMILIES for _ in range(COUNT)]
    for family, played in itertools.groupby(episodes, lambda episode: episode.family):
        environment = env_adapters.make(family.environment, max_turns=MAX_TURNS, **family.options)
        for episode, seed in zip(played, split_seeds("train", COUNT), strict=True):
            observation, info = environment.reset(seed=seed)
            for turn in episode.turns:
                assert turn.observation == observation
                observation, _, _, _, info = environment.step(turn.response)
                assert info["action_valid"], turn.response
            assert (episode.final_observation, episode.success) == (observation, info["success"])
        environment.close()


def test_only_guided_episodes_have_experience_and_ask(episodes) -> None:
    asked = set()
    for episode in episodes:
        question = next(message["content"] for message in episode.messages if message["role"] == "user")
        assert bool(episode.tools) == ("<experience>" in question) == (episode.lesson is not None)
        assert episode.lesson is None or episode.lesson.text in question
        called = sum("<tool_call>" in message["content"] for message in episode.messages)
        assert called == sum(len(turn.questions) for turn in episode.turns) <= bool(episode.lesson)
        asked |= {episode.family.task} if called else set()
    assert len(asked) > len(FAMILIES) / 2


def test_every_answer_can_be_parsed_and_is_about_the_episodes_family(episodes) -> None:
    rng = random.Random(0)
    for episode, call in zip(episodes, distillations(rng, episodes), strict=True):
        prompt, answer = call[-2]["content"], call[-1]["content"]
        listed = len(re.findall(r"^\d+\. ", prompt.partition("Episode:")[0].partition("experience that")[2], re.M))
        parsed = parse_distillation(answer, max_operations=3, listed=listed)
        assert not parsed.errors
        (operation,) = parsed.operations
        assert isinstance(operation, Add | Update) and operation.title in episode.family.titles
    for call in merges(rng, 50):
        listed = len(re.findall(r"^\d+\. \(tasks: ", call[-2]["content"], re.M))
        parsed = parse_merge(call[-1]["content"], listed=listed)
        ids = [id for operation in parsed.operations for id in getattr(operation, "ids", ())]
        assert not parsed.errors and sorted(ids) == list(range(1, listed + 1))
    for call in answers(rng, 20):
        text = parse_answer(call[-1]["content"])
        assert text and text in call[-2]["content"]
