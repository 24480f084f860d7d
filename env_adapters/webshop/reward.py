"""WebShop's reward formula: how well a purchase meets a goal.

Owns ``r_type * (attributes + options + price) / (|attributes| + |options| + 1)`` and its fuzzy comparisons. The
environment decides how this score becomes its reward.
"""

import re
from collections.abc import Iterable

from rapidfuzz.fuzz import token_set_ratio

from env_adapters.webshop.goal import Goal
from env_adapters.webshop.product import Product

# Upstream's list. An option value that contains one of these names counts as that color; the first match decides.
_COLOR_NAMES = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki
lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard
natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver
skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
"""
_COLORS = tuple(_COLOR_NAMES.split())
_COLOR_SET = frozenset(_COLORS)

_NO_WORD = re.compile(r"\W")
_MATCH = 85
_LATIN_1 = dict.fromkeys(range(128, 256))  # thefuzz, which upstream uses, deletes these characters


def grade(product: Product, chosen: Iterable[str], goal: Goal) -> float:
    """Return the reward in [0, 1] of buying ``product`` with the option values ``chosen``."""
    values = list(chosen)
    met = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    met += sum(any(meets_option(value, *option) for value in values) for option in goal.options)
    met += product.price <= goal.price_upper
    return met / (len(goal.attributes) + len(goal.options) + 1) * type_factor(product, goal.product)


def type_factor(product: Product, wanted: Product) -> float:
    """Return how well the type of ``product`` matches that of ``wanted``: 1, 0.5, 0.1 or 0."""
    overlap = 0.2
    if wanted.type_words:
        overlap = len(set(product.type_words) & set(wanted.type_words)) / len(wanted.type_words)
    if overlap < 0.1:
        return 0.1 if overlap else 0.0
    same_kind = product.query == wanted.query or len(product.categories & wanted.categories) >= 2
    return 1.0 if same_kind or overlap > 0.2 else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Return whether one of the product's attributes is similar to ``attribute``, or its texts contain it."""
    return any(_similar(own, attribute) for own in product.attributes) or any(
        attribute in text.lower() for text in (product.title, " ".join(product.features), product.description)
    )


def meets_option(value: str, wanted_name: str | None, wanted: str) -> bool:
    """Return whether choosing ``value`` satisfies an option of a goal; ``wanted_name`` is None if it is not known."""
    if wanted_name is None:
        return _similar(_color_of(value), _color_of(wanted))
    # Upstream's mistake, kept so that scores agree: it checks whether one of the two strings is a color instead of
    # looking for a color in the value, and otherwise compares the string representation of the pair.
    pair = (wanted_name, wanted)
    return _similar(_color_of(value), min(_COLOR_SET.intersection(pair), default=str(pair)))


def _color_of(value: str) -> str:
    return next((color for color in _COLORS if color in value), value)


def _similar(own: str, wanted: str) -> bool:
    return round(token_set_ratio(_plain(own), _plain(wanted))) > _MATCH


def _plain(text: str) -> str:
    return _NO_WORD.sub(" ", text.translate(_LATIN_1)).lower().strip()
