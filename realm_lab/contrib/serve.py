"""The command `serve`: `ask` and `retrieve` of a finished run or of BM25, over HTTP or as tools of an MCP server."""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from realm_lab.cli.ask import reply_fields
from realm_lab.cli.flags import Add, add_params, params_of, positive
from realm_lab.errors import UserError, needs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import FastAPI
    from mcp.server import MCPServer

    from realm_lab.engine.systems.context import Context

HOST = "127.0.0.1"  # there is no password, so no other machine may connect
LONGEST_BODY = 1_000_000  # bytes of a request
LONGEST_QUESTION = 10_000  # characters
MOST_PASSAGES = 1000  # of one question
ASK = "Answer a question from the k best passages, and return these with their probabilities."
RETRIEVE = "Retrieve the k best passages for a question, best first, with their scores."
BATCHES = (
    "Or, as trainers of search agents ask (Search-R1): the `topk` best passages for each of the `queries`, as `result`."
)
BM25 = "bm25"


class Service:
    """The functions of a run. One request is answered at a time."""

    def __init__(self, name: str, context: Context):
        self.name, self._context, self._lock = name, context, threading.Lock()

    def ask(self, question: str, k: int = 5, retriever: Literal["run", "bm25"] = "run") -> dict[str, Any]:
        """Return the fields of `realm-lab ask --json`, and `warning`, which may be None."""
        from realm_lab.engine.systems.ask import ask

        _check(question, k)
        with self._lock:
            reply = ask(self._context, question, k, retriever)
            return {**reply_fields(self._context, reply), "warning": reply.warning}

    def retrieve(self, question: str, k: int = 5) -> dict[str, Any]:
        """Return `passages`, each with id, title, body and score."""
        from realm_lab.api import retrieve

        _check(question, k)
        with self._lock:
            [found] = retrieve(self._context, [question], k)
            return {"question": question, "passages": [asdict(hit) for hit in found]}

    def retrieve_batch(self, queries: list[str], topk: int, return_scores: bool) -> dict[str, Any]:
        """Return `result`, a list of documents for each query; with `return_scores` each document has its score. The
        `contents` of a document are title, new line and body. A blank query, as language models may send, finds
        nothing."""
        from realm_lab.api import retrieve

        _check_count("topk", topk)
        asked = [query for query in dict.fromkeys(map(_whole, queries)) if query.strip()]
        with self._lock:
            found = dict(zip(asked, retrieve(self._context, asked, topk), strict=True)) if asked else {}
        documents = [
            [
                ({"id": hit.id, "contents": f"{hit.title}\n{hit.body}"}, hit.score)
                for hit in found.get(_whole(query), ())
            ]
            for query in queries
        ]
        if return_scores:
            return {"result": [[{"document": one, "score": score} for one, score in own] for own in documents]}
        return {"result": [[one for one, _ in own] for own in documents]}


def _check(question: str, k: int) -> None:
    """Refuse a blank, broken or too long question, or a wrong k; a long answer would keep the next question waiting."""
    if not question.strip():
        raise UserError("the question is empty", "ask one")
    if len(question) > LONGEST_QUESTION:
        raise UserError(f"the question has {len(question):,} characters", f"ask in at most {LONGEST_QUESTION:,}")
    if "\ufffd" in _whole(question):
        raise UserError("the question has a broken character (U+FFFD, or half of a pair)", "send it as UTF-8")
    _check_count("k", k)


def _check_count(name: str, value: int) -> None:
    if not 1 <= value <= MOST_PASSAGES:
        raise UserError(f"{name} must be 1 to {MOST_PASSAGES:,}, got {value:.6g}", "give another")


def _whole(text: str) -> str:
    """Write surrogate pairs as characters, and each unpaired surrogate, which UTF-8 cannot encode, as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def add_serve(add: Add) -> None:
    """Add `serve` to the command line."""
    serve = add("inspect", "serve", _run_serve, "serve a finished run on 127.0.0.1, over HTTP or as an MCP server")
    text = "a finished run: its name or the start of it, or STUDY/VARIANT-sSEED; or bm25: BM25 of the prepared corpus"
    serve.add_argument("name", metavar="RUN", help=text)
    add_params(serve)
    either = serve.add_mutually_exclusive_group()
    either.add_argument("--mcp", action="store_true", help="speak MCP over standard input and output")
    either.add_argument("--port", type=positive, default=8000, metavar="N", help="port of HTTP (default: 8000)")


def _run_serve(options: argparse.Namespace) -> None:
    service = Service(*_opened(options))
    if options.mcp:
        tools = mcp_server(service)
        _mend_standard_input()
        tools.run("stdio")
        return
    app = http_app(service)
    import uvicorn

    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, options.port))
            server.listen()
        except (OSError, OverflowError) as error:
            raise UserError(f"--port {options.port} cannot be used ({error})", remedy="name another") from None
        print(f"{service.name} at http://{HOST}:{options.port} (its API: /docs); stop with Ctrl-C", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[server])


def _opened(options: argparse.Namespace) -> tuple[str, Context]:
    """Open a finished run by its name; or BM25, which needs only the prepared corpus of the parameters."""
    if options.name == BM25:
        params = params_of(options)
        from realm_lab.engine.systems.context import open_run

        context = open_run(params, options.root, None, "bm25_reader")
        context.corpus  # noqa: B018  fails unless the corpus is prepared
        return BM25, context
    if options.params:
        raise UserError(f"'{options.name}' is a run with its parameters; leave out --params")
    from realm_lab.api import load_run

    run = load_run(options.name, options.root)
    return run.name, run.context


def http_app(service: Service) -> FastAPI:
    """Return an app for POST /ask and POST /retrieve with JSON. A wrong request gets status 422, a body that is too
    long 413; both with `error` and `remedy`."""
    with needs("`realm-lab serve`", "fastapi", "serve"):
        from fastapi import Body, FastAPI, HTTPException, Request
        from fastapi.exceptions import RequestValidationError
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.responses import JSONResponse

    app = FastAPI(title="realm_lab", description=f"The run {service.name}.")
    # Against DNS rebinding: a web page whose host name points to 127.0.0.1 cannot send requests.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    def ask(
        question: str = Body(), k: int = Body(5), retriever: Literal["run", "bm25"] = Body("run")
    ) -> dict[str, Any]:
        return service.ask(question, k, retriever)

    def retrieve(
        question: str | None = Body(None),
        k: int = Body(5),
        queries: list[str] | None = Body(None),  # noqa: B008
        topk: int | None = Body(None),
        return_scores: bool = Body(False),
    ) -> dict[str, Any]:
        if queries is not None:
            return service.retrieve_batch(queries, k if topk is None else topk, return_scores)
        if question is None:
            raise UserError("neither 'question' nor 'queries'", "/docs describes the fields")
        return service.retrieve(question, k)

    def refuse(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, UserError):
            return reply(422, error.fault, error.remedy)
        if isinstance(error, RequestValidationError):
            found = error.errors()[0]
            return reply(422, f"{'.'.join(map(str, found['loc']))}: {found['msg']}", "/docs describes the fields")
        assert isinstance(error, HTTPException)
        return reply(error.status_code, error.detail, f"send JSON of at most {LONGEST_BODY:,} bytes")

    def reply(status: int, error: str, remedy: str) -> JSONResponse:
        return JSONResponse({"error": _whole(error), "remedy": remedy}, status_code=status)

    def bounded(inner: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def call(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
            total = 0

            async def counted() -> Any:
                nonlocal total
                message = await receive()
                total += len(message.get("body", b""))
                if total > LONGEST_BODY:
                    raise HTTPException(413, "the request is too long")
                return message

            await inner(scope, counted, send)

        return call

    app.add_middleware(bounded)
    app.post("/ask", description=ASK)(ask)
    app.post("/retrieve", description=f"{RETRIEVE} {BATCHES}")(retrieve)
    app.get("/", description="The name of the run.")(lambda: {"run": service.name})
    for kind in (UserError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refuse)
    return app


def mcp_server(service: Service) -> MCPServer[Any]:
    """Return a server of the tools `ask` and `retrieve`. A wrong request is an error of the tool, with its remedy."""
    with needs("`realm-lab serve --mcp`", "mcp", "serve"):
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError

    def named(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """Raise a function's UserErrors as ToolError, the one exception whose text the server passes on."""

        @functools.wraps(function)
        def tool(*given: Any, **fields: Any) -> dict[str, Any]:
            try:
                return function(*given, **fields)
            except UserError as error:
                raise ToolError(error) from None

        return tool

    server: MCPServer[Any] = MCPServer(
        "realm_lab", instructions=f"Questions to the run {service.name}.", log_level="ERROR"
    )
    server.add_tool(named(service.ask), description=ASK)
    server.add_tool(named(service.retrieve), description=RETRIEVE)
    return server


def _mend_standard_input() -> None:
    """Write unpaired surrogates in JSON lines of stdin as U+FFFD. The server drops such a line without a reply."""
    reader, writer = os.pipe()
    lines, server = os.fdopen(os.dup(0), "rb"), os.fdopen(writer, "wb")
    os.dup2(reader, 0)
    os.close(reader)
    threading.Thread(target=_pass_on, args=(lines, server), daemon=True).start()


def _pass_on(lines: BinaryIO, server: BinaryIO) -> None:
    with server:
        for line in lines:
            if b"\\u" in line:
                try:
                    line = _whole(json.dumps(json.loads(line), ensure_ascii=False)).encode() + b"\n"
                except (ValueError, RecursionError):  # not JSON: the server handles it
                    pass
            server.write(line)
            server.flush()
