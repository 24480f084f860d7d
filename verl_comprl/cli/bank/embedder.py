"""The embedder of the bank commands: the one the arguments name, or the one the bank says it was built with.

Owns that choice. Whether it fits the bank's vectors is checked when the bank is opened with it.
"""

import argparse
from typing import Any

from verl_comprl.experience import Embedder, make_embedder

BUILTIN = "sentence-transformers/all-MiniLM-L6-v2"
"""What a bank built with ``builtin`` calls it."""


async def load_embedder(options: argparse.Namespace, identity: dict[str, Any]) -> Embedder:
    """Load the embedder, which takes seconds.

    Args:
        options: With ``embedder`` (a sentence-transformers model, ``builtin``, or None), ``embedder_url``,
            ``query_prompt`` and ``document_prompt``.
        identity: What the bank was built with; looked at where ``options`` say nothing.

    Raises:
        ValueError: If it cannot be loaded.
    """
    stored = identity.get("model", "")
    model = options.embedder or stored
    same = model == stored or (model == "builtin" and stored == BUILTIN)
    built = identity if same else {}
    if same and "weights" not in identity and not options.embedder_url:
        raise ValueError(f"embedder {model!r} was served by an endpoint; name it by --embedder-url")
    try:
        return await make_embedder(
            "builtin" if model == BUILTIN and not options.embedder_url else model,
            url=options.embedder_url or "",
            query_prompt=options.query_prompt or built.get("query_prompt"),
            document_prompt=options.document_prompt or built.get("document_prompt"),
        )
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"embedder {model!r} cannot be loaded: {reason}; name another by --embedder") from error
