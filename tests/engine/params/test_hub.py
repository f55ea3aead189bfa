"""Checkpoints of the Hugging Face Hub, from a server that answers as the Hub does."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

COMMIT = "0123456789" * 4
FILES = {
    "config.json": json.dumps({"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}).encode(),
    "model.safetensors": b"weights",
    "vocab.txt": b"[PAD]\n",
    "pytorch_model.bin": b"a pickle",
}
LOAD = """
import sys
from realm_lab.errors import UserError
from realm_lab.engine.params.load import load
try:
    params = load("none.yaml", {"preset": "real", "model.checkpoint": sys.argv[1]})
    print(params.model.checkpoint, params.model.hidden_size, params.model.layers)
except UserError as error:
    print("UserError", error)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """One model, `org/name`."""

    def do_GET(self) -> None:
        """Answer with a file, the tree of a commit, or the model's information."""
        name = self.path.partition("?")[0].rsplit("/", 1)[1]
        if "org/name" not in self.path:
            self.send_error(404, "Not Found")
        elif "/tree/" in self.path:
            tree = [
                {"type": "file", "path": path, "size": len(data), "oid": _oid(data)} for path, data in FILES.items()
            ]
            self._answer(json.dumps(tree).encode())
        elif self.path.startswith("/api/"):
            siblings = [{"rfilename": path} for path in FILES]
            self._answer(json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            self._answer(FILES[name])

    do_HEAD = do_GET

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{_oid(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing."""


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
def test_a_model_of_the_hub_is_fetched_once(hub: http.server.ThreadingHTTPServer, tmp_path: Path) -> None:
    """config.json gives the sizes, weights are fetched only as safetensors, and a second time needs no network."""

    def loaded(name: str, port: int) -> subprocess.CompletedProcess[str]:
        environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", LOAD, name]
        given = {**os.environ, **environment}
        return subprocess.run(command, env=given, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)

    first = loaded("hf://org/name", hub.server_port)
    folder, *sizes = first.stdout.split()
    assert sizes == ["48", "3"], first.stdout + first.stderr
    assert "fetching hf://org/name from the Hub" in first.stderr
    assert {path.name for path in Path(folder).iterdir()} == FILES.keys() - {"pytorch_model.bin"}
    again = loaded("hf://org/name", 1)  # no server there
    assert (again.stdout, "fetched" in again.stderr) == (first.stdout, False)
    (Path(folder) / "model.safetensors").unlink()  # as if another program had fetched only the tokenizer
    for listing in tmp_path.rglob("trees/*"):
        listing.unlink()
    assert loaded("hf://org/name", hub.server_port).stdout == first.stdout
    assert (Path(folder) / "model.safetensors").is_file()
    wrong = loaded("hf://org/other", hub.server_port)
    assert wrong.stdout.startswith("UserError hf://org/other: "), wrong.stderr
    assert "hf download org/other --local-dir" in wrong.stdout
    assert loaded("hf://a/b/c", hub.server_port).stdout.startswith("UserError hf://a/b/c: ")
