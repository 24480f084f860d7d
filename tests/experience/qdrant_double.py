"""A Qdrant server for tests: the REST calls that our store makes, on the embedded engine, with injected faults.

Replaces a real server, which cannot be installed with pip. Implements only what ``ServerStore`` calls; requests are
checked with qdrant-client's models, and answers are those that a real server gave (``store/test_exchanges.py``).
"""

import asyncio
import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import qdrant_edge as edge
from edge_types import condition_of, filter_of, is_uuid, record_of, vector_of
from local_server import LocalServer
from pydantic import ValidationError
from qdrant_client.http import models
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Refused(Exception):
    """An answer with an error: status and text."""


def missing(name: str) -> Refused:
    return Refused(404, f"Not found: Collection `{name}` doesn't exist!")


class Faults:
    """The faults to inject."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.responses: list[tuple[int, dict[str, str]]] = []
        """Status and headers of the next answers to calls whose path ends with ``only``."""
        self.only = ""
        self.text = "provoked"
        self.creation_race = False
        """Another process wins the next creation, and the collection cannot be read in the next two requests."""
        self.unreadable = 0
        self.unreadable_status = 404
        """500 is known from reports about clusters: "0 of 0 read operations failed"."""
        self.lost_answers = 0
        """Number of calls to ``only`` that are carried out and then answered with a 502."""
        self.ignore_indexes = False
        self.status = "completed"
        self.tamper: Callable[[Any], Any] | None = None
        """Changes the results of calls, as a server would that is broken or hostile."""


class QdrantDouble:
    """One server at ``url``; ``stop`` and ``start`` keep port and content."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.parameters: list[tuple[str, dict[str, str]]] = []
        """Path and query parameters of each request."""
        self.in_flight = self.most_in_flight = 0
        self.keys: set[str | None] = set()
        self.collections: dict[str, dict[str, Any]] = {}
        self.aliases: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory()
        self._lock = threading.Lock()
        self._waits = True
        self._server = LocalServer(self._app())
        self.url = self._server.url

    def start(self) -> "QdrantDouble":
        self._server.start()
        return self

    def stop(self) -> None:
        self._server.stop()

    def close(self) -> None:
        self.stop()
        for collection in self.collections.values():
            collection["shard"].close()
        self._folder.cleanup()

    def empty(self) -> None:
        """Forget everything, as a server that comes back without its storage."""
        with self._lock:
            for name in [*self.collections]:
                self._drop(name, None)

    def _app(self) -> Starlette:
        name = "/collections/{name}"
        checks: dict[Any, Any] = {
            self._change_aliases: models.ChangeAliasesOperation,
            self._create: models.CreateCollection,
            self._change_metadata: models.UpdateCollection,
            self._create_index: models.CreateFieldIndex,
            self._upsert: models.PointsList,
            self._retrieve: models.PointRequest,
            self._delete: models.PointIdsList,
            self._batch: models.UpdateOperations,
            self._scroll: models.ScrollRequest,
            self._count: models.CountRequest,
            self._query: models.QueryRequestBatch,
        }
        routes: list[tuple[str, str, Callable[[str, Any], Any]]] = [
            ("GET", "/aliases", self._get_aliases),
            ("GET", "/collections", lambda _, __: {"collections": [{"name": n} for n in sorted(self.collections)]}),
            ("POST", "/collections/aliases", self._change_aliases),
            ("GET", f"{name}/exists", lambda name, _: {"exists": name in self.collections or name in self.aliases}),
            ("PUT", name, self._create),
            ("GET", name, self._describe),
            ("PATCH", name, self._change_metadata),
            ("DELETE", name, self._drop),
            ("PUT", f"{name}/index", self._create_index),
            ("PUT", f"{name}/points", self._upsert),
            ("POST", f"{name}/points", self._retrieve),
            ("POST", f"{name}/points/delete", self._delete),
            ("POST", f"{name}/points/batch", self._batch),
            ("POST", f"{name}/points/scroll", self._scroll),
            ("POST", f"{name}/points/count", self._count),
            ("POST", f"{name}/points/query/batch", self._query),
        ]
        return Starlette(
            routes=[
                Route(path, self._handler(work, checks.get(work)), methods=[method]) for method, path, work in routes
            ]
        )

    def _handler(self, work: Callable[[str, Any], Any], model: Any) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            self.requests.append((request.method, request.url.path))
            self.parameters.append((request.url.path, dict(request.query_params)))
            self.keys.add(request.headers.get("api-key"))
            self.in_flight += 1
            self.most_in_flight = max(self.in_flight, self.most_in_flight)
            try:
                if self.faults.delay:
                    await asyncio.sleep(self.faults.delay)
                if self.faults.responses and request.url.path.endswith(self.faults.only):
                    status, headers = self.faults.responses.pop(0)
                    return JSONResponse({"status": {"error": self.faults.text}}, status, headers)
                content = await request.body()
                if len(content) > 32 * 2**20:  # a real server closes the connection
                    return JSONResponse({"status": {"error": "too large"}}, 413)
                body = json.loads(content or b"null")
                self.bodies.append(body)
                if model is not None:
                    model.model_validate(body)
                with self._lock:
                    self._waits = request.query_params.get("wait") == "true"
                    self._limit(request)
                    result = work(request.path_params.get("name", ""), body)
                if self.faults.lost_answers and request.url.path.endswith(self.faults.only):
                    self.faults.lost_answers -= 1
                    return JSONResponse({"status": {"error": "provoked"}}, 502)
            except ValidationError as error:
                return JSONResponse({"status": {"error": f"Format error in JSON body: {error}"}}, 400)
            except Refused as error:
                status, text = error.args
                headers = {"retry-after": "60"} if status == 429 else {}
                return JSONResponse({"status": {"error": text}}, status, headers)
            finally:
                self.in_flight -= 1
            if self.faults.tamper:
                result = self.faults.tamper(result)
            return JSONResponse({"result": result, "status": "ok", "time": 0.0})

        return handle

    # ---- collections ----

    def _collection(self, name: str) -> dict[str, Any]:
        if self.aliases.get(name, name) not in self.collections:
            raise missing(name)
        return self.collections[self.aliases.get(name, name)]

    def _shard(self, name: str) -> edge.EdgeShard:
        return self._collection(name)["shard"]

    def _limit(self, request: Request) -> None:
        """Refuse what a collection's rate limits do not allow: a real one of 1 lets one read pass, and no write."""
        name: str = request.path_params.get("name", "")
        collection = self.collections.get(self.aliases.get(name, name))
        if collection is None or "/points" not in request.url.path:
            return
        kind = "write" if request.method == "PUT" or request.url.path.endswith(("/delete", "/points/batch")) else "read"
        limit, used = collection["strict"].get(f"{kind}_rate_limit"), collection["used"]
        used[kind] = used.get(kind, 0) + 1
        if limit is not None and used[kind] > limit - (kind == "write"):
            raise Refused(
                429,
                f"Rate limiting exceeded: {kind.title()} rate limit exceeded: Operation requires 1 tokens but only 0.0 "
                "were available. Retry after 60s",
            )

    def _within(self, name: str, limit: str, size: int, label: str) -> None:
        most = self._collection(name)["strict"].get(limit)
        if most is not None and size > most:
            raise Refused(
                400,
                f'Bad request: Limit exceeded {size} > {most} for "{label}". '
                f'Help: Reduce the "{label}" parameter to or below {most}.',
            )

    def _get_aliases(self, _: str, __: Any) -> Any:
        return {"aliases": [{"alias_name": a, "collection_name": c} for a, c in self.aliases.items()]}

    def _change_aliases(self, _: str, body: Any) -> bool:
        for action in body["actions"]:
            if "delete_alias" in action:
                self.aliases.pop(action["delete_alias"]["alias_name"], None)
            else:
                created = action["create_alias"]
                if created["alias_name"] in self.collections:
                    raise Refused(409, f"Wrong input: Collection `{created['alias_name']}` already exists!")
                if created["collection_name"] not in self.collections:
                    raise missing(created["collection_name"])
                self.aliases[created["alias_name"]] = created["collection_name"]
        return True

    def _create(self, name: str, body: Any) -> bool:
        if name in self.aliases:
            raise Refused(
                400, f"Wrong input: Can't create collection with name {name}. Alias with the same name already exists"
            )
        exists = Refused(409, f"Wrong input: Collection `{name}` already exists!")
        if name in self.collections:
            raise exists
        vectors = edge.EdgeVectorParams(size=body["vectors"]["size"], distance=edge.Distance.Dot)
        folder = Path(self._folder.name) / f"{len(self.requests)}-{name}"
        self.collections[name] = {
            "shard": edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors=vectors)),
            "metadata": body.get("metadata") or {},
            "size": body["vectors"]["size"],
            "indexes": {},
            "strict": body.get("strict_mode_config") or {},
            "used": {},
        }
        if self.faults.creation_race:
            self.faults.creation_race, self.faults.unreadable = False, 2
            raise exists
        return True

    def _describe(self, name: str, _: Any) -> Any:
        if self.faults.unreadable:
            self.faults.unreadable -= 1
            status = self.faults.unreadable_status
            raise missing(name) if status == 404 else Refused(status, "0 of 0 read operations failed")
        collection = self._collection(name)
        return {
            "status": "green",
            "optimizer_status": "ok",
            "segments_count": 1,
            "payload_schema": collection["indexes"],
            "config": {
                "params": {"vectors": {"size": collection["size"], "distance": "Dot"}},
                "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10000},
                "optimizer_config": {
                    "deleted_threshold": 0.2,
                    "vacuum_min_vector_number": 1000,
                    "default_segment_number": 0,
                    "flush_interval_sec": 5,
                },
                "metadata": collection["metadata"],
                "strict_mode_config": collection["strict"] or None,
            },
        }

    def _change_metadata(self, name: str, body: Any) -> bool:
        metadata = self._collection(name)["metadata"] | body["metadata"]
        self._collection(name)["metadata"] = {key: value for key, value in metadata.items() if value is not None}
        return True

    def _drop(self, name: str, _: Any) -> bool:
        if name not in self.collections:
            return False
        self.collections.pop(name)["shard"].close()
        self.aliases = {alias: to for alias, to in self.aliases.items() if to != name}
        return True

    def _create_index(self, name: str, body: Any) -> Any:
        schema, field = body["field_schema"], body["field_name"]
        schema = {"type": schema} if isinstance(schema, str) else schema
        collection = self._collection(name)
        most = collection["strict"].get("max_payload_index_count")
        if most is not None and len({*collection["indexes"], field}) > most:
            raise Refused(
                400,
                f"Bad request: Collection already has the maximum number of payload indices ({most}). "
                "Help: Please delete an existing index before creating a new one.",
            )
        if not self.faults.ignore_indexes:
            kind = {"keyword": edge.PayloadSchemaType.Keyword, "integer": edge.PayloadSchemaType.Integer}
            self._shard(name).update(edge.UpdateOperation.create_field_index(field, kind[schema["type"]]))
            collection["indexes"][field] = {"data_type": schema["type"], "params": schema, "points": 0}
        return self._done()

    # ---- points ----

    def _done(self) -> Any:
        return {"operation_id": 0, "status": self.faults.status if self._waits else "acknowledged"}

    def _upsert(self, name: str, body: Any) -> Any:
        shard, size = self._shard(name), self._collection(name)["size"]
        self._within(name, "upsert_max_batchsize", len(body["points"]), "upsert limit")
        if not body["points"]:
            raise Refused(400, "Bad request: Empty update request")
        for point in body["points"]:
            if isinstance(point["id"], str) and not is_uuid(point["id"]):
                raise Refused(
                    400,
                    f"Format error in JSON body: value {point['id']} is not a valid point ID, "
                    "valid values are either an unsigned integer or a UUID",
                )
            if len(point["vector"]) != size:
                got = len(point["vector"])
                raise Refused(400, f"Wrong input: Vector dimension error: expected dim: {size}, got {got}")
        mode, condition = body.get("update_mode") or "upsert", body.get("update_filter")
        points = [
            edge.Point(id=p["id"], vector=p["vector"], payload=p.get("payload") or {})
            for p in body["points"]
            if self._applies(shard, p["id"], mode, condition)
        ]
        if points:
            shard.update(edge.UpdateOperation.upsert_points(points))
        return self._done()

    def _applies(self, shard: edge.EdgeShard, id: Any, mode: str, condition: Any) -> bool:
        """Return whether an upsert with a mode and a condition writes this point."""
        if not shard.retrieve([id], False, False):
            return mode != "update_only"
        if mode == "insert_only" or not condition:
            return mode != "insert_only"
        must = [edge.HasIdCondition({id}), *(condition_of(c) for c in condition["must"])]
        return bool(shard.scroll(edge.ScrollRequest(limit=1, filter=edge.Filter(must=must)))[0])

    def _count(self, name: str, _: Any) -> Any:
        return {"count": self._shard(name).count(edge.CountRequest(exact=True))}

    def _delete(self, name: str, body: Any) -> Any:
        self._shard(name).update(edge.UpdateOperation.delete_points(body["points"]))
        return self._done()

    def _batch(self, name: str, body: Any) -> Any:
        for operation in body["operations"]:
            change = operation["set_payload"]
            where = filter_of(change["filter"]) or edge.Filter()
            self._shard(name).update(edge.UpdateOperation.set_payload_by_filter(where, change["payload"]))
        return [self._done() for _ in body["operations"]]

    def _retrieve(self, name: str, body: Any) -> Any:
        with_payload, with_vector = bool(body.get("with_payload")), bool(body.get("with_vector"))
        return [record_of(r) for r in self._shard(name).retrieve(body["ids"], with_payload, with_vector)]

    def _scroll(self, name: str, body: Any) -> Any:
        limit = body.get("limit") or 10
        self._within(name, "max_query_limit", limit, "limit")
        request = edge.ScrollRequest(offset=body.get("offset"), limit=limit, with_payload=True)
        records, offset = self._shard(name).scroll(request)
        return {"points": [record_of(r) for r in records], "next_page_offset": None if offset is None else str(offset)}

    def _query(self, name: str, body: Any) -> Any:
        self._within(name, "search_max_batchsize", len(body["searches"]), "search batch size")
        for search in body["searches"]:
            self._within(name, "max_query_limit", search["limit"], "limit")
            for condition in (search.get("filter") or {}).get("must_not") or ():
                self._within(name, "condition_max_size", len(condition.get("has_id", ())), "condition limit")
        return [
            {"points": [{"id": str(p.id), "version": 0, "score": p.score} for p in self._shard(name).query(request)]}
            for request in (
                edge.QueryRequest(
                    limit=search["limit"],
                    query=edge.Query.Nearest(vector_of(search["query"])),
                    filter=filter_of(search.get("filter")),
                )
                for search in body["searches"]
            )
        ]
