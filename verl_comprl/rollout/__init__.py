"""What happens during an episode: guidance, the agent loop and the ``search_and_ask`` tool."""
