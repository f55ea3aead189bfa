"""`realm-lab serve`: a tiny run asked by an HTTP client and by an MCP client, each of the real command."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import realm_lab
from realm_lab.cli import main
from tests import tiny
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

STUDY = "question: Q?\nseeds: [0]\nbaseline: realm\ncells: {realm: {}}\nmetrics: [exact_match]\n"
RUN = "trial/realm-s0"
QUESTION = "who is the mayor of zovzen ?"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a finished run."""
    root = tmp_path_factory.mktemp("serve")
    shutil.copy(tiny.PARAMETERS, root / "params.yaml")
    (root / "experiments").mkdir()
    (root / "experiments" / "trial.yaml").write_text(STUDY)
    realm_lab.sweep("trial", root, launcher="inline")
    return root


def command(root: Path, *words: str, name: str = RUN) -> list[str]:
    return [sys.executable, "-m", "realm_lab", "--root", str(root), "serve", name, *words]


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with serving(root, RUN) as address:
        yield address


@contextlib.contextmanager
def serving(root: Path, name: str) -> Iterator[str]:
    pytest.importorskip("fastapi")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(command(root, "--port", str(port), name=name), stdout=subprocess.PIPE, text=True)
    assert server.stdout
    try:
        assert str(port) in server.stdout.readline()  # it listens
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def post(url: str, fields: dict[str, Any] | bytes, **headers: str) -> tuple[int, Any]:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_http_answers_as_the_run_does(root: Path, address: str) -> None:
    run = realm_lab.load_run(RUN, root)
    status, told = post(f"{address}/ask", {"question": QUESTION, "k": 3})
    assert (status, told["answer"], len(told["candidates"])) == (200, run.ask(QUESTION, 3).answer, 3)
    status, told = post(f"{address}/retrieve", {"question": QUESTION, "k": 2})
    assert [hit["id"] for hit in told["passages"]] == [hit.id for hit in run.retrieve(QUESTION, 2)]
    assert told["passages"][0].keys() == {"id", "title", "body", "score"}


def as_trainers_read(reply: dict[str, Any]) -> list[list[tuple[str, str, float]]]:
    """Return title, text and score of each document, as Search-R1's trainer takes them out of a reply."""
    return [
        [(*one["document"]["contents"].split("\n", 1), one["score"]) for one in documents]
        for documents in reply["result"]
    ]


def test_the_request_of_trainers_of_search_agents_is_answered_in_batches(root: Path, address: str) -> None:
    run = realm_lab.load_run(RUN, root)
    queries = [QUESTION, "", "who is the \ufffd of zovzen", QUESTION, " "]
    status, told = post(f"{address}/retrieve", {"queries": queries, "topk": 3, "return_scores": True})
    found = as_trainers_read(told)
    assert (status, [len(documents) for documents in found]) == (200, [3, 0, 3, 3, 0])
    hits = run.retrieve(QUESTION, 3)
    assert found[0] == found[3]
    assert [(title, body) for title, body, _ in found[0]] == [(hit.title, hit.body) for hit in hits]
    assert [score for *_, score in found[0]] == pytest.approx([hit.score for hit in hits], rel=1e-5)
    plain = post(f"{address}/retrieve", {"queries": [QUESTION], "topk": None})[1]
    assert plain == {
        "result": [[{"id": hit.id, "contents": f"{hit.title}\n{hit.body}"} for hit in run.retrieve(QUESTION)]]
    }
    assert post(f"{address}/retrieve", {"queries": [], "topk": 3}) == (200, {"result": []})
    for wrong in ({"queries": [QUESTION], "topk": 0}, {"queries": QUESTION}, {"topk": 3}):
        status, told = post(f"{address}/retrieve", wrong)
        assert (status, json.loads(told).keys()) == (422, {"error", "remedy"})


def test_bm25_alone_needs_only_the_prepared_corpus(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(root, "bm25") as address:
        told = post(f"{address}/retrieve", {"queries": [QUESTION, "zzyzx"], "topk": 1000, "return_scores": True})[1]
        answered = post(f"{address}/ask", {"question": QUESTION})
    some, none = as_trainers_read(told)
    context = realm_lab.load_run(RUN, root).context
    rows, scores = context.bm25.search([QUESTION], len(context.passages))
    assert [score for *_, score in some] == scores[rows >= 0].tolist()
    assert [body for _, body, _ in some] == [context.passages.text.row(row)["body"] for row in rows[rows >= 0]]
    assert 0 < len(some) < len(context.passages)
    assert none == []
    assert answered[0] == 422
    assert main(command(root, "--params", "params.yaml")[3:]) == 2
    assert "leave out --params" in capsys.readouterr().err


@pytest.mark.parametrize(
    "fields",
    [
        {"question": " "},
        {"question": "a", "k": 0},
        {"question": "a", "k": 1001},
        {"question": "a", "k": 10**26},
        {"question": "a", "k": math.nan},
        b'{"question": "a", "k": 1e400}',
        {"question": "half \ud83d of a pair"},
        {"question": "cut \ufffd"},
        {"question": "mayor " * 2000},
        {},
    ],
)
@pytest.mark.parametrize("path", ["ask", "retrieve"])
def test_http_refuses_a_mistake_with_its_remedy(address: str, path: str, fields: dict[str, Any] | bytes) -> None:
    status, told = post(f"{address}/{path}", fields)
    assert status == 422
    assert all(json.loads(told)[name] for name in ("error", "remedy"))


@pytest.mark.parametrize("retriever", ["x", "\ud83d"])
def test_http_refuses_an_unknown_retriever(address: str, retriever: str) -> None:
    assert post(f"{address}/ask", {"question": QUESTION, "retriever": retriever})[0] == 422


def test_http_reads_no_long_body(address: str) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=HANG_SECONDS)
    connection.putrequest("POST", "/ask")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders(b'{"question": "' + b"a" * 1_100_000)
    with contextlib.closing(connection), connection.getresponse() as reply:  # before the end of the body
        assert (reply.status, json.load(reply).keys()) == (413, {"error", "remedy"})


def test_passages_are_at_most_those_of_the_corpus(root: Path, address: str) -> None:
    run = realm_lab.load_run(RUN, root)
    total = len(run.context.passages)
    assert len(post(f"{address}/retrieve", {"question": QUESTION, "k": 1000})[1]["passages"]) == min(total, 1000)
    assert len(run.retrieve(QUESTION, 10**12)) == len(run.ask(QUESTION, 10**12).candidates) == total


def test_http_refuses_another_host_name(address: str) -> None:
    assert post(f"{address}/ask", {"question": QUESTION}, Host="elsewhere.example")[0] == 400


def test_a_used_port_is_one_line(root: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command(root, "--port", address.rpartition(":")[2])[3:]
    assert main(words) == 2
    assert "--port" in capsys.readouterr().err


def test_mcp_tools_answer_as_the_run_does_and_name_a_mistake(root: Path) -> None:
    mcp = pytest.importorskip("mcp")
    run = realm_lab.load_run(RUN, root)

    async def talk() -> tuple[set[str], Any, Any, list[Any]]:
        program, *words = command(root, "--mcp")
        server = mcp.StdioServerParameters(command=program, args=words, env=dict(os.environ))
        async with mcp.Client(server) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            asked = await client.call_tool("ask", {"question": QUESTION, "k": 3})
            found = await client.call_tool("retrieve", {"question": QUESTION, "k": 2})
            wrong = [await client.call_tool("ask", fields) for fields in ({"question": " "}, {"question": "a", "k": 0})]
            return tools, asked, found, wrong

    tools, asked, found, wrong = asyncio.run(talk())
    assert tools == {"ask", "retrieve"}
    assert json.loads(asked.content[0].text)["answer"] == run.ask(QUESTION, 3).answer
    assert [hit["id"] for hit in json.loads(found.content[0].text)["passages"]] == [
        hit.id for hit in run.retrieve(QUESTION, 2)
    ]
    assert all(reply.is_error for reply in wrong)
    assert "empty" in wrong[0].content[0].text
    assert "k must be" in wrong[1].content[0].text


def test_mcp_replies_to_half_a_surrogate_pair(root: Path) -> None:
    pytest.importorskip("mcp")
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = {"name": "ask", "arguments": {"question": "who \ud83d is the mayor ?"}}
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": about},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": asked},
    ]
    with subprocess.Popen(command(root, "--mcp"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        for request in requests:
            print(json.dumps({"jsonrpc": "2.0", **request}), file=server.stdin, flush=True)
        replies = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()
    assert replies[1]["id"] == 2
    assert replies[1]["result"]["isError"]
    assert "broken character" in replies[1]["result"]["content"][0]["text"]
