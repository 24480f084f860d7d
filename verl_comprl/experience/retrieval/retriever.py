"""From a query to one entry: embed, search, choose.

Owns the path of a retrieval and what is kept between two of them. Ranking and micro-batches are ``retrieval``'s,
vectors by text ``query_cache``'s.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple

from cachetools import LRUCache

from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.embedding.base import Embedder
from verl_comprl.experience.ledger import Ledger
from verl_comprl.experience.retrieval.batching import MicroBatcher
from verl_comprl.experience.retrieval.query_cache import QueryCache
from verl_comprl.experience.retrieval.ranking import diversified_rank
from verl_comprl.experience.schema import Experience
from verl_comprl.experience.statistics import Status
from verl_comprl.experience.store.base import SearchRequest
from verl_comprl.experience.updates.sanitize import sanitize

_log = logging.getLogger(__name__)

_MAX_POOLS = 4096
_MAX_EVALUATIONS = 4


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The answer to a query: an entry, nothing in the scope, or a failure of store or embedder (``degraded``)."""

    status: Status
    entry: Experience | None
    seconds: float


class _Query(NamedTuple):
    text: str
    task: str | None
    environment: str | None
    max_step: int | None
    exclude: frozenset[str]


class Retriever:
    """Queries in micro-batches, each answered as of one moment of the bank."""

    def __init__(self, config: BankConfig, embedder: Embedder, ledger: Ledger) -> None:
        """Search the entries of ``ledger``."""
        self._config = config
        self._ledger = ledger
        self._batcher = MicroBatcher(self._answer, max_batch=config.max_batch, max_wait_ms=config.max_wait_ms)
        self._clean = lru_cache(_MAX_POOLS)(lambda text: sanitize(text, config.max_content_chars))
        # Most similar entries by query, as of a version: the rollouts of one prompt ask the same at the same time.
        self._pools: dict[_Query, list[str]] = {}
        self._pools_version = 0
        self._degraded_logged = False
        self._evaluations: LRUCache[str, Counter[str]] = LRUCache(_MAX_EVALUATIONS)
        self.use(embedder)

    def use(self, embedder: Embedder) -> None:
        """Embed queries with ``embedder`` from now on."""
        self.queries = QueryCache(embedder)

    async def retrieve(
        self,
        text: str,
        *,
        scope: tuple[str | None, str | None],
        exclude: frozenset[str],
        max_step: int | None,
        count: bool,
        at_random: Random | None = None,
        evaluation_id: str = "",
    ) -> tuple[Experience | None, Status]:
        """Return the entry that Eq. 6 puts first, and how that went; never raises.

        Args:
            text: The query.
            scope: Task and environment an entry must have; None for any.
            exclude: Ids not to return.
            max_step: Only entries created at this step or before; None for any.
            count: Whether the retrieval counts.
            at_random: Draw any entry instead of searching.
            evaluation_id: Retrievals of the same name count among themselves.
        """
        if not self._ledger.table.by_id:
            return None, "nothing"
        try:
            query = _Query(self._clean(text), *scope, max_step, exclude)
            if at_random:
                entry = self._sample(query, at_random, count)
            else:
                entry = await self._batcher.submit((query, count, evaluation_id))
        except Exception:  # whatever store or embedder raise, an actor goes on without experience
            if not self._degraded_logged:
                _log.exception("retrieval is degraded: actors get no experience; further failures are only counted")
                self._degraded_logged = True
            return None, "degraded"
        return entry, "found" if entry else "nothing"

    async def search(self, text: str, limit: int) -> list[tuple[Experience, float]]:
        """Return the most similar entries, quarantined ones too, with their cosine similarities; counts nothing."""
        vectors = await self.queries.embed([self._clean(text)])
        async with self._ledger.reading():
            (hits,) = await self._ledger.store.search([SearchRequest(vectors[0], limit)])
            by_id = self._ledger.table.by_id
            return [(by_id[hit.id], hit.score) for hit in hits if hit.id in by_id]

    async def drain(self) -> None:
        """Wait until every query so far has its answer."""
        await self._batcher.drain()

    def _known_pool(self, query: _Query) -> list[str] | None:
        if self._pools_version != self._ledger.version or len(self._pools) > _MAX_POOLS:
            self._pools.clear()
            self._pools_version = self._ledger.version
        return self._pools.get(query)

    async def _answer(self, queries: list[tuple[_Query, bool, str]]) -> list[Experience | None]:
        """Answer a micro-batch: embed, then search and choose under the read lock; identical queries once."""
        distinct = list(dict.fromkeys(query for query, *_ in queries))
        vectors = dict(zip(distinct, await self.queries.embed([query.text for query in distinct]), strict=True))
        async with self._ledger.reading():
            pools = {query: self._known_pool(query) for query in distinct}
            unknown = [query for query, pool in pools.items() if pool is None]
            requests = [
                SearchRequest(
                    vectors[query],
                    self._config.retrieval_pool,
                    task=query.task,
                    environment=query.environment,
                    max_step=query.max_step,
                    exclude=query.exclude | self._ledger.table.quarantined,
                )
                for query in unknown
            ]
            for query, hits in zip(unknown, await self._ledger.store.search(requests), strict=True):
                self._pools[query] = pools[query] = [hit.id for hit in hits if hit.id in self._ledger.table.by_id]
            return [self._choose(pools[query] or [], count, evaluation_id) for query, count, evaluation_id in queries]

    def _sample(self, query: _Query, random: Random, count: bool) -> Experience | None:
        """Draw an entry of the query's scope, each as likely as any other."""
        entries = [entry for entry in self._ledger.table.by_id.values() if _may_answer(entry, query)]
        return self._count_retrieval(random.choice(entries), time.time(), count) if entries else None

    def _choose(self, pool: Sequence[str], count: bool, evaluation_id: str) -> Experience | None:
        """Choose by Eq. 6; no await, so that a count moves before the next query looks at it."""
        by_id = self._ledger.table.by_id
        now = time.time()
        evaluated = self._evaluations.setdefault(evaluation_id, Counter()) if evaluation_id else Counter()

        def history(id: str) -> tuple[int, float]:
            times = evaluated[id]
            return by_id[id].retrievals + times, now if times else by_id[id].last_retrieved_at

        best = diversified_rank(pool, history, now, lam=self._config.diversity, recency=self._config.recency_seconds)
        if best and evaluation_id:
            evaluated[best[0]] += 1
        return self._count_retrieval(by_id[best[0]], now, count) if best else None

    def _count_retrieval(self, entry: Experience, now: float, count: bool) -> Experience:
        if not count:
            return entry
        return self._ledger.table.count(entry.id, retrievals=entry.retrievals + 1, last_retrieved_at=now)


def _may_answer(entry: Experience, query: _Query) -> bool:
    """Whether a search for ``query`` could find ``entry``."""
    return (
        not entry.quarantined
        and entry.id not in query.exclude
        and query.task in (None, entry.task)
        and query.environment in (None, entry.environment)
        and (query.max_step is None or entry.created_step <= query.max_step)
    )
