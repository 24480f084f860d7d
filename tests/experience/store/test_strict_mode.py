"""A server's strict mode: limits that an administrator sets on a collection, to which requests are fitted."""

import numpy as np
from qdrant_double import QdrantDouble
from test_server_faults import entries, opened, vectors

from verl_comprl.experience import BankConfig, derive_id
from verl_comprl.experience.store.base import SearchRequest


async def test_strict_mode_is_fitted(double: QdrantDouble, config: BankConfig) -> None:
    await (await opened(config)).close()
    double.collections[f"{config.collection}.v1"]["strict"] = {
        "enabled": True, "upsert_max_batchsize": 32, "search_max_batchsize": 8, "max_query_limit": 100
    }  # fmt: skip
    store = await opened(config)
    await store.upsert(entries(70), vectors(70))
    assert len(await store.load()) == 70
    found = await store.search([SearchRequest(row, 300) for row in vectors(20)])
    assert [len(hits) for hits in found] == [70] * 20
    await store.close()


async def test_where_exact_searches_are_forbidden_the_index_is_searched(
    double: QdrantDouble, config: BankConfig
) -> None:
    await (await opened(config)).close()
    double.collections[f"{config.collection}.v1"]["strict"] = {"enabled": True, "search_allow_exact": False}
    store = await opened(config)
    await store.search([SearchRequest(vectors(1)[0], 1)])
    assert double.bodies[-1]["searches"][0]["params"]["exact"] is False
    await store.close()


async def test_more_ids_are_left_out_than_a_condition_may_name(double: QdrantDouble, config: BankConfig) -> None:
    await (await opened(config)).close()
    double.collections[f"{config.collection}.v1"]["strict"] = {"enabled": True, "condition_max_size": 3}
    store = await opened(config)
    await store.upsert(entries(30), vectors(30))
    nearest = [derive_id("e", int(n)) for n in np.argsort(-(vectors(30) @ vectors(1)[0]))]
    for left_out in (3, 7):
        (hits,) = await store.search([SearchRequest(vectors(1)[0], 5, exclude=frozenset(nearest[:left_out]))])
        assert [hit.id for hit in hits] == nearest[left_out : left_out + 5]
    await store.close()
