"""The embedder of the bank commands: the one the arguments name, or the one the bank says it was built with.

Owns that choice. Whether it fits the bank's vectors is checked when the bank is opened with it.
"""

import argparse
from typing import Any

from verl_comprl.experience import Embedder, SentenceTransformerEmbedder

BUILTIN = "sentence-transformers/all-MiniLM-L6-v2"
"""What a bank built with ``builtin`` calls it."""


def load_embedder(options: argparse.Namespace, identity: dict[str, Any]) -> Embedder:
    """Load the embedder, which takes seconds.

    Args:
        options: With ``embedder``, a sentence-transformers model, ``builtin``, or None.
        identity: What the bank was built with; looked at where ``options`` name none.

    Raises:
        ValueError: If it cannot be loaded.
    """
    stored = identity.get("model", "")
    model = options.embedder or ("builtin" if stored == BUILTIN else stored)
    try:
        return SentenceTransformerEmbedder(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"embedder {model!r} cannot be loaded: {reason}; name another by --embedder") from error
