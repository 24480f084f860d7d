"""One episode: guidance, the agent loop and the ``search_and_ask`` tool."""
