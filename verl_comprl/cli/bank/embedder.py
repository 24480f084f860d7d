"""Selects the embedder for the bank commands: the one the arguments name, or the one the bank was built with.

Owns that choice. Opening the bank with the embedder checks that it fits the bank's vectors.
"""

import argparse
import os
import sys
from functools import partial
from typing import Any

from verl_comprl.display.first_line import first_line
from verl_comprl.display.long_waits import said_when_long
from verl_comprl.experience import Embedder, make_embedder

BUILTIN = "sentence-transformers/all-MiniLM-L6-v2"
"""Model name that a bank built with ``builtin`` stores."""
_SHOWN = 200
"""Characters of a name that a bank gives."""


async def load_embedder(options: argparse.Namespace, identity: dict[str, Any]) -> Embedder:
    """Load the embedder; this takes seconds.

    Args:
        options: With ``embedder`` (a sentence-transformers model, ``builtin``, or None), ``embedder_url``,
            ``query_prompt``, ``document_prompt`` and ``documents``.
        identity: The embedder that the bank was built with; used where ``options`` set nothing.

    Raises:
        ValueError: If the embedder cannot be loaded, or the identity alone names a file or folder.
        ImportError: If what it needs is not installed.
    """
    stored = identity.get("model", "")
    model = options.embedder or stored
    same = stored in (model, os.path.basename(os.path.abspath(model))) or (model == "builtin" and stored == BUILTIN)
    built = identity if same else {}
    if same and "weights" not in identity and not options.embedder_url:
        raise ValueError(
            f"embedder {str(model)[:_SHOWN]!r} was served by an endpoint; pass its address with --embedder-url"
        )
    if not (options.embedder or options.embedder_url or model in ("builtin", BUILTIN)) and _is_here(str(model)):
        raise ValueError(
            f"the bank names the embedder {str(model)[:_SHOWN]!r}, which is a file or folder here; "
            "load what you trust with --embedder"
        )
    try:
        with said_when_long(f"loading the embedder {model}", partial(print, file=sys.stderr)):  # a hub may be asked
            return await make_embedder(
                "builtin" if model == BUILTIN and not options.embedder_url else model,
                url=options.embedder_url or "",
                query_prompt=_given(options.query_prompt, built.get("query_prompt")),
                document_prompt=_given(options.document_prompt, built.get("document_prompt")),
                documents=options.documents or identity.get("documents", "text"),
            )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"embedder {model!r} cannot be loaded: {first_line(error)}; choose another with --embedder"
        ) from error


def _is_here(model: str) -> bool:
    """Return whether a name that a bank gives is a file or folder here, which whoever made the bank may have put there.

    sentence-transformers looks in a folder of its own name as well.
    """
    return os.path.exists(model) or os.path.exists(os.path.join("sentence-transformers", model))


def _given(value: str | None, otherwise: str | None) -> str | None:
    """Return the value of an argument, which may be empty, or what counts without it."""
    return otherwise if value is None else value
