"""Finds the options with which a purchase earns the full reward of a WebShop goal.

Used to leave out goals that cannot be reached, and by the scripted buyer.
"""

from env_adapters.webshop.goal import Goal
from env_adapters.webshop.reward import grade, meets_option


def solve(goal: Goal) -> dict[str, str] | None:
    """Return the options, name to value, with which the goal's own product earns reward 1, else None."""
    names = goal.product.option_names
    named = {name: value for name, value in goal.options if name is not None and names.get(value) == name}
    if grade(goal.product, named.values(), goal) == 1:
        return named
    if grade(goal.product, names, goal) < 1:  # not even with all values at once, which no purchase can have
        return None
    return _choose(goal.options, names, {})


def _choose(
    wanted: tuple[tuple[str | None, str], ...], names: dict[str, str], chosen: dict[str, str]
) -> dict[str, str] | None:
    """Extend ``chosen`` by one value per name until it meets all of ``wanted``; exact values are tried first."""
    if not wanted:
        return chosen
    name, value = wanted[0]
    fits = [own for own in names if names[own] not in chosen and meets_option(own, name, value)]
    for own in sorted(fits, key=lambda own: own != value):
        if (found := _choose(wanted[1:], names, {**chosen, names[own]: own})) is not None:
            return found
    if any(meets_option(own, name, value) for own in chosen.values()):
        return _choose(wanted[1:], names, chosen)
    return None
