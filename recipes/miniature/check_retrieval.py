"""Checks that titles decide what is retrieved: how often the best hit for a held-out instance is about its rule."""

import asyncio

import numpy as np

from env_adapters.vaults.task import goal
from env_adapters.vaults.world import FAMILIES, KINDS, Vault, names_of
from recipes.miniature.entries import STYLES, title
from verl_comprl.experience.embedding.base import make_embedder

EXPECTED = {
    "right_rule_name": (0.0, 0.15),
    "right_rule_kind_adjective": (0.15, 0.55),
    "right_rule_kind_family": (0.95, 1.0),
}
"""Allowed range of each figure, with three families in a bank."""


def check_retrieval(*, world: int = 0) -> dict[str, float]:
    """Return, for each title style, the share of held-out instances whose best hit is an entry about their rule.

    The bank has an entry in this style about every training instance; of equally similar entries each counts in part.
    """
    return asyncio.run(_check(world))


async def _check(world: int) -> dict[str, float]:
    embedder = await make_embedder("builtin")
    known, asked = _instances(world, "train"), _instances(world, "val")
    queries = await embedder.embed_queries([goal(vault) for vault in asked])
    rules = np.array([[(one.family, one.kind) == (two.family, two.kind) for two in known] for one in asked])
    figures = {}
    for style in STYLES:
        similarity = queries @ (await embedder.embed_documents([title(vault, style) for vault in known])).T
        best = similarity >= similarity.max(axis=1, keepdims=True) - 1e-6
        figures[f"right_rule_{style}"] = float(((best & rules).sum(axis=1) / best.sum(axis=1)).mean())
    return figures


def _instances(world: int, split: str) -> list[Vault]:
    return [
        Vault(family, kind, *name, ())
        for family in FAMILIES
        for kind in KINDS
        for name in names_of(world, family, kind, split)
    ]
