"""Turns links from a page of the documentation into the source code, which the site does not contain.

With ``extra.repository`` they become links to the repository, otherwise plain text. A link to a file that does not
exist is a warning, which ends a strict build.
"""

import logging
import os
import re
from pathlib import Path
from typing import Any

logger = logging.getLogger("mkdocs.hooks.source_links")

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of one page; MkDocs calls this before it reads the page."""
    docs = Path(config.docs_dir)
    root = docs.parent
    repository = str(config.extra.get("repository") or "").rstrip("/")

    def rewritten(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(docs / Path(page.file.src_uri).parent / link["target"]))
        if target.is_relative_to(docs):
            return link[0]
        path = target.relative_to(root).as_posix() if target.is_relative_to(root) else link["target"]
        if not target.exists():
            logger.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        if repository:
            kind = "tree" if target.is_dir() else "blob"
            return f"[{link['text']}]({repository}/{kind}/main/{path}{link['anchor'] or ''})"
        return link["text"] if target.name in link["text"] else f"{link['text']} (`{path}`)"

    return _LINK.sub(rewritten, markdown)
