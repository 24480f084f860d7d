"""Reads and writes WebShop's data files.

Owns file names, formats and the choice of the data source. ``product`` and ``goals`` interpret the records.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYNTHETIC = "synthetic"
VARIABLE = "WEBSHOP_DATA"

_PAIRS = (("items_shuffle_1000.json", "items_ins_v2_1000.json"), ("items_shuffle.json", "items_ins_v2.json"))
_HUMAN = "items_human_ins.json"
_REVIEWS = "reviews.json"


@dataclass(frozen=True, slots=True)
class Records:
    """Content of the data files.

    Attributes:
        products: Product records.
        attributes: Attributes and synthetic instruction, by product.
        human: Human instructions, by product; None without that file.
        reviews: Reviews, by product.
    """

    products: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    human: dict[str, list[dict[str, Any]]] | None
    reviews: dict[str, dict[str, Any]]


def resolve_data(data: str | None) -> str:
    """Resolve the option ``data`` to an absolute folder or ``SYNTHETIC``.

    Args:
        data: ``SYNTHETIC`` or a folder. None means the folder in ``$WEBSHOP_DATA``, or ``SYNTHETIC`` if that is unset.
    """
    data = data or os.environ.get(VARIABLE) or SYNTHETIC
    return data if data == SYNTHETIC else str(Path(data).expanduser().absolute())


def read_records(folder: Path) -> Records:
    """Read the files in ``folder``, preferring those with 1,000 products over the full ones.

    Raises:
        ValueError: If neither pair of files is complete.
    """
    for products, attributes in _PAIRS:
        if (folder / products).is_file() and (folder / attributes).is_file():
            human = folder / _HUMAN
            reviews = folder / _REVIEWS
            return Records(
                products=_read(folder / products),
                attributes=_read(folder / attributes),
                human=_read(human) if human.is_file() else None,
                reviews={entry["asin"]: entry for entry in _read(reviews)} if reviews.is_file() else {},
            )
    wanted = "; or ".join(" and ".join(pair) for pair in _PAIRS)
    raise ValueError(f"no WebShop data in {str(folder)!r}; needed: {wanted}")


def write_records(records: Records, folder: Path) -> None:
    """Write the records into ``folder``, under the names of the files with 1,000 products."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / _PAIRS[0][0], records.products)
    _write(folder / _PAIRS[0][1], records.attributes)
    _write(folder / _REVIEWS, list(records.reviews.values()))
    if records.human is not None:
        _write(folder / _HUMAN, records.human)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
