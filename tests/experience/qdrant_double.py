"""A Qdrant server for tests: the REST calls that our store makes, on the embedded engine, with injected faults.

Replaces a real server, which cannot be installed with pip. Implements only what ``ServerStore`` calls; answers have the
shapes of qdrant-client's models.
"""

import asyncio
import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import qdrant_edge as edge
from local_server import LocalServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Faults:
    """The faults to inject."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.responses: list[tuple[int, dict[str, str]]] = []
        """Status and headers of the next answers to calls whose path ends with ``only``."""
        self.only = ""
        self.creation_race = False
        """Another process wins the next creation, and the collection cannot be read in the next two requests."""
        self.unreadable = 0
        self.ignore_indexes = False
        self.status = "completed"


class QdrantDouble:
    """One server at ``url``; ``stop`` and ``start`` keep port and content."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.requests: list[tuple[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.keys: set[str | None] = set()
        self.collections: dict[str, dict[str, Any]] = {}
        self.aliases: dict[str, str] = {}
        self._folder = tempfile.TemporaryDirectory()
        self._lock = threading.Lock()
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

    def _app(self) -> Starlette:
        name = "/collections/{name}"
        routes: list[tuple[str, str, Callable[[str, Any], Any]]] = [
            ("GET", "/aliases", self._get_aliases),
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
            ("POST", f"{name}/points/count", lambda name, _: {"count": self._shard(name).count(edge.CountRequest())}),
            ("POST", f"{name}/points/query/batch", self._query),
        ]
        return Starlette(routes=[Route(path, self._handler(work), methods=[method]) for method, path, work in routes])

    def _handler(self, work: Callable[[str, Any], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            self.requests.append((request.method, request.url.path))
            self.keys.add(request.headers.get("api-key"))
            self.in_flight += 1
            self.most_in_flight = max(self.in_flight, self.most_in_flight)
            try:
                if self.faults.delay:
                    await asyncio.sleep(self.faults.delay)
                if self.faults.responses and request.url.path.endswith(self.faults.only):
                    status, headers = self.faults.responses.pop(0)
                    return JSONResponse({"status": {"error": "provoked"}}, status, headers)
                body = json.loads(await request.body() or b"null")
                with self._lock:
                    result = work(request.path_params.get("name", ""), body)
            except KeyError as error:
                return JSONResponse({"status": {"error": f"Not found: {error}"}}, 404)
            except FileExistsError:
                return JSONResponse({"status": {"error": "Collection already exists!"}}, 409)
            finally:
                self.in_flight -= 1
            return JSONResponse({"result": result, "status": "ok", "time": 0.0})

        return handle

    # ---- collections ----

    def _shard(self, name: str) -> edge.EdgeShard:
        return self.collections[self.aliases.get(name, name)]["shard"]

    def _get_aliases(self, _: str, __: Any) -> Any:
        return {"aliases": [{"alias_name": a, "collection_name": c} for a, c in self.aliases.items()]}

    def _change_aliases(self, _: str, body: Any) -> bool:
        for action in body["actions"]:
            if "delete_alias" in action:
                del self.aliases[action["delete_alias"]["alias_name"]]
            else:
                created = action["create_alias"]
                if created["collection_name"] not in self.collections:
                    raise KeyError(created["collection_name"])
                self.aliases[created["alias_name"]] = created["collection_name"]
        return True

    def _create(self, name: str, body: Any) -> bool:
        if name in self.collections:
            raise FileExistsError
        vectors = edge.EdgeVectorParams(size=body["vectors"]["size"], distance=edge.Distance.Dot)
        folder = Path(self._folder.name) / f"{len(self.requests)}-{name}"
        self.collections[name] = {
            "shard": edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors=vectors)),
            "metadata": body.get("metadata") or {},
            "size": body["vectors"]["size"],
            "indexes": {},
        }
        if self.faults.creation_race:
            self.faults.creation_race, self.faults.unreadable = False, 2
            raise FileExistsError
        return True

    def _describe(self, name: str, _: Any) -> Any:
        if self.faults.unreadable:
            self.faults.unreadable -= 1
            raise KeyError(name)
        collection = self.collections[self.aliases.get(name, name)]
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
            },
        }

    def _change_metadata(self, name: str, body: Any) -> bool:
        self.collections[self.aliases.get(name, name)]["metadata"].update(body["metadata"])
        return True

    def _drop(self, name: str, _: Any) -> bool:
        if name not in self.collections:
            return False
        self.collections.pop(name)["shard"].close()
        self.aliases = {alias: to for alias, to in self.aliases.items() if to != name}
        return True

    def _create_index(self, name: str, body: Any) -> Any:
        schema, field = body["field_schema"], body["field_name"]
        if not self.faults.ignore_indexes:
            kind = {"keyword": edge.PayloadSchemaType.Keyword, "integer": edge.PayloadSchemaType.Integer}
            self._shard(name).update(edge.UpdateOperation.create_field_index(field, kind[schema["type"]]))
            self.collections[name]["indexes"][field] = {"data_type": schema["type"], "params": schema, "points": 0}
        return self._done()

    # ---- points ----

    def _done(self) -> Any:
        return {"operation_id": 0, "status": self.faults.status}

    def _upsert(self, name: str, body: Any) -> Any:
        points = [edge.Point(id=p["id"], vector=p["vector"], payload=p["payload"]) for p in body["points"]]
        self._shard(name).update(edge.UpdateOperation.upsert_points(points))
        return self._done()

    def _delete(self, name: str, body: Any) -> Any:
        self._shard(name).update(edge.UpdateOperation.delete_points(body["points"]))
        return self._done()

    def _batch(self, name: str, body: Any) -> Any:
        for operation in body["operations"]:
            change = operation["set_payload"]
            where = _filter(change["filter"]) or edge.Filter()
            self._shard(name).update(edge.UpdateOperation.set_payload_by_filter(where, change["payload"]))
        return [self._done() for _ in body["operations"]]

    def _retrieve(self, name: str, body: Any) -> Any:
        with_payload, with_vector = bool(body.get("with_payload")), bool(body.get("with_vector"))
        return [_record(r) for r in self._shard(name).retrieve(body["ids"], with_payload, with_vector)]

    def _scroll(self, name: str, body: Any) -> Any:
        request = edge.ScrollRequest(offset=body.get("offset"), limit=body["limit"], with_payload=True)
        records, offset = self._shard(name).scroll(request)
        return {"points": [_record(r) for r in records], "next_page_offset": None if offset is None else str(offset)}

    def _query(self, name: str, body: Any) -> Any:
        return [
            {"points": [{"id": str(p.id), "version": 0, "score": p.score} for p in self._shard(name).query(request)]}
            for request in (
                edge.QueryRequest(
                    limit=search["limit"],
                    query=edge.Query.Nearest(search["query"]["nearest"]),
                    filter=_filter(search.get("filter")),
                )
                for search in body["searches"]
            )
        ]


def _record(record: Any) -> dict[str, Any]:
    vector = None if record.vector is None else [float(value) for value in record.vector]
    return {"id": str(record.id), "payload": record.payload, "vector": vector}


def _filter(body: Any) -> edge.Filter | None:
    if not body:
        return None
    return edge.Filter(
        must=[_condition(condition) for condition in body.get("must") or []],
        must_not=[_condition(condition) for condition in body.get("must_not") or []],
    )


def _condition(body: Any) -> Any:
    if "has_id" in body:
        return edge.HasIdCondition(set(body["has_id"]))
    if body.get("match"):
        return edge.FieldCondition(body["key"], match=edge.MatchValue(body["match"]["value"]))
    return edge.FieldCondition(body["key"], range=edge.RangeFloat(lte=body["range"]["lte"]))
