"""The buttons of the shop."""

SEARCH = "Search"
BACK = "Back to Search"
NEXT = "Next >"
PREVIOUS = "< Prev"
BUY = "Buy Now"
DESCRIPTION = "Description"
FEATURES = "Features"
REVIEWS = "Reviews"
SUB_PAGES = (DESCRIPTION, FEATURES, REVIEWS)

SEARCH_FORM = "search[<query>]"
"""How the action of the search page is listed."""

RESERVED = frozenset(text.lower() for text in (BACK, PREVIOUS, BUY, *SUB_PAGES))
"""Buttons of a product's page: a click on such a text means them, even where an option has that value."""
