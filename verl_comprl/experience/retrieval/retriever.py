"""Answers a query with one entry: embeds the query, searches the store, and ranks the hits (Eq. 6).

Owns the steps of a retrieval and the cache of search results. The formulas are in ``ranking``, micro-batching in
``batching``, the cache of their vectors in ``embedding.vector_cache``.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np

from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.embedding.base import Embedder
from verl_comprl.experience.embedding.vector_cache import VectorCache, is_usable
from verl_comprl.experience.ledger import Ledger
from verl_comprl.experience.retrieval.batching import MicroBatcher
from verl_comprl.experience.retrieval.ranking import (
    evaluation_score,
    least_used,
    mean_success,
    positions,
    surviving,
    training_score,
)
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.statistics import Status
from verl_comprl.experience.store.base import Hit, SearchRequest
from verl_comprl.experience.updates.sanitize import sanitize

_log = logging.getLogger(__name__)

_MAX_POOLS = 4096


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Result of a retrieval.

    ``status`` is ``found``, ``nothing`` (no entry in the scope) or ``degraded`` (the store or the embedder failed).
    """

    status: Status
    entry: Experience | None
    seconds: float


class _Query(NamedTuple):
    text: str
    task: str | None
    environment: str | None


class Retriever:
    """Answers queries in micro-batches; each micro-batch sees one consistent state of the bank."""

    def __init__(self, config: BankConfig, embedder: Embedder, ledger: Ledger) -> None:
        """Search the entries of ``ledger``."""
        self._config = config
        self._ledger = ledger
        self._batcher = MicroBatcher(self._answer, max_batch=config.max_batch, max_wait_ms=config.max_wait_ms)
        self._clean = lru_cache(_MAX_POOLS)(lambda text: sanitize(text, config.max_content_chars))
        # Most similar entries by query, since the rollouts of a prompt send the same one. Valid for one version of the
        # ledger only: any change can add a more similar entry or remove one of these. Counts move without a new
        # version, so a pool is ranked again for every query.
        self._pools: dict[_Query, list[Hit]] = {}
        self._pools_version = 0
        self._degraded_logged = False
        self.random = Random(0)
        self.use(embedder)

    def use(self, embedder: Embedder) -> None:
        """Switch to ``embedder``, and drop the query vectors of the previous one."""
        self.queries = VectorCache(embedder.embed_queries)

    async def retrieve(
        self,
        text: str,
        *,
        scope: tuple[str | None, str | None],
        count: bool,
        explore: bool = False,
        task: str = "",
    ) -> tuple[Experience | None, Status]:
        """Return the best entry, and the status; never raises.

        Args:
            text: The query.
            scope: Task and environment an entry must have; None for any.
            count: Whether to rank by Eq. 6 and to count the retrieval, as in training. If not, similarity and success
                decide, and the answer depends on nothing but the query and the bank.
            explore: Draw one of the least used entries of the scope instead of searching.
            task: Task of the episode, to whose entries exploration keeps.
        """
        if not self._ledger.table.by_id and not self._ledger.store.shared:
            return None, "nothing"
        try:
            query = _Query(self._clean(text), *scope)
            if not query.text and not explore:
                return None, "nothing"
            entry = await self._explore(query, count, task) if explore else await self._batcher.submit((query, count))
        except Exception:  # whatever the store or the embedder raises, the rollout continues without experience
            if not self._degraded_logged:
                _log.exception("retrieval is degraded: rollouts get no experience; further failures are only counted")
                self._degraded_logged = True
            return None, "degraded"
        return entry, "found" if entry else "nothing"

    async def search(
        self,
        text: str,
        limit: int,
        *,
        scope: tuple[str | None, str | None] = (None, None),
        exclude: frozenset[str] = frozenset(),
        quarantined: bool = True,
    ) -> list[tuple[Experience, float]]:
        """Return the most similar entries with their cosine similarities, none for an empty text; counts nothing."""
        text = self._clean(text)
        if not text:
            return []
        async with self._embedded([text]) as (vector,):
            if isinstance(vector, Exception):
                raise vector
            request = SearchRequest(vector, limit, *scope, exclude=exclude, quarantined=quarantined)
            (hits,) = await self._ledger.search([request])
            by_id = self._ledger.table.by_id
            return [(by_id[hit.id], hit.score) for hit in hits if hit.id in by_id]

    @asynccontextmanager
    async def _embedded(self, texts: Sequence[str]) -> AsyncIterator[list[np.ndarray | Exception]]:
        """Embed queries, then block changes while the context is open; a slow embedder blocks none."""
        while True:
            queries = self.queries
            vectors = await queries.embed_each(texts)
            async with self._ledger.reading():
                if self.queries is queries:  # else the bank was embedded again meanwhile: these are vectors of another
                    yield vectors
                    return

    async def drain(self) -> None:
        """Wait until every query submitted so far has its answer."""
        await self._batcher.drain()

    def _cached_pool(self, query: _Query) -> list[Hit] | None:
        changed = self._pools_version != self._ledger.version or self._ledger.store.shared
        if changed or len(self._pools) > _MAX_POOLS:
            self._pools.clear()
            self._pools_version = self._ledger.version
        return self._pools.get(query)

    async def _answer(self, queries: list[tuple[_Query, bool]]) -> list[Experience | Exception | None]:
        """Answer a micro-batch: embed, then search and choose under the read lock; identical queries share a search.

        A query that cannot be embedded, or whose vector cannot be used, gets an exception, the others their answers.
        """
        distinct = list(dict.fromkeys(query for query, _ in queries))
        async with self._embedded([query.text for query in distinct]) as embedded:
            vectors = dict(zip(distinct, map(_checked, embedded), strict=True))
            failed = {query: vector for query, vector in vectors.items() if isinstance(vector, Exception)}
            pools = {query: self._cached_pool(query) for query in distinct}
            unknown = {
                query: SearchRequest(
                    vector, self._config.retrieval_pool, task=query.task, environment=query.environment
                )
                for query, vector in vectors.items()
                if pools[query] is None and not isinstance(vector, Exception)
            }
            # A store can hold entries that memory does not, after a write that failed half way: those are no answers.
            table = self._ledger.table
            for query, hits in zip(unknown, await self._ledger.search([*unknown.values()]), strict=True):
                found = [hit for hit in hits if hit.id in table.by_id and hit.id not in table.quarantined]
                self._pools[query] = pools[query] = found
            return [
                failed[query] if (pool := pools[query]) is None else self._choose(pool, count)
                for query, count in queries
            ]

    async def _explore(self, query: _Query, count: bool, task: str) -> Experience | None:
        """Draw one of the least used entries that ``query`` could find: of those of its task, if there are any.

        A search brings up what the query is about, a draw does not. An entry of another task would be judged by an
        episode that it says nothing about.
        """
        table = self._ledger.table
        while entries := [entry for entry in table.by_id.values() if _may_answer(entry, query)]:
            drawn = self.random.choice(least_used([entry for entry in entries if task in entry.tasks] or entries))
            await self._ledger.refresh([drawn.id])  # a reader's: it may be quarantined or deleted since it was read
            if (entry := table.by_id.get(drawn.id)) and _may_answer(entry, query):
                return self._count_retrieval(entry, time.time(), count)
        return None

    def _choose(self, pool: Sequence[Hit], count: bool) -> Experience | None:
        """Return the entry of ``pool`` with the highest score; ties go to the first."""
        # No await in here: the count must change before the next query is ranked, or the identical queries of a group,
        # which share a batch and a pool, would all get the same entry.
        if not pool:
            return None
        config, now = self._config, time.time()
        entries = [self._ledger.table.by_id[hit.id] for hit in pool]
        prior = 0.0 if count else mean_success(entries, config.asked_weight)
        places = positions([hit.score for hit in pool])

        def score(index: int) -> float:
            entry = entries[index]
            if not count:
                return evaluation_score(pool[index].score, entry, prior=prior, asked_weight=config.asked_weight)
            size, lam, recency = config.retrieval_pool, config.diversity, config.recency_seconds
            return training_score(places[index], entry, now, pool=size, lam=lam, recency=recency)

        left = surviving(len(pool), config.candidate_dropout if count else 0.0, self.random)
        return self._count_retrieval(entries[max(left, key=score)], now, count)

    def _count_retrieval(self, entry: Experience, now: float, count: bool) -> Experience:
        if not count:
            return entry
        return self._ledger.table.set_counters(entry.id, retrievals=entry.retrievals + 1, last_retrieved_at=now)


def _checked(vector: np.ndarray | Exception) -> np.ndarray | Exception:
    if isinstance(vector, Exception) or is_usable(vector):
        return vector
    return ValueError("the embedder gave a vector that is zero or not finite")


def _may_answer(entry: Experience, query: _Query) -> bool:
    """Return whether a search for ``query`` could find ``entry``; has to agree with the filters of the stores."""
    return (
        not entry.quarantined
        and query.task in (None, *entry.tasks)
        and query.environment in (None, *entry.environments)
    )
