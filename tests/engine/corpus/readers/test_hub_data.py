"""Data sets of the Hugging Face Hub by name, from a server that answers as the Hub does."""

import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.params.test_hub import COMMIT, Hub, _oid
from tests.limits import HANG_SECONDS

REVISIONS = {"main", COMMIT, "refs/convert/parquet"}


def parquet(**columns: list[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


FILES = {
    "README.md": b"a card",
    "load.py": b"raise SystemExit('a script that nobody runs')",
    "en/train-00000-of-00002.parquet": parquet(id=["a"], text=["One."]),
    "en/train-00001-of-00002.parquet": parquet(id=["b"], text=["Two."]),
    "de/train-00000-of-00001.parquet": parquet(id=["c"], text=["Drei."]),
    "questions/dev.jsonl": b'{"question": "who", "answer": ["Ann"]}\n',
}
BEIR = {
    "corpus.jsonl": b'{"_id": "d1", "text": "One."}\n',
    "queries.jsonl": b'{"_id": "q1", "text": "one"}\n',
    "qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq1\td1\t1\n",
}


class Data(Hub):
    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0]).removeprefix("/api").removeprefix("/datasets/")
        repository, rest = "/".join(path.split("/")[:2]), "/".join(path.split("/")[2:])
        files = {"org/name": FILES, "org/beir": BEIR}.get(repository)
        what, _, after = rest.partition("/")
        if files is None or (what == "revision" and after not in REVISIONS):
            self.send_error(404, "Not Found")
        elif what == "tree":
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": _oid(data)} for name, data in files.items()
            ]
            self._answer(json.dumps(tree).encode())
        elif what == "resolve":
            self._answer(files[after.removeprefix(f"{COMMIT}/")])
        else:
            siblings = [{"rfilename": name} for name in files]
            self._answer(json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode())

    do_HEAD = do_GET


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Data) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


PROGRAM = """
import sys
from realm_lab.cli import main
sys.exit(main(["prepare", "--json", "--count", *sys.argv[1:]]))
"""


def counted(cache: Path, port: int, *names: str) -> subprocess.CompletedProcess[str]:
    environment = {"HF_HOME": str(cache), "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", PROGRAM, *names]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


@pytest.mark.slow
def test_a_file_and_a_folder_are_fetched_once_and_counted(port: int, tmp_path: Path) -> None:
    names = [f"hf-dataset://org/name/{inside}" for inside in ("en", "questions/dev.jsonl")]
    first = counted(tmp_path, port, *names)
    assert first.returncode == 0, first.stderr
    texts, questions = json.loads(first.stdout)
    assert (texts["name"], texts["format"], texts["counts"]["documents"]) == (names[0], "texts", 2)
    assert (questions["format"], questions["counts"]["questions"]) == ("open_questions", 1)
    assert first.stderr.count("fetching hf-dataset://") == 2
    kept = {path.name for path in tmp_path.rglob("snapshots/*/**/*") if not path.is_dir()}
    assert kept == {"train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "dev.jsonl"}
    again = counted(tmp_path, 1, *names)  # no server there
    asks = not any(tmp_path.rglob("trees/*.json"))  # an old huggingface_hub writes no list to compare with
    assert (again.stdout, "fetching" in again.stderr) == (first.stdout, asks)
    for path in (*tmp_path.rglob("trees/*"), *tmp_path.rglob("train-00001*")):
        path.unlink()  # as if another program had fetched one file
    assert counted(tmp_path, port, *names).stdout == first.stdout
    other = counted(tmp_path, port, "hf-dataset://org/name@refs/convert/parquet/de/")  # more of the same data set
    assert json.loads(other.stdout)[0]["counts"]["documents"] == 1, other.stderr


def test_a_beir_folder_of_the_hub_is_read_as_a_corpus(port: int, tmp_path: Path) -> None:
    """Documents, queries and judgements are read; the corpus key has the folder's name on the Hub, not its cache."""
    program = """
import sys
from realm_lab.engine.corpus.files_corpus import FilesCorpus
from realm_lab.engine.corpus.readers import input_files, read_questions
from realm_lab.engine.params.corpus import Corpus
name = "hf-dataset://org/beir"
print([q.judged for q in read_questions(input_files(name, split="test"))])
print(FilesCorpus.identity(Corpus(files={"knowledge": [name], "questions_test": [name]}), None, 0))
"""
    environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HUB_OFFLINE": "0"}
    given = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True)
    judged, identity = done.stdout.splitlines()
    assert judged == "[(('d1', 1),)]"
    assert "test: hf-dataset://org/beir" in identity
    assert str(tmp_path) not in identity


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf-dataset://org/name/fr", "'fr'; https://huggingface.co/datasets/org/name"),
        ("hf-dataset://org/name@v9/en", "cannot be fetched ("),
        ("hf-dataset://name", "expected hf-dataset://ORG/NAME"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(port: int, tmp_path: Path, name: str, message: str) -> None:
    done = counted(tmp_path, port, name)
    [error] = [line for line in done.stderr.splitlines() if line.startswith("realm-lab: error: ")]
    assert done.returncode == 2
    assert error.startswith(f"realm-lab: error: {name}")
    assert message in error
