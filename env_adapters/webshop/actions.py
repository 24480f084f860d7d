"""Names of WebShop's buttons and actions."""

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
"""Template that is listed for the action of the search page."""

RESERVED = frozenset(text.lower() for text in (BACK, PREVIOUS, BUY, *SUB_PAGES))
"""Buttons of a product page, in lower case. Clicking such a text means the button, even if an option has that value."""
