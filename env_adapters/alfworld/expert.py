"""Scripted player for ALFWorld that acts on the same observations as the model.

Owns a policy for all six types of task: it searches one receptacle after the other until it sees the object it needs,
takes it to where it is cleaned, heated, cooled or examined, and then to its destination.
"""

import re
from collections import Counter

_TASKS = (
    r"look at (?P<object>\w+) under the (?P<lamp>\w+)",
    r"examine the (?P<object>\w+) with the (?P<lamp>\w+)",
    r"(put|find) two (?P<object>\w+) (and put them )?in (?P<receptacle>\w+)",
    r"put a (?P<change>clean|hot|cool) (?P<object>\w+) in (?P<receptacle>\w+)",
    r"(?P<change>clean|heat|cool) some (?P<object>\w+) and put it in (?P<receptacle>\w+)",
    r"put (a|some) (?P<object>\w+) (in|on) (?P<receptacle>\w+)",
)
_CHANGES = {
    "clean": ("clean", "sinkbasin"),
    "hot": ("heat", "microwave"),
    "heat": ("heat", "microwave"),
    "cool": ("cool", "fridge"),
}
_NAME = re.compile(r"\ba (\w+ \d+)")
_PUT = re.compile(r"^\w+ \{object\} (?:to|in/on) \{receptacle\}$", re.MULTILINE)


class ScriptedPolicy:
    """Plays one episode; create a new instance for the next."""

    def __init__(self, instructions: str) -> None:
        """Prepare for the first observation of an episode.

        Args:
            instructions: The system prompt, which contains the action for putting objects down.

        Raises:
            ValueError: If the prompt does not contain that action.
        """
        found = _PUT.search(instructions)
        if found is None:
            raise ValueError("the system prompt has no action for putting an object down")
        self._put = found[0]
        self._task: dict[str, str] = {}
        self._places: list[str] = []
        self._seen: dict[str, list[str]] = {}
        """Receptacles searched so far, with the objects in them."""
        self._here = self._carried = self._last = ""
        self._closed = self._changed = False
        self._delivered: set[str] = set()

    def act(self, observation: str) -> str:
        """Return the action for an observation of a running episode.

        Raises:
            ValueError: If the first observation has no task of a known form.
        """
        if self._task:
            self._learn(observation)
        else:
            self._begin(observation)
        self._last = self._choose()
        return self._last

    def _begin(self, observation: str) -> None:
        found = next((match for pattern in _TASKS if (match := re.search(pattern, observation))), None)
        if found is None:
            raise ValueError(f"no task of a known form in {observation!r}")
        self._task = {name: word for name, word in found.groupdict().items() if word}
        names = _NAME.findall(observation)
        kinds = Counter(map(_kind, names))
        # A receptacle that exists only once usually holds more than each of twenty drawers.
        self._places = sorted(names, key=lambda name: (kinds[_kind(name)], name))

    def _learn(self, observation: str) -> None:
        verb, _, rest = self._last.partition(" ")
        if verb == "go":
            self._here = rest.removeprefix("to ")
        if verb in ("go", "open", "examine"):
            self._closed = observation.endswith("is closed.")
            if observation.startswith("Invalid action"):  # it is at the same location as the one before
                self._closed = False
            elif not self._closed:
                self._seen[self._here] = _NAME.findall(observation)
        elif verb == "take":
            self._carried = rest.partition(" from ")[0]
            self._seen[self._here].remove(self._carried)
        elif verb in ("clean", "heat", "cool"):
            self._changed = True
        elif self._last == self._put_down(self._here):
            self._delivered.add(self._carried)
            self._carried = ""

    def _choose(self) -> str:
        object_, lamp = self._task["object"], self._task.get("lamp")
        if self._here and self._here not in self._seen and not self._closed:
            return f"examine {self._here}"
        if not self._carried:
            return self._at(object_, "take {name} from {place}")
        if lamp:
            return self._at(lamp, "use {name}")
        change = self._task.get("change")
        if change and not self._changed:
            verb, kind = _CHANGES[change]
            return self._go(self._first(kind)) or f"{verb} {self._carried} with {self._here}"
        place = self._first(self._task["receptacle"])
        return self._go(place) or self._open() or self._put_down(place)

    def _at(self, kind: str, action: str) -> str:
        """Return the next move towards acting on an object of a kind: go to a known one, or search for one."""
        for place, names in self._seen.items():
            for name in names:
                if _kind(name) == kind and name not in self._delivered:
                    return self._go(place) or action.format(name=name, place=place)
        unseen = (place for place in self._places if place not in self._seen)
        return self._open() or self._go(next(unseen, "")) or "inventory"

    def _first(self, kind: str) -> str:
        return next((place for place in self._places if _kind(place) == kind), "")

    def _go(self, place: str) -> str:
        return f"go to {place}" if place and place != self._here else ""

    def _open(self) -> str:
        return f"open {self._here}" if self._closed else ""

    def _put_down(self, place: str) -> str:
        return self._put.replace("{object}", self._carried).replace("{receptacle}", place)


def _kind(name: str) -> str:
    return name.split()[0]
