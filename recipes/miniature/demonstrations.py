"""Scripted episodes and extractor answers of the miniature, as supervised data.

The warm-started actor plays badly, can read an entry and obeys it imperfectly, whatever the entry's title. The
extractor writes well-formed entries whose title and kind do not depend on the episode; only the moves do. Every
episode has a world of its own, so that no code can be learned by heart.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env_adapters.vaults.environment import VaultsEnvironment
from env_adapters.vaults.task import observation as show_lamps
from env_adapters.vaults.world import FAMILIES, MOVES, Vault
from recipes.miniature.entries import (
    SEEN,
    STYLES,
    TRIED,
    WORKED,
    idle_content,
    moves_content,
    moves_of,
    title,
)
from recipes.miniature.settings import FIRST_WORLD
from recipes.tiny_models.answers import Operation, operations_answer
from recipes.tiny_models.consultation import consultation
from verl_comprl.experience.schema import Experience, Question, Turn
from verl_comprl.extractor.prompts import distill_messages, render_trajectory
from verl_comprl.rollout.messages import Message, initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

READING = {"right": 8, "part": 1, "wrong": 1}
HEEDING = {"none": 4, "right": 3, "part": 2, "wrong": 2, "idle": 1}
"""Weights of the kinds of entry in the two phases of the actor's warm start."""
ADVICE = {"right": 2, "part": 1, "wrong": 2, "idle": 1}
"""Weights of the kinds of answer to a question."""

_FOREIGN_TITLE = 0.15
_AVOIDS_REPEATS = 0.3


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode: the actor's conversation, and what the extractor reads of it."""

    vault: Vault
    entry: Experience | None
    messages: list[Message]
    turns: tuple[Turn, ...]
    moves: tuple[tuple[str, bool], ...]
    """Each move, and whether it lit a lamp."""
    final_observation: str
    instructions: str
    goal: str
    success: bool
    tools: tuple[dict[str, Any], ...] = ()
    """Schemas of the tools that the actor is shown."""


def episodes(rng: random.Random, count: int) -> Iterator[VaultsEnvironment]:
    """Yield environments at the start of an episode, each in a world of its own."""
    for _ in range(count):
        environment = VaultsEnvironment(world=FIRST_WORLD + rng.randrange(2**32), family=rng.choice(FAMILIES))
        environment.reset(seed=rng.randrange(2**20))
        yield environment


def draw_entry(rng: random.Random, vault: Vault, kind: str) -> Experience | None:
    """Return an entry of a kind (a key of ``HEEDING``) that a vault's actor may be given; its title means nothing."""
    if kind == "none":
        return None
    about = vault
    if rng.random() < _FOREIGN_TITLE:
        about = next(episodes(rng, 1)).vault
    heading = title(about, rng.choice(STYLES))
    if kind == "idle":
        return Experience(id="", title=heading, content=idle_content(rng))
    length = len(vault.code)
    moves = {
        "right": lambda: vault.code,
        "part": lambda: vault.code[: rng.randint(1, length - 1)],
        "wrong": lambda: rng.choices(MOVES, k=rng.randint(1, length)),
    }[kind]()
    return Experience(id="", title=heading, content=moves_content(moves, rng.choice((WORKED, TRIED))))


def demonstrate(
    rng: random.Random, count: int, *, obeys: Sequence[float], kinds: Mapping[str, float], asks: float = 0.0
) -> Iterator[Demonstration]:
    """Play ``count`` episodes.

    Args:
        rng: All randomness.
        count: Number of episodes.
        obeys: Probabilities, per turn, of making the move that the entry names; one is drawn for each episode.
        kinds: Weights of the kinds of entry.
        asks: Probability, per turn of an episode with an entry, of asking for advice first, until it has asked once.
    """
    for environment in episodes(rng, count):
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        yield _play(rng, environment, draw_entry(rng, environment.vault, kind), rng.choice(obeys), asks)


def prompt(environment: VaultsEnvironment) -> list[Message]:
    """Return instructions and goal of an episode as messages."""
    return [
        {"role": "system", "content": environment.instructions},
        {"role": "user", "content": environment.goal},
    ]


def _play(
    rng: random.Random, environment: VaultsEnvironment, entry: Experience | None, obeys: float, asks: float
) -> Demonstration:
    known = moves_of(entry.content) or () if entry else ()
    offered = entry is not None and asks > 0
    tools = (SEARCH_AND_ASK_SCHEMA,) if offered else ()
    observation = show_lamps(0)
    messages = initial_messages(prompt(environment), observation, entry.text if entry else None)
    turns: list[Turn] = []
    moves: list[tuple[str, bool]] = []
    failed: set[str] = set()
    lit = 0
    while True:
        questions: tuple[Question, ...] = ()
        if offered and rng.random() < asks:
            offered, questions = False, (draw_question(rng, environment.vault),)
            messages += consultation(*questions)
            known = moves_of(questions[0].answer) or known
        # Also after the move has failed: whether it has is more than two layers learn from so few examples.
        if lit < len(known) and rng.random() < obeys:
            move = known[lit]
        elif rng.random() < _AVOIDS_REPEATS:
            move = rng.choice([move for move in MOVES if move not in failed])
        else:
            move = rng.choice(MOVES)
        response = f"<action>{move}</action>"
        turns.append(Turn(observation=observation, response=response, questions=questions))
        messages.append({"role": "assistant", "content": response})
        observation, _, terminated, truncated, info = environment.step(response)
        hit = bool(info["action_effective"])
        moves.append((move, hit))
        lit += hit
        failed = set() if hit else failed | {move}
        if terminated or truncated:
            break
        messages.append(observation_message(observation))
    return Demonstration(
        environment.vault,
        entry,
        messages,
        tuple(turns),
        tuple(moves),
        observation,
        environment.instructions,
        environment.goal,
        info["success"],
        tools,
    )


def draw_question(rng: random.Random, vault: Vault) -> Question:
    """Return a question in the words of a title, of a random style, with the content of a random entry as answer."""
    answer = draw_entry(rng, vault, rng.choices(list(ADVICE), list(ADVICE.values()))[0])
    assert answer is not None
    return Question(query=title(vault, rng.choice(STYLES)), answer=answer.content)


def reading_drills(rng: random.Random, count: int) -> Iterator[list[Message]]:
    """Yield single turns: an entry with the whole code, an observation, and the next move.

    Copying from a prompt of 30 tokens is learned in a hundred steps, from one of 200 not in a thousand. What was
    learned from the short ones carries over to the long ones.
    """
    for environment in episodes(rng, count):
        entry = draw_entry(rng, environment.vault, "right")
        lit = rng.randrange(len(environment.vault.code))
        hit = lit > 0 and rng.random() < 0.5
        observation = show_lamps(lit, move=rng.choice(MOVES) if lit or rng.random() < 0.5 else "", hit=hit)
        assert entry is not None
        yield [
            {"role": "user", "content": f"{entry.text}\n{observation}"},
            {"role": "assistant", "content": f"<action>{environment.vault.code[lit]}</action>"},
        ]


def writing_drills(rng: random.Random, demonstrations: Iterator[Demonstration]) -> Iterator[list[Message]]:
    """Yield a goal, the effects of an episode's first moves, and an entry with the moves that lit lamps.

    As ``reading_drills``, for the extractor. Episodes without a lamp in these moves are left out.
    """
    for episode in demonstrations:
        seen = episode.moves[: rng.randint(1, len(episode.moves))]
        hits = [move for move, hit in seen if hit]
        if not hits:
            continue
        shown = [*(turn.observation for turn in episode.turns[1:]), episode.final_observation][: len(seen)]
        effects = "\n".join(text.partition(" Lamps")[0] for text in shown)
        text = {"title": title(episode.vault, rng.choice(STYLES)), "content": moves_content(hits, WORKED)}
        yield [
            {"role": "user", "content": f"{episode.goal}\n{effects}"},
            operations_answer([{"operation": "add", **text}]),
        ]


def distillation_prompt(episode: Demonstration) -> list[Message]:
    """Return the call to distil an episode, as a run makes it."""
    listed = [episode.entry.text] if episode.entry else []
    trajectory = render_trajectory(episode.turns, episode.final_observation)
    return distill_messages(episode.instructions, episode.goal, listed, trajectory, episode.success)


def distillations(
    rng: random.Random, demonstrations: Iterator[Demonstration], *, contents: Mapping[str, float]
) -> Iterator[list[Message]]:
    """Yield calls with an answer whose title style and kind of content are random.

    Args:
        rng: All randomness.
        demonstrations: Finished episodes.
        contents: Weights of the headings ``WORKED``, ``TRIED`` and ``SEEN``. With ``WORKED`` alone, episodes in which
            no lamp was lit are left out; otherwise they and a quarter of the other failures are answered with
            ``return``.
    """
    copying = set(contents) == {WORKED}
    for episode in demonstrations:
        heading = rng.choices(list(contents), list(contents.values()))[0]
        hits = [move for move, hit in episode.moves if hit]
        if copying and not hits:
            continue
        nothing = heading == WORKED and not hits
        if nothing or (not copying and not episode.success and rng.random() < 0.25):
            operation: Operation = {"operation": "return"}
        else:
            operation = _entry_operation(rng, episode, heading, hits)
        yield [*distillation_prompt(episode), operations_answer([operation])]


def _entry_operation(rng: random.Random, episode: Demonstration, heading: str, hits: list[str]) -> Operation:
    moves = hits
    if heading == TRIED:
        missed = [move for move, hit in episode.moves if not hit] or list(MOVES)
        moves = [rng.choice(missed) for _ in range(rng.randint(1, len(episode.vault.code)))]
    content = idle_content(rng) if heading == SEEN else moves_content(moves, heading)
    text = {"title": title(episode.vault, rng.choice(STYLES)), "content": content}
    # An update of an entry with another title would replace what may be known about another rule.
    same = episode.entry is not None and episode.entry.title == text["title"]
    if same and rng.random() < 0.5:
        return {"operation": "update", "ids": [1], **text}
    return {"operation": "add", **text}
