"""Rendering of hand-made screens as text."""

import numpy as np

from env_adapters.minihack.observation import decode, render

NAMES = {
    ".": "floor of a room",
    ",": "dark part of a room",
    ">": "staircase down",
    "|": "wall",
    "-": "wall",
    "/": "open door",
    "d": "jackal",
    "^": "teleportation trap",
    "@": "human rogue called Agent",
    "(": "a key",
}


def draw(picture: list[str], message: str = "", inventory: list[str] | None = None) -> list[str]:
    rows = len(picture)
    columns = max(map(len, picture))
    chars = np.full((rows, columns), ord(" "), np.uint8)
    descriptions = np.zeros((rows, columns, 30), np.uint8)
    monsters = np.zeros((rows, columns), bool)
    position = (0, 0)
    for y, line in enumerate(picture):
        for x, symbol in enumerate(line):
            name = NAMES.get(symbol, "").encode()
            chars[y, x] = ord({",": ".", "/": "-"}.get(symbol, symbol))
            descriptions[y, x, : len(name)] = list(name)
            monsters[y, x] = symbol in "d@"
            if symbol == "@":
                position = (x, y)
    return render(chars, descriptions, monsters, position, message, (5, 12), inventory).split("\n")


def test_the_crop_is_centred_and_aligned_at_the_edge_of_the_level() -> None:
    lines = draw(["@.>", "|d "])
    blank = "~ ~ ~ ~ ~ ~ ~ ~ ~"
    assert lines[:9] == [blank] * 4 + ["~ ~ ~ ~ @ . > ~ ~", "~ ~ ~ ~ | d ~ ~ ~"] + [blank] * 3
    assert lines[9] == "Legend: @ you, > staircase down (goal), d jackal (monster), . floor, | wall, ~ unseen or rock"
    assert lines[10:] == ["Message: (none)", "Hit points: 5/12"]


def test_cells_outside_the_crop_are_neither_drawn_nor_named() -> None:
    lines = draw(["@....>", "", "", "", "", "^"])
    assert lines[4] == "~ ~ ~ ~ @ . . . ."
    assert ">" not in lines[9] and "trap" not in lines[9]


def test_equal_names_share_a_legend_entry_and_doors_differ_from_walls() -> None:
    lines = draw(["-/|", ".@,", " ( "], "You see here\na key.")
    assert lines[3] == "~ ~ ~ - ' | ~ ~ ~" and lines[4] == "~ ~ ~ . @ . ~ ~ ~"
    assert lines[9] == "Legend: @ you, . floor, ( key, ' open door, - | wall, ~ unseen or rock"


def test_the_inventory_is_shown_on_request() -> None:
    assert draw(["@"], inventory=["a key", "2 daggers"])[10:12] == ["Inventory: a key, 2 daggers", "Message: (none)"]
    assert draw(["@"], inventory=[])[10] == "Inventory: (none)"
    assert not any(line.startswith("Inventory") for line in draw(["@"]))


def test_decode_stops_at_the_terminator_and_stays_on_one_line() -> None:
    assert decode(np.frombuffer(b"You  die.\n--More--\0garbage", np.uint8)) == "You die. --More--"
    assert decode(np.zeros(4, np.uint8)) == ""
