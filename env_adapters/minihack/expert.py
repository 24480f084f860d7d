"""Scripted player for MiniHack that acts on the same observations as the model.

Owns a policy that takes the shortest path to the staircase around walls, monsters and traps, explores while no
staircase is in sight, attacks adjacent monsters, fetches a key and unlocks doors with it, and pushes boulders straight
into the water.
"""

from collections import deque
from dataclasses import dataclass, fields

from env_adapters.minihack.actions import APPLY_KEY, COMPASS, PICKUP
from env_adapters.minihack.observation import GOAL, MONSTER_MARK, OPEN_DOOR, RADIUS, UNSEEN

Cell = tuple[int, int]
"""Column and row relative to the agent, towards east and south."""

_BLOCKING = ("wall",)
_APART = {"boulder": "boulders", "water": "water", "closed door": "locked"}
"""Names of cells that nobody walks on, and how they are grouped."""
_KEY = "("
_STUCK = "You try to move the boulder"
_STRAIGHT = {phrase: step for phrase, step in COMPASS.items() if 0 in step}


@dataclass(frozen=True, slots=True)
class _View:
    """Cells of the visible crop, grouped by what they mean for walking."""

    free: frozenset[Cell]
    traps: frozenset[Cell]
    monsters: frozenset[Cell]
    unseen: frozenset[Cell]
    goals: frozenset[Cell]
    boulders: frozenset[Cell]
    water: frozenset[Cell]
    locked: frozenset[Cell]
    doors: frozenset[Cell]
    keys: frozenset[Cell]


def _read(observation: str) -> _View:
    # The text about an invalid action may precede the map.
    lines = observation.splitlines()
    legend_at = next(i for i, line in enumerate(lines) if line.startswith("Legend: "))
    rows = [line.split(" ") for line in lines[legend_at - 2 * RADIUS - 1 : legend_at]]
    names = _names(lines[legend_at].removeprefix("Legend: "))
    kinds: dict[str, set[Cell]] = {field.name: set() for field in fields(_View)}
    for y, row in enumerate(rows):
        for x, symbol in enumerate(row):
            cell = (x - RADIUS, y - RADIUS)
            name = names.get(symbol, "")
            if cell == (0, 0):
                continue
            if symbol == UNSEEN:
                kinds["unseen"].add(cell)
            elif MONSTER_MARK in name:
                kinds["monsters"].add(cell)
            elif symbol == "^":
                kinds["traps"].add(cell)
            elif name in _APART:
                kinds[_APART[name]].add(cell)
            elif name not in _BLOCKING:
                kinds["free"].add(cell)
                if symbol in (special := {GOAL: "goals", OPEN_DOOR: "doors", _KEY: "keys"}):
                    kinds[special[symbol]].add(cell)
    return _View(**{kind: frozenset(cells) for kind, cells in kinds.items()})


def _names(legend: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for entry in legend.split(", "):
        symbols, words = [], entry.split(" ")
        while words and (not symbols or (len(words[0]) == 1 and not words[0].isalnum())):
            symbols.append(words.pop(0))
        for symbol in symbols:
            names[symbol] = " ".join(words)
    return names


def _neighbours(cell: Cell) -> list[tuple[str, Cell]]:
    return [(phrase, (cell[0] + dx, cell[1] + dy)) for phrase, (dx, dy) in COMPASS.items()]


def _ways(passable: frozenset[Cell], doors: frozenset[Cell]) -> dict[Cell, tuple[str, int]]:
    """Return the first move and the length of a shortest path over ``passable`` cells, for each reachable cell.

    Nobody passes ``doors`` diagonally.
    """
    found: dict[Cell, tuple[str, int]] = {(0, 0): ("", 0)}
    queue = deque(found)
    while queue:
        cell = queue.popleft()
        first, length = found[cell]
        for phrase, neighbour in _neighbours(cell):
            if phrase not in _STRAIGHT and not doors.isdisjoint((cell, neighbour)):
                continue
            if neighbour in passable and neighbour not in found:
                found[neighbour] = (first or phrase, length + 1)
                queue.append(neighbour)
    del found[0, 0]
    return found


class ScriptedPolicy:
    """Plays one episode; create a new instance for the next.

    It tracks the cells it has visited by counting its own steps. From a visited cell all neighbours have been seen, so
    neighbours that are still unseen are rock.
    """

    def __init__(self) -> None:
        """Prepare for the first observation of an episode."""
        self._here: Cell = (0, 0)
        self._stood: dict[Cell, int] = {}
        self._last: tuple[_View, Cell] | None = None
        self._keys: set[Cell] = set()
        self._doors: set[Cell] = set()
        self._stuck: set[tuple[Cell, str]] = set()
        self._ford: Cell | None = None

    def act(self, observation: str) -> str:
        """Return the action phrase for an observation of a running episode."""
        view = _read(observation)
        if self._last and _STUCK in observation:
            phrase = next(phrase for phrase, step in COMPASS.items() if step == self._last[1])
            self._stuck.add((self._absolute(self._last[1]), phrase))
        else:
            self._locate(view)
        self._stood[self._here] = self._stood.get(self._here, 0) + 1
        self._keys |= set(map(self._absolute, view.keys))
        self._doors |= set(map(self._absolute, view.doors))
        phrase = self._use_key(view, observation) or self._choose(view)
        self._last = (view, COMPASS.get(phrase, (0, 0)))
        return phrase

    def _choose(self, view: _View) -> str:
        adjacent = {cell: phrase for phrase, cell in _neighbours((0, 0))}
        if near := sorted(view.goals & adjacent.keys()) or sorted(view.monsters & adjacent.keys()):
            return adjacent[near[0]]
        known_rock = {neighbour for stood in self._stood for _, neighbour in _neighbours(stood)}

        def promise(cell: Cell) -> int:
            if self._absolute(cell) in self._stood:
                return 0
            around = [neighbour for _, neighbour in _neighbours(cell) if neighbour in view.unseen]
            return sum(self._absolute(neighbour) not in known_rock for neighbour in around)

        for passable in (view.free, view.free | view.traps, view.free | view.traps | view.monsters):
            ways = _ways(passable, self._doors_around())
            if goals := [cell for cell in ways if cell in view.goals]:
                return ways[min(goals, key=lambda cell: ways[cell][1])][0]
            if move := self._cross(ways) or self._push(view, ways):
                return move
            if promising := [cell for cell in ways if promise(cell)]:
                # A cell that may reveal n unseen cells is worth a path of n / 2 steps.
                return ways[max(promising, key=lambda cell: promise(cell) - 2 * ways[cell][1])][0]
        # Everything in sight is known: move to the least visited neighbour.
        around = [cell for cell in adjacent if cell in view.free] or list(adjacent)
        return adjacent[min(around, key=lambda cell: self._stood.get(self._absolute(cell), 0))]

    def _use_key(self, view: _View, observation: str) -> str | None:
        """Return the next move that fetches a key or unlocks a door with it; None if neither is in reach."""
        carried = next((line for line in observation.splitlines() if line.startswith("Inventory: ")), None)
        if carried is None:  # no key is of use in this level
            return None
        ways = _ways(view.free, self._doors_around())
        if "key" in carried.lower():
            beside = {(x + dx, y + dy) for x, y in view.locked for dx, dy in _STRAIGHT.values()}
            if (0, 0) in beside:
                return APPLY_KEY
        elif self._here in self._keys:
            self._keys.remove(self._here)
            return PICKUP
        else:
            beside = view.keys
        reached = [ways[cell] for cell in beside if cell in ways]
        return min(reached, key=lambda way: way[1])[0] if reached else None

    def _doors_around(self) -> frozenset[Cell]:
        return frozenset(map(self._relative, self._doors))

    def _cross(self, ways: dict[Cell, tuple[str, int]]) -> str | None:
        """Return the next move to the filled cell of a river that was not crossed yet; None if there is none."""
        if self._ford is None or self._ford in self._stood:
            return None
        return ways.get(self._relative(self._ford), (None,))[0]

    def _push(self, view: _View, ways: dict[Cell, tuple[str, int]]) -> str | None:
        """Return the next move of the shortest way to push a boulder straight into water; None if there is none."""
        plans: list[tuple[int, str, Cell]] = []
        for boulder in view.boulders:
            for phrase, (dx, dy) in _STRAIGHT.items():
                behind, ahead, pushes = (boulder[0] - dx, boulder[1] - dy), (boulder[0] + dx, boulder[1] + dy), 1
                while ahead in view.free:
                    ahead, pushes = (ahead[0] + dx, ahead[1] + dy), pushes + 1
                move, length = (phrase, 0) if behind == (0, 0) else ways.get(behind, ("", 0))
                if move and ahead in view.water and (self._absolute(boulder), phrase) not in self._stuck:
                    plans.append((length + pushes, move, ahead))
        if not plans:
            return None
        left, move, water = min(plans)
        if left == 1:
            self._ford = self._absolute(water)
        return move

    def _absolute(self, cell: Cell) -> Cell:
        return (self._here[0] + cell[0], self._here[1] + cell[1])

    def _relative(self, cell: Cell) -> Cell:
        return (cell[0] - self._here[0], cell[1] - self._here[1])

    def _locate(self, view: _View) -> None:
        """Update the position from how the map shifted since the last move; forget all cells after a teleport."""
        if self._last is None:
            return
        before, (dx, dy) = self._last
        if _fits(before, view, (dx, dy)):
            self._here = self._absolute((dx, dy))
        elif not _fits(before, view, (0, 0)):
            self._here, self._stood, self._ford = (0, 0), {}, None
            for known in (self._keys, self._doors, self._stuck):
                known.clear()


def _fits(before: _View, after: _View, shift: Cell) -> bool:
    """Return whether all free cells are still visible after moving by ``shift``; the game never hides seen floor."""
    dx, dy = shift
    return not any((x - dx, y - dy) in after.unseen for x, y in before.free)
