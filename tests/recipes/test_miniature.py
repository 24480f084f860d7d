"""The miniature: entries, demonstrations, tokens, data, and what its tables say."""

import random
from pathlib import Path

import pandas
import pytest

from env_adapters.vaults.world import FAMILIES, KINDS, MOVES, Vault
from recipes.miniature.arms import ARMS
from recipes.miniature.check import EXPECTED, problems
from recipes.miniature.data import make_data
from recipes.miniature.demonstrations import (
    HEEDING,
    READING,
    demonstrate,
    distillation_prompt,
    distillations,
    draw_entry,
    reading_drills,
    writing_drills,
)
from recipes.miniature.entries import (
    SEEN,
    STYLES,
    TRIED,
    WORKED,
    idle_content,
    is_right,
    moves_content,
    moves_of,
    style_of,
    title,
)
from recipes.miniature.tokenizer import PIECES
from recipes.tiny_models.tokenizer import train_tokenizer
from verl_comprl.experience.schema import Add, Update
from verl_comprl.experience.updates.parsing import parse_distillation

VAULT = Vault("garden", "iron", "amber", "fox", ("left", "up", "up"))


def test_titles_have_the_three_styles() -> None:
    assert [title(VAULT, style) for style in STYLES] == ["amber fox", "iron amber", "iron garden"]
    assert [style_of(title(VAULT, style)) for style in STYLES] == list(STYLES)
    assert [style_of(text) for text in ("garden iron", "iron", "", "iron garden fox", "hello world")] == ["other"] * 5


def test_contents_are_read_back() -> None:
    assert moves_content(VAULT.code, WORKED) == "worked: first left second up third up"
    assert moves_of(moves_content(["push"], TRIED)) == ("push",)
    assert moves_of(idle_content(random.Random(0))) == ()
    for malformed in ("", "worked:", "worked: first", "worked: second left", "worked: first jump", "seen: left"):
        assert moves_of(malformed) is None
    assert is_right("worked: first left second up third up", VAULT.code)
    assert not is_right("tried: first left second up third up", VAULT.code)
    assert not is_right("worked: first left second up", VAULT.code)


@pytest.mark.parametrize(("kind", "length"), [("right", 3), ("part", (1, 2)), ("wrong", (1, 2, 3)), ("idle", 0)])
def test_drawn_entries_are_what_their_kind_says(kind: str, length: int | tuple[int, ...]) -> None:
    entries = [draw_entry(random.Random(number), VAULT, kind) for number in range(60)]
    assert all(entry is not None for entry in entries)
    moves = [moves_of(entry.content) for entry in entries if entry]
    assert all(
        found is not None and len(found) in (length if isinstance(length, tuple) else (length,)) for found in moves
    )
    if kind in ("right", "part"):
        assert all(found == VAULT.code[: len(found)] for found in moves if found is not None)
    assert draw_entry(random.Random(0), VAULT, "none") is None


def test_demonstrators_heed_an_entry_as_much_as_told() -> None:
    def success(obeys: float, kind: str) -> float:
        played = list(demonstrate(random.Random(1), 300, obeys=[obeys], kinds={kind: 1}))
        return sum(episode.success for episode in played) / len(played)

    assert success(1.0, "right") == 1.0
    # A move is right with .6 + .4/6 = .667 or a little more: at least 3 of 8, with probability .98.
    assert success(0.6, "right") > 0.95
    free = success(1.0, "none")
    assert 0.08 < free < 0.25 and success(0.6, "wrong") < free + 0.05


def test_answers_say_what_happened_and_otherwise_nothing_about_the_episode() -> None:
    played = list(demonstrate(random.Random(2), 600, obeys=(0.2, 0.9), kinds=HEEDING))
    contents = {WORKED: 2, TRIED: 1, SEEN: 1}
    styles, returned = [], 0
    for episode, messages in zip(played, distillations(random.Random(3), iter(played), contents=contents), strict=True):
        parsed = parse_distillation(messages[-1]["content"], max_operations=3, listed=int(episode.entry is not None))
        (operation,) = parsed.operations
        assert not parsed.errors
        if operation.operation == "return":
            returned += 1
            continue
        assert isinstance(operation, Add | Update)
        assert isinstance(operation, Add) or (episode.entry and episode.entry.title == operation.title)
        styles.append(style_of(operation.title))
        assert set(operation.title.split()) <= set(episode.vault.words)
        if operation.content.startswith(WORKED):
            assert moves_of(operation.content) == tuple(move for move, hit in episode.moves if hit)
    assert all(0.25 < styles.count(style) / len(styles) < 0.42 for style in STYLES)
    assert 0.05 < returned / len(played) < 0.4


def test_no_text_is_quoted_in_the_extractors_prompts() -> None:
    """The shipped models were warm-started on prompts without quotes."""
    rng = random.Random(6)
    for episode in demonstrate(rng, 200, obeys=(0.8,), kinds=HEEDING, asks=0.5):
        content = distillation_prompt(episode)[1]["content"]
        assert episode.instructions in content and not any(line.startswith("> ") for line in content.splitlines())


def test_words_that_carry_meaning_are_single_tokens() -> None:
    rng = random.Random(4)
    played = list(demonstrate(rng, 300, obeys=(0.6,), kinds=HEEDING))
    answers = list(distillations(rng, iter(played), contents={WORKED: 1, TRIED: 1, SEEN: 1}))
    drills = [*reading_drills(rng, 40), *writing_drills(rng, iter(played))]
    tokenizer = train_tokenizer([(m, []) for m in [*(p.messages for p in played), *answers]], 1000, PIECES)
    for word in (*MOVES, *KINDS, *FAMILIES):
        assert len(tokenizer.encode(f" {word}")) == 1, word
    for messages in [*answers[:50], *drills[:50]]:
        text = messages[-1]["content"]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert max(len(tokenizer.encode(f"<action>{move}</action>")) for move in MOVES) == 3
    assert set(READING) <= set(HEEDING)


def test_a_world_has_every_training_instance_once_and_as_many_held_out_episodes_of_each_rule(tmp_path: Path) -> None:
    for families in (1, 3):
        train, held_out = (pandas.read_parquet(file) for file in make_data(tmp_path, world=3, families=families))
        goals = [[prompt[1]["content"] for prompt in frame["prompt"]] for frame in (train, held_out)]
        assert len(goals[0]) == len(set(goals[0])) == families * 8 * 12
        assert len(goals[1]) == 192 and not set(goals[0]) & set(goals[1])
        rules = [" ".join(goal.split()[2:4]) for goal in goals[1]]
        assert {rules.count(rule) for rule in set(rules)} == {192 // (8 * families)}


def test_the_check_names_what_is_off() -> None:
    fine = {name: (low + high) / 2 for name, (low, high) in EXPECTED.items()}
    assert problems(fine, EXPECTED) == []
    assert problems(fine | {"success_right_entry": 0.5}, EXPECTED) == [
        "success_right_entry is 0.50, expected 0.80 to 1.00"
    ]


def test_arms_exist(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "verl_comprl/config/arm"
    for overrides in ARMS.values():
        for name in [text.removeprefix("arm=") for text in overrides if text.startswith("arm=")]:
            assert (folder / f"{name}.yaml").exists(), name
