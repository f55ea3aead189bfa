"""The command `serve`: `ask` and `retrieve` of a finished run, over HTTP or as tools of an MCP server."""

from __future__ import annotations

import argparse
import socket
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from realm_lab.cli.ask import reply_fields
from realm_lab.cli.flags import Add, positive
from realm_lab.errors import UserError, needs

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mcp.server import MCPServer

    from realm_lab.api import Run

HOST = "127.0.0.1"  # no password, so no other machine
ASK = "Answer a question from the k best passages of the run; with them and their probabilities."
RETRIEVE = "Retrieve the k best passages for a question, best first, with their scores."


class Service:
    """The two functions of a finished run. One question is answered at a time."""

    def __init__(self, run: Run):
        self.name = run.name
        self._run, self._lock = run, threading.Lock()

    def ask(self, question: str, k: int = 5, retriever: Literal["run", "bm25"] = "run") -> dict[str, Any]:
        """Return the fields of `realm-lab ask --json`, and a warning if there is one."""
        with self._lock:
            reply = self._run.ask(question, _checked(k), retriever)
            return {**reply_fields(self._run.context, reply), "warning": reply.warning}

    def retrieve(self, question: str, k: int = 5) -> dict[str, Any]:
        """Return `passages`, each with id, title, body and score."""
        if not question.strip():
            raise UserError("the question is empty")
        with self._lock:
            return {
                "question": question,
                "passages": [asdict(hit) for hit in self._run.retrieve(question, _checked(k))],
            }


def _checked(k: int) -> int:
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}")
    return k


def add_serve(add: Add) -> None:
    """Add `serve` to the command line."""
    serve = add("serve", _run_serve, "serve a finished run on 127.0.0.1, over HTTP or as an MCP server")
    text = "a finished run: its name or the start of it, or STUDY/CELL-sSEED"
    serve.add_argument("name", metavar="RUN", help=text)
    either = serve.add_mutually_exclusive_group()
    either.add_argument("--mcp", action="store_true", help="speak MCP over standard input and output")
    either.add_argument("--port", type=positive, default=8000, metavar="N", help="port of HTTP (default: 8000)")


def _run_serve(options: argparse.Namespace) -> None:
    from realm_lab.api import load_run

    service = Service(load_run(options.name, options.root))
    if options.mcp:
        mcp_server(service).run("stdio")
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


def http_app(service: Service) -> FastAPI:
    """POST /ask and POST /retrieve with JSON. A mistake is status 422 with `error` and `remedy`."""
    with needs("`realm-lab serve`", "fastapi", "serve"):
        from fastapi import Body, FastAPI, Request
        from fastapi.middleware.trustedhost import TrustedHostMiddleware
        from fastapi.responses import JSONResponse

    app = FastAPI(title="realm_lab", description=f"The run {service.name}.")
    # A page of another site, whose name its owner lets point here, cannot ask.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    def ask(
        question: str = Body(), k: int = Body(5), retriever: Literal["run", "bm25"] = Body("run")
    ) -> dict[str, Any]:
        return service.ask(question, k, retriever)

    def retrieve(question: str = Body(), k: int = Body(5)) -> dict[str, Any]:
        return service.retrieve(question, k)

    def refuse(_: Request, error: Exception) -> JSONResponse:
        remedy = error.remedy if isinstance(error, UserError) else ""
        return JSONResponse({"error": str(error), "remedy": remedy}, status_code=422)

    app.post("/ask", description=ASK)(ask)
    app.post("/retrieve", description=RETRIEVE)(retrieve)
    app.get("/", description="The name of the run.")(lambda: {"run": service.name})
    app.add_exception_handler(UserError, refuse)
    return app


def mcp_server(service: Service) -> MCPServer[Any]:
    """The tools `ask` and `retrieve`. A mistake is an error of the tool."""
    with needs("`realm-lab serve --mcp`", "mcp", "serve"):
        from mcp.server import MCPServer

    server: MCPServer[Any] = MCPServer(
        "realm_lab", instructions=f"Questions to the run {service.name}.", log_level="ERROR"
    )
    server.add_tool(service.ask, description=ASK)
    server.add_tool(service.retrieve, description=RETRIEVE)
    return server
