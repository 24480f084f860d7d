"""WebShop's search engine: BM25 over product texts.

Owns the ranking. Parameters and the limit of fifty results are those of upstream's Lucene index. ``shop`` chooses the
text of each product.
"""

import logging
from collections.abc import Iterable

import bm25s
import numpy as np

from env_adapters.webshop.stemmer import stem
from env_adapters.webshop.words import split_words

HITS = 50
"""Maximum number of products in a search result."""

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it asks for its own debug lines

_QUERY_LIMIT = 1000  # characters; the rest of a query is ignored


class SearchIndex:
    """An index of documents; read-only once built, so that threads may share it."""

    def __init__(self, documents: Iterable[str]) -> None:
        """Index the documents, at least one of them with a word in it."""
        self._stems: dict[str, int] = {}
        self._words: dict[str, int] = {}  # words before stemming, so that each is stemmed only once
        ids = [[self._learn(word) for word in split_words(document)] for document in documents]
        self._bm25 = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
        self._bm25.index((ids, self._stems), create_empty_token=False, show_progress=False)

    def search(self, query: str) -> list[int]:
        """Return the numbers of the documents that share a word with ``query``, best first, ties by number."""
        ids = [number for word in split_words(query[:_QUERY_LIMIT]) if (number := self._find(word)) is not None]
        if not ids:
            return []
        scores = self._bm25.get_scores_from_ids(ids)
        hits = np.flatnonzero(scores)
        if len(hits) > HITS:
            least = np.partition(scores[hits], -HITS)[-HITS]
            hits = hits[scores[hits] >= least]
        return hits[np.argsort(-scores[hits], kind="stable")][:HITS].tolist()

    def _learn(self, word: str) -> int:
        if word not in self._words:
            self._words[word] = self._stems.setdefault(stem(word), len(self._stems))
        return self._words[word]

    def _find(self, word: str) -> int | None:
        number = self._words.get(word)
        return self._stems.get(stem(word)) if number is None else number
