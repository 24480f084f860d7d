"""Writes the page: the front end of ``web/`` and the blocks of the runs, in one HTML file that needs nothing else.

The front end consists of JavaScript modules, which import one another by name through an import map of ``data:`` URLs.
A content security policy forbids every request and every script but these, so that even text of a run that got past the
front end's escaping could neither run nor send anything.
"""

import base64
import html
import secrets
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import orjson

from verl_comprl.viewer.blocks import Block

_WEB = files("verl_comprl.viewer") / "web"
_VENDOR = {"preact": "preact.js", "preact/hooks": "preact_hooks.js", "htm": "htm.js", "uplot": "uplot.js"}
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}' 'strict-dynamic'; style-src 'nonce-{nonce}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_page(file: Path, title: str, blocks: Iterable[Block]) -> None:
    """Write the page; an existing file, or a link, is replaced only when the new one is complete.

    Args:
        file: HTML file; its folder is created.
        title: Title of the browser's window.
        blocks: Written in this order; the page is painted as soon as the first ones have been read.

    Raises:
        OSError: If the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    building = file.with_name(f".{file.name}.building")
    try:
        building.unlink(missing_ok=True)  # the folder may be somebody else's, and this a link to elsewhere or a pipe
        with building.open("x", encoding="utf-8") as out:
            out.write(_head(title))
            for block in blocks:
                out.write(f'<script type="text/plain" id="{html.escape(block.name)}">{block.text}</script>\n')
            out.write("</body>\n</html>\n")
        building.replace(file)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(building)):
            error.filename = str(file)  # the user knows no other name
        raise
    finally:
        building.unlink(missing_ok=True)


def _head(title: str) -> str:
    nonce = secrets.token_urlsafe(16)
    parts = {
        "POLICY": _POLICY.format(nonce=nonce),
        "NONCE": nonce,
        "STYLE": _read("vendor/uplot.css") + _read("style.css"),
        "IMPORTS": orjson.dumps({"imports": _modules()}).decode(),
        "TITLE": html.escape(title),
    }
    page = _read("index.html")
    for name, text in parts.items():
        page = page.replace(f"%{name}%", text)
    return page


def _modules() -> dict[str, str]:
    own = {f"viewer/{file.name.removesuffix('.js')}": file for file in _WEB.iterdir() if file.name.endswith(".js")}
    return {name: _data_url(file) for name, file in sorted(own.items())} | {
        name: _data_url(_WEB / "vendor" / file) for name, file in _VENDOR.items()
    }


def _data_url(file: Traversable) -> str:
    return "data:text/javascript;base64," + base64.b64encode(file.read_bytes()).decode()


def _read(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")
