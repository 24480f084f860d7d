"""Sokoban levels: correct and shortest solutions, disjoint splits, reproducibility."""

import hashlib
import itertools
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_adapters.sokoban.generator import generate, side
from env_adapters.sokoban.level import Level, move
from env_adapters.sokoban.observation import parse, render
from env_adapters.sokoban.search import layers, solve
from env_adapters.sokoban.task import DIFFICULTIES, SIZES

KINDS = list(itertools.product(SIZES, (1, 2, 3), DIFFICULTIES))
DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

Cell = tuple[int, int]


def read(level: Level) -> tuple[set[Cell], frozenset[Cell], frozenset[Cell], Cell]:
    """Return floor, targets, boxes and player, read from the text that the model sees."""
    grid = [line.split(" ") for line in render(level, "").split("\n")[: level.size]]
    cells = {(y, x): symbol for y, row in enumerate(grid) for x, symbol in enumerate(row)}

    def of(symbols: str) -> frozenset[Cell]:
        return frozenset(cell for cell, symbol in cells.items() if symbol in symbols)

    (player,) = of("@+")
    return set(of("_.$*@+")), of(".*+"), of("$*"), player


def forward(floor: set[Cell], boxes: frozenset[Cell], player: Cell, action: str) -> tuple[Cell, frozenset[Cell]]:
    """Second implementation of the game's rules."""
    dy, dx = DIRECTIONS[action]
    ahead, behind = (player[0] + dy, player[1] + dx), (player[0] + 2 * dy, player[1] + 2 * dx)
    if ahead not in floor or (ahead in boxes and (behind not in floor or behind in boxes)):
        return player, boxes
    return ahead, (boxes - {ahead} | {behind} if ahead in boxes else boxes)


def fewest_moves(level: Level) -> int | None:
    """Breadth-first search forward, on sets of coordinates."""
    floor, targets, boxes, player = read(level)
    queue = deque([(player, boxes, 0)])
    seen = {(player, boxes)}
    while queue:
        player, boxes, length = queue.popleft()
        if boxes == targets:
            return length
        for action in DIRECTIONS:
            state = forward(floor, boxes, player, action)
            if state not in seen:
                seen.add(state)
                queue.append((*state, length + 1))
    return None


def play(level: Level, actions: list[str]) -> Level:
    for action in actions:
        assert not level.solved
        level = move(level, action)
    return level


@pytest.mark.parametrize(("size", "boxes", "difficulty"), KINDS)
def test_every_seed_has_a_level_of_the_kind_that_its_solution_solves(size: int, boxes: int, difficulty: str) -> None:
    least, most = DIFFICULTIES[difficulty]
    for seed in range(16):
        level, solution = generate(seed, size, boxes, (least, most))
        floor, targets, placed, player = read(level)
        assert level.size == size and len(targets) == len(placed) == boxes
        assert not targets & placed and player not in placed
        assert all(0 < y < size - 1 and 0 < x < size - 1 for y, x in floor)
        assert least <= len(solution) <= most
        assert play(level, solution).solved


def test_a_thousand_seeds_of_the_default_kind_are_solved_and_spread_over_the_band() -> None:
    lengths: Counter[int] = Counter()
    for seed in range(1000):
        level, solution = generate(seed, 6, 2, DIFFICULTIES["medium"])
        assert play(level, solution).solved
        lengths[len(solution)] += 1
    assert sorted(lengths) == list(range(7, 13))
    assert all(120 < count < 215 for count in lengths.values())  # 167 each on average


@pytest.mark.parametrize(
    ("size", "boxes", "difficulty", "seeds"),
    [
        (6, 2, "medium", 60),
        (6, 2, "hard", 30),
        (7, 1, "hard", 10),
        (6, 3, "easy", 10),
        (7, 3, "medium", 3),
    ],
)
def test_a_forward_search_finds_no_shorter_solution(size: int, boxes: int, difficulty: str, seeds: int) -> None:
    for seed in range(seeds):
        level, solution = generate(seed, size, boxes, DIFFICULTIES[difficulty])
        assert fewest_moves(level) == len(solution)


def test_levels_are_those_of_earlier_versions() -> None:
    # A dataset names levels by their seeds. If they must change, say so in the change log.
    digest = hashlib.sha256()
    for size, boxes, difficulty in KINDS:
        for seed in range(6 * (difficulty != "any")):  # which is younger than the digest
            level, solution = generate(seed, size, boxes, DIFFICULTIES[difficulty])
            digest.update(f"{level} {solution}\n".encode())
    assert digest.hexdigest() == "99fe5c22a0c4148749a7e322b8c5b98ce515d23f4673265f740b4685b4eec272"


def test_the_layers_hold_every_solvable_state_with_its_length() -> None:
    level = parse_room("#####", "#__.#", "#_#_#", "#_$@#", "#####")
    expected: Counter[int] = Counter()
    for player, box in itertools.permutations([i for i in range(25) if level.floor >> i & 1], 2):
        length = fewest_moves(Level(5, level.floor, level.targets, 1 << box, player))
        if length is not None:
            expected[length] += 1
    found = [len(layer) for layer in layers(5, level.floor, level.targets)]
    assert dict(enumerate(found)) == expected


def parse_room(*rows: str) -> Level:
    legend = render(Level(6, 0b1000000, 0, 0, 6), "").split("\n")[6]
    return parse("\n".join([*(" ".join(row) for row in rows), legend]))


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        (["#####", "#@$.#", "#___#", "#___#", "#####"], 1),
        (["#####", "#_.$#", "#___#", "#__@#", "#####"], None),  # the player cannot get behind the box
        (["#####", "#.__#", "#_$_#", "#__@#", "#####"], 5),  # up, left; left again needs a way around
        (["#####", "#$__#", "#_._#", "#__@#", "#####"], None),  # a box in a corner
        (["#####", "#@$*#", "#__.#", "#___#", "#####"], None),  # two boxes in a row
    ],
)
def test_levels_with_a_known_answer(rows: list[str], length: int | None) -> None:
    level = parse_room(*rows)
    assert fewest_moves(level) == length
    solution = solve(level)
    assert length == (None if solution is None else len(solution))
    if solution is not None:
        assert play(level, solution).solved


def placed(level: Level) -> frozenset[tuple[int, int, str]]:
    """Return floor and targets, shifted into the corner: the room without boxes and player."""
    floor, targets, _, _ = read(level)
    top, left = min(y for y, _ in floor), min(x for _, x in floor)
    return frozenset((y - top, x - left, "." if (y, x) in targets else "_") for y, x in floor)


def looks(room: frozenset[tuple[int, int, str]]) -> list[frozenset[tuple[int, int, str]]]:
    """Return all rotations and reflections of a room."""
    found = []
    for swap, flip_y, flip_x in itertools.product((False, True), repeat=3):
        cells = [(x, y, s) if swap else (y, x, s) for y, x, s in room]
        cells = [(-y if flip_y else y, -x if flip_x else x, s) for y, x, s in cells]
        top, left = min(y for y, _, _ in cells), min(x for _, x, _ in cells)
        found.append(frozenset((y - top, x - left, s) for y, x, s in cells))
    return found


@pytest.mark.parametrize(("size", "boxes", "difficulty", "pairs"), [(6, 2, "medium", 500), (6, 1, "easy", 500)])
def test_no_room_is_in_both_splits_even_rotated_or_mirrored(size: int, boxes: int, difficulty: str, pairs: int) -> None:
    rooms = [placed(generate(seed, size, boxes, DIFFICULTIES[difficulty])[0]) for seed in range(2 * pairs)]
    training = {look for room in rooms[::2] for look in looks(room)}
    assert not training & set(rooms[1::2])
    assert len(set(rooms[::2])) < pairs  # rooms do repeat: without the hash some would be in both splits


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**63 - 1), st.sampled_from(KINDS[:9]))
def test_any_seed_gives_a_level_in_its_split(seed: int, kind: tuple[int, int, str]) -> None:
    size, boxes, difficulty = kind
    level, solution = generate(seed, size, boxes, DIFFICULTIES[difficulty])
    assert (level, solution) == generate(seed, size, boxes, DIFFICULTIES[difficulty])
    assert play(level, solution).solved
    assert side(size, level.floor, level.targets) == seed % 2
    # The same floor, shifted inside a larger room, is in the same split.
    wider = parse_room(*("#" * (size + 2) if y in (0, size + 1) else f"#{row}#" for y, row in enumerate(padded(level))))
    assert side(size + 2, wider.floor, wider.targets) == seed % 2


def padded(level: Level) -> list[str]:
    rows = [line.replace(" ", "") for line in render(level, "").split("\n")[: level.size]]
    return ["", *rows, ""]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.lists(st.sampled_from(list(DIRECTIONS)), max_size=60))
def test_moves_follow_the_rules(seed: int, actions: list[str]) -> None:
    level, _ = generate(seed, 6, 2, DIFFICULTIES["medium"])
    floor, targets, boxes, player = read(level)
    for action in actions:
        after = move(level, action)
        player_after, boxes_after = forward(floor, boxes, player, action)
        assert (after is level) == (player_after == player)
        level, player, boxes = after, player_after, boxes_after
        assert read(level) == (floor, targets, boxes, player)
        assert parse(render(level, "anything")) == level
