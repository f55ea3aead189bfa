"""Runs that other tools wrote: tensorboardX 2.6.5, Hydra 1.3.8 and Trackio 0.43 made the samples in data/, MLflow its
own here. Each has the same 24 runs of one training: three optimisers, eight seeds.
"""

import json
import lzma
import struct
import tarfile
from pathlib import Path

import pytest

from realm_lab import UserError
from realm_lab.cli import parser as cli
from realm_lab.other_runs.answer import judge_rows
from realm_lab.other_runs.sources import Row, read_runs
from realm_lab.other_runs.tensorboard import last_scalars

DATA = Path(__file__).parent / "data"
SGD_0 = 0.82  # accuracy of the first run
P = {"momentum": 0.34375, "noisy": 2 / 256}


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """The samples, unpacked."""
    for name in ("tensorboard", "hydra"):
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
    (tmp_path / "trackio").mkdir()
    (tmp_path / "trackio" / "optimisers.db").write_bytes(lzma.decompress((DATA / "trackio.db.xz").read_bytes()))
    return tmp_path


def expect_the_verdict(rows: list[Row], cell: str = "variant", metric: str = "accuracy") -> None:
    """Every tool kept the same numbers."""
    [one] = judge_rows(rows, [metric], "sgd", cell, "seed", {}).metrics
    assert one.cells[0].values[0] == SGD_0
    assert {c.cell: c.finding.corrected_p for c in one.cells if c.finding} == P
    assert [len(c.values) for c in one.cells] == [8, 8, 8]


def test_tensorboard(samples: Path) -> None:
    rows = read_runs(str(samples / "tensorboard"), "{variant}/seed_{seed}")
    expect_the_verdict(rows, metric="test/accuracy")


def test_hydra(samples: Path) -> None:
    expect_the_verdict(read_runs(str(samples / "multirun")), "optimiser.name")


def test_trackio(samples: Path) -> None:
    expect_the_verdict(read_runs(str(samples / "trackio")))
    expect_the_verdict(read_runs(str(samples / "trackio" / "optimisers.db")))


@pytest.mark.slow
def test_mlflow(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of the Hydra sample, logged with MLflow; a second experiment must be distinguished from the first."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{samples / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("optimisers", artifact_location="mlflow-artifacts:/1")
    for row in read_runs(str(samples / "multirun")):
        run = client.create_run(experiment, run_name=row.values["run"]).info.run_id
        client.log_param(run, "variant", row.values["optimiser.name"])
        client.log_param(run, "seed", row.values["seed"])
        client.log_metric(run, "accuracy", 0.0, step=0)
        client.log_metric(run, "accuracy", row.values["accuracy"], step=1)
        client.set_terminated(run)
    expect_the_verdict(read_runs(uri))
    expect_the_verdict(read_runs(str(samples / "mlflow.db")))
    other = client.create_experiment("other", artifact_location="mlflow-artifacts:/2")
    client.create_run(other)
    with pytest.raises(UserError, match="--experiment") as error:
        read_runs(uri)
    assert "optimisers" in error.value.remedy
    expect_the_verdict(read_runs(uri, experiment="optimisers"))
    with pytest.raises(UserError, match="'optimizers'"):
        read_runs(uri, experiment="optimizers")
    missing = samples / "missing.db"
    with pytest.raises(UserError):
        read_runs(f"sqlite:///{missing}")
    assert not missing.exists()


def test_exports_of_wandb(tmp_path: Path) -> None:
    """The table of its page; the script of its documentation, whose cells are dicts; and JSON of its API."""
    accuracy = {("a", 0): 0.5, ("a", 1): 0.75}
    page, script, api = tmp_path / "page.csv", tmp_path / "script.csv", tmp_path / "api.json"
    page.write_text(
        '"Name","State","variant","seed","accuracy"\n'
        + "".join(f'"run-{v}-{s}","finished","{v}","{s}","{x}"\n' for (v, s), x in accuracy.items()),
        encoding="utf-8",
    )
    script.write_text(
        ",summary,config,name\n"
        + "".join(
            f"{n},\"{{'accuracy': {x}, '_step': 9}}\",\"{{'variant': '{v}', 'seed': {s}}}\",run-{n}\n"
            for n, ((v, s), x) in enumerate(accuracy.items())
        ),
        encoding="utf-8",
    )
    runs = [
        {"name": f"run-{s}", "config": {"variant": {"value": v}, "seed": {"value": s}}, "summary": {"accuracy": x}}
        for (v, s), x in accuracy.items()
    ]
    api.write_text(json.dumps(runs), encoding="utf-8")
    lines = tmp_path / "api.jsonl"
    lines.write_text("".join(json.dumps(run) + "\n" for run in runs), encoding="utf-8")
    for path in (page, script, api, lines):
        [one] = judge_rows(read_runs(str(path)), ["accuracy"], "a", "variant", "seed", {}).metrics
        assert one.cells[0].values == {0: 0.5, 1: 0.75}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_of_spreadsheets(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "runs.csv"
    lines = [["cell", "seed", "acc"], ["a", "1", "0.5"], ["a", "2.0", "0.25"]]
    path.write_text("\ufeff" + "\r\n".join(map(separator.join, lines)) + "\r\n\r\n", encoding="utf-8")
    [one] = judge_rows(read_runs(str(path)), ["acc"], "a", "cell", "seed", {}).metrics
    assert one.cells[0].values == {1: 0.5, 2: 0.25}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("runs.csv", b"cell,seed,acc\na,1\n", ("line 2", "2 values")),
        ("runs.csv", b"cell,cell\na,1\n", ("'cell'",)),
        ("runs.csv", b"", ("no runs",)),
        ("runs.csv", b"\xff\xfe,\n", ("UTF-8",)),
        ("runs.json", b"{", ("not JSON",)),
        ("runs.json", b"[1]", ("list of runs",)),
        ("runs.db", b"SQLite", ("not readable",)),
        ("folder/notes.txt", b"", ("TensorBoard",)),
        ("folder/.hydra/config.yaml", b"a: [", ("not readable",)),
        ("folder/a.tfevents.1", struct.pack("<QI", 2, 0) + b"\x2a\x7f" + bytes(4), ("damaged",)),
    ],
)
def test_a_bad_source_is_one_line(tmp_path: Path, name: str, data: bytes, words: tuple[str, ...]) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as error:
        read_runs(str(tmp_path / Path(name).parts[0]))
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_a_killed_run_has_the_scalars_before_its_end(samples: Path) -> None:
    [path] = (samples / "tensorboard" / "sgd" / "seed_0").iterdir()
    whole = path.read_bytes()
    assert last_scalars(path) == {"test/accuracy": SGD_0}
    path.write_bytes(whole[:-3])
    cut = last_scalars(path)
    assert cut.keys() == {"test/accuracy"}
    path.write_bytes(whole[: len(whole) // 2])
    assert last_scalars(path) != {"test/accuracy": SGD_0}


def test_tensors_of_tensorflow_2(tmp_path: Path) -> None:
    """tf.summary.scalar writes a tensor of one float32."""
    tensor = b"\x08\x01\x22\x04" + struct.pack("<f", 0.7925)  # dtype, tensor_content
    value = b"\x0a\x03acc" + b"\x42" + bytes([len(tensor)]) + tensor
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x10\x05\x2a" + bytes([len(summary)]) + summary  # step, summary
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(struct.pack("<QI", len(event), 0) + event + bytes(4))
    assert last_scalars(path) == {"acc": 0.7925}


def test_names_of_runs(samples: Path) -> None:
    folder = str(samples / "tensorboard")
    for pattern in ("{variant}-{seed}", "variant"):
        with pytest.raises(UserError, match="--name"):
            read_runs(folder, pattern)


def test_the_verb(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["verdict", str(samples / "multirun"), "--cell", "optimiser.name", "--metric", "accuracy"]
    given += ["--baseline", "sgd", "--delta", "accuracy=0.02"]
    assert cli.main([*given, "--json", "--out", str(samples / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((samples / "out" / "verdict.json").read_text(encoding="utf-8"))
    assert told["metrics"]["accuracy"]["momentum"]["finding"] == "equivalent"
    assert cli.main(given) == 0
    assert capsys.readouterr().out == (samples / "out" / "verdict.md").read_text(encoding="utf-8")
    assert cli.main([*given, "--delta", "accuracy"]) == 2
    assert cli.main([*given, "--pair", "fold"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
