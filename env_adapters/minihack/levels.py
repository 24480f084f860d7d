"""Levels of our own, in the language in which NetHack describes levels (MiniHack's ``des_file``)."""

CUSTOM = "MiniHack-Navigation-Custom-v0"
"""Name of the level in MiniHack's registry that takes such a description."""

RIVER_FORD = """
MAZE: "mylevel", ' '
FLAGS: hardfloor
INIT_MAP: solidfill, ' '
GEOMETRY: center, center
MAP
............W..
............W..
............W..
............W..
............W..
ENDMAP
REGION: (0, 0, 15, 5), lit, "ordinary"
BRANCH: (0, 0, 11, 4), (0, 0, 0, 0)
$boulder_area = selection: fillrect (1, 1, 11, 3)
LOOP [6] {
    OBJECT: ('`', "boulder"), rndcoord($boulder_area)
}
STAIR: (14, 2), down
"""
"""MiniHack's River with one cell of water instead of two or three, so that one boulder is enough, in a shorter room."""
