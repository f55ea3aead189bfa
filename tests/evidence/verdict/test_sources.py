"""Runs that other tools wrote: tensorboardX 2.6.5, Hydra 1.3.8 and Trackio 0.43 made the samples in data/, and these
tests make one with MLflow. Each has the same 24 runs of one training: three optimisers, eight seeds.
"""

import itertools
import json
import lzma
import math
import sqlite3
import struct
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from realm_lab import UserError
from realm_lab.cli import parser as cli
from realm_lab.evidence.verdict.answer import Answer, CellAnswer, verdict
from realm_lab.evidence.verdict.sources import read_runs
from realm_lab.evidence.verdict.tables import Row
from realm_lab.evidence.verdict.tensorboard import last_scalars
from tests.factories.errors import refused

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
    """Check that the rows give the verdict on the runs, whichever tool kept them."""
    [one] = verdict(rows, metric=metric, baseline="sgd", cell=cell).metrics
    assert one.cells[0].values[0] == SGD_0
    assert {c.cell: c.finding.corrected_p for c in one.cells if c.finding} == P
    assert [len(c.values) for c in one.cells] == [8, 8, 8]


def write_events(path: Path, scalars: Sequence[tuple[int, float]], tag: str = "acc") -> None:
    """An event file with (step, value) of one scalar, in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b""
    for step, number in scalars:
        value = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", number)
        summary = b"\x0a" + bytes([len(value)]) + value
        event = b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
        data += struct.pack("<QI", len(event), 0) + event + bytes(4)
    path.write_bytes(data)


def write_jobs(folder: Path, files: Mapping[str, str], config: str = "", cells: str = "ab", seeds: int = 2) -> None:
    """Write Hydra's jobs; VALUE in a file becomes .5 + seed / 100, and .1 more with each further cell."""
    jobs = [(cell, seed) for cell in cells for seed in range(seeds)]
    for job, (cell, seed) in enumerate(jobs):
        (folder / str(job) / ".hydra").mkdir(parents=True)
        (folder / str(job) / ".hydra" / "config.yaml").write_text(f"cell: {cell}\nseed: {seed}\n{config}")
        for name, text in files.items():
            value = f"{0.5 + seed / 100 + 0.1 * cells.index(cell):.2f}"
            (folder / str(job) / name).write_text(text.replace("VALUE", value))


def answer(source: Path, metric: str = "acc", baseline: str = "a", *, cell: str = "cell", **more: str) -> Answer:
    """The verdict on a source, paired by seed."""
    return verdict(read_runs(str(source), **more), metric=metric, baseline=baseline, cell=cell)


def cells(
    source: Path, metric: str = "acc", baseline: str = "a", *, cell: str = "cell", **more: str
) -> list[CellAnswer]:
    return answer(source, metric, baseline, cell=cell, **more).metrics[0].cells


def test_tensorboard_hydra_and_trackio(samples: Path) -> None:
    rows = read_runs(str(samples / "tensorboard"), "{variant}/seed_{seed}")
    expect_the_verdict(rows, metric="test/accuracy")
    expect_the_verdict(read_runs(str(samples / "multirun")), "optimiser.name")
    expect_the_verdict(read_runs(str(samples / "trackio")))
    with pytest.raises(UserError, match="--name"):
        read_runs(str(samples / "tensorboard"), "{variant}-{seed}")


def logged(client: Any, experiment: str, name: str, metrics: Mapping[str, float], **how: Any) -> str:
    """A finished run in an MLflow store: each metric was 0 at its first step."""
    run: str = client.create_run(experiment, run_name=name, tags=how.get("tags")).info.run_id
    for metric, value in metrics.items():
        client.log_metric(run, metric, 0.0, step=0)
        client.log_metric(run, metric, value, step=1)
    client.set_terminated(run, how.get("status"))
    return run


@pytest.mark.slow
def test_mlflow(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of the Hydra sample, logged with MLflow; a second experiment must be distinguished from the first."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{samples / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("optimisers", artifact_location="mlflow-artifacts:/1")
    for row in read_runs(str(samples / "multirun")):
        run = logged(client, experiment, row.values["run"], {"accuracy": float(row.measured("accuracy").value)})
        client.log_param(run, "variant", row.values["optimiser.name"])
        client.log_param(run, "seed", row.values["seed"])
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
    """W&B's exports: the table of its page, the script of its documentation, whose cells are dicts, JSON of its API."""
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
    for path in (page, script, api):
        [one] = verdict(read_runs(str(path)), metric="accuracy", baseline="a", cell="variant").metrics
        assert one.cells[0].values == {0: 0.5, 1: 0.75}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_of_spreadsheets(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "runs.csv"
    lines = [["cell", "seed", "acc"], ["a", "1", "0.5"], ["a", "2.0", "0.25"]]
    path.write_text("\ufeff" + "\r\n".join(map(separator.join, lines)) + "\r\n\r\n", encoding="utf-8")
    [one] = verdict(read_runs(str(path)), metric="acc", baseline="a").metrics
    assert one.cells[0].values == {1: 0.5, 2: 0.25}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("runs.csv", b"cell,seed,acc\na,1\n", ("line 2", "2 values")),
        ("runs.csv", b"cell,cell\na,1\n", ("line 1", "'cell'")),
        ("runs.csv", b"\xff\xfe,\n", ("UTF-8",)),
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


def test_a_file_may_have_the_name_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mysql_runs.csv").write_text("cell,seed,note\na,1,one\u2028two\n", encoding="utf-8")
    assert [row.values["note"] for row in read_runs("mysql_runs.csv")] == ["one\u2028two"]
    Path("runs.jsonl").write_text('{"cell": "one\u2028two"}\n{"cell": "b"}\n', encoding="utf-8")
    assert [row.values["cell"] for row in read_runs("runs.jsonl")] == ["one\u2028two", "b"]


@pytest.mark.parametrize("pattern", ["{a}_{a}", "{1}", "seed"])
def test_a_pattern_without_distinct_columns_is_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "runs.csv").write_text("name,acc\nx_1,0.5\n", encoding="utf-8")
    with pytest.raises(UserError, match="each once"):
        read_runs(str(tmp_path / "runs.csv"), pattern)


def test_a_killed_run_has_the_scalars_before_its_end(samples: Path) -> None:
    [path] = (samples / "tensorboard" / "sgd" / "seed_0").iterdir()
    whole = path.read_bytes()
    assert last_scalars(path)["test/accuracy"][1] == SGD_0
    path.write_bytes(whole[:-3])
    cut = last_scalars(path)
    assert cut.keys() == {"test/accuracy"}
    path.write_bytes(whole[: len(whole) // 2])
    assert last_scalars(path)["test/accuracy"][1] != SGD_0


def test_tensors_of_tensorflow_2(tmp_path: Path) -> None:
    """tf.summary.scalar writes a tensor of one float32."""
    tensor = b"\x08\x01\x22\x04" + struct.pack("<f", 0.7925)  # dtype, tensor_content
    value = b"\x0a\x03acc" + b"\x42" + bytes([len(tensor)]) + tensor
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x10\x05\x2a" + bytes([len(summary)]) + summary  # step, summary
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(struct.pack("<QI", len(event), 0) + event + bytes(4))
    assert last_scalars(path) == {"acc": (5, 0.7925)}


def test_the_largest_step_counts_and_of_equal_steps_the_last_one(tmp_path: Path) -> None:
    for cell in "ab":
        run = tmp_path / cell / "seed_0"
        write_events(run / "events.out.tfevents.2", [(1, 0.1), (3, 0.2), (3, 0.3), (2, 0.4)])
        write_events(run / "events.out.tfevents.3", [(2, 0.5)])  # an evaluation that ended late
    assert cells(tmp_path, pattern="{cell}/seed_{seed}")[1].values == {0: 0.3}


def test_folders_below_a_run_belong_to_it(tmp_path: Path) -> None:
    """Keras writes `train` and `validation`, add_hparams a folder named by the time, all with the same tag."""
    for cell in "ab":
        for seed in range(2):
            run = tmp_path / cell / f"seed_{seed}"
            write_events(run / "train" / "a.tfevents.1", [(1, 0.9)])
            write_events(run / "validation" / "a.tfevents.1", [(1, 0.7)])
            write_events(run / "validation" / f"17.{seed}" / "a.tfevents.1", [(0, 0.7)])
    for more in ({"pattern": "{cell}/seed_{seed}/validation"}, {"pattern": "{cell}/seed_{seed}", "part": "validation"}):
        base, other = cells(tmp_path, **more)
        assert base.values == other.values == {0: pytest.approx(0.7), 1: pytest.approx(0.7)}
    left_out = answer(tmp_path, pattern="{cell}/seed_{seed}/validation").left_out
    assert [Path(run).name for run, _ in left_out] == ["train"] * 4
    with refused("train", "validation", "--part"):
        cells(tmp_path, pattern="{cell}/seed_{seed}")
    with refused("'test'", "validation"):
        read_runs(str(tmp_path), "{cell}/seed_{seed}", part="test")


def test_runs_have_a_metric_in_the_same_part(tmp_path: Path) -> None:
    """A run that was killed before its first validation has only the value of training."""
    for seed in range(2):
        write_events(tmp_path / f"seed_{seed}" / "train" / "a.tfevents.1", [(1, 0.9)])
    write_events(tmp_path / "seed_0" / "validation" / "a.tfevents.1", [(1, 0.9)])
    (tmp_path / "seed_0" / "train" / "a.tfevents.1").unlink()
    rows = [row._replace(values={**row.values, "cell": "a"}) for row in read_runs(str(tmp_path), "seed_{seed}")]
    with refused("train", "validation", "--part"):
        verdict(rows, metric="acc", baseline="a")


def test_two_files_of_a_job_with_the_metric_are_refused_or_chosen(tmp_path: Path) -> None:
    write_jobs(tmp_path, {"metrics.json": '{"acc": VALUE}', "per_class.csv": "class,acc\ncat,0.9\nrare,0.1\n"})
    with refused("metrics.json", "per_class.csv", "--part"):
        cells(tmp_path)
    base, other = cells(tmp_path, part="metrics.json")
    assert (base.values, other.values) == ({0: 0.5, 1: 0.51}, {0: 0.6, 1: 0.61})


def test_a_text_in_place_of_a_result(tmp_path: Path) -> None:
    """It is refused in any file of a finished run; a run that crashed has no result."""
    runs = [
        {"cell": c, "seed": s, "state": "finished" if s else "crashed", "summary": {"acc": 0.5 if s else "broken"}}
        for c in "ab"
        for s in range(2)
    ]
    (tmp_path / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    found = verdict(str(tmp_path / "runs.json"), metric="acc", baseline="a", state="state")
    assert [cell.missing for cell in found.metrics[0].cells] == [(0,), (0,)]
    write_jobs(tmp_path / "jobs", {"a.json": '{"acc": VALUE}', "notes.json": '{"acc": "top-1"}'})
    with refused("'top-1'", "acc"):
        cells(tmp_path / "jobs")


def test_files_without_the_metric_are_passed_over(tmp_path: Path) -> None:
    files = {"metrics.json": '{"acc": VALUE}', "classes.json": '["cat"]', "note.csv": "a,b\n1\n", "half.json": "{"}
    write_jobs(tmp_path, files)
    assert cells(tmp_path)[1].values == {0: 0.6, 1: 0.61}
    (tmp_path / "3" / "metrics.json").write_text('{"acc": ')
    with refused("not JSON"):
        cells(tmp_path)


def test_a_setting_and_a_metric_of_one_name(tmp_path: Path) -> None:
    """`loss: mse` in the configuration, and the column `loss` of the log."""
    write_jobs(tmp_path, {"log.csv": "epoch,loss\n1,9\n2,VALUE\n"}, "loss: ${cell}-loss\n")
    base, other = cells(tmp_path, "loss", "a-loss", cell="loss")
    assert (base.cell, other.values) == ("a-loss", {0: 0.6, 1: 0.61})


def test_blank_cells_of_a_log_are_no_values(tmp_path: Path) -> None:
    """Lightning writes training, validation and test values in separate lines."""
    log = "epoch,step,loss,val,test\n0,9,0.5,,\n0,9,,VALUE,\n1,19,0.4,,\n1,20,,,0.3\n"
    write_jobs(tmp_path, {"metrics.csv": log})
    assert cells(tmp_path, "val")[1].values == {0: 0.6, 1: 0.61}
    assert cells(tmp_path, "test")[1].values == {0: 0.3, 1: 0.3}


def test_interpolations_that_the_configuration_answers(tmp_path: Path) -> None:
    config = "model: {name: '${cell}', tag: '${.name}-x', up: '${..seed}'}\nhost: ${oc.env:HOST}\nloop: ${loop}\n"
    write_jobs(tmp_path, {"metrics.json": '{"acc": VALUE}'}, config)
    values = read_runs(str(tmp_path))[3].values
    assert (values["model.tag"], values["model.up"]) == ("b-x", 1)
    assert values["loop"] == "${loop}"
    assert cells(tmp_path, baseline="a-x", cell="model.tag")[1].values == {0: 0.6, 1: 0.61}
    with refused("${oc.env:HOST}", "--cell"):
        cells(tmp_path, cell="host")


def test_runs_that_stopped_early_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jobs(tmp_path, {"log.csv": "epoch,acc\n1,0.4\n2,0.5\n3,VALUE\n"})
    (tmp_path / "3" / "log.csv").write_text("epoch,acc\n1,0.4\n2,0.5\n")
    base, other = cells(tmp_path)
    assert (base.stopped, other.stopped, other.values[1]) == ({}, {1: 2.0}, 0.5)
    assert cli.main(["verdict", str(tmp_path), "--metric", "acc", "--baseline", "a"]) == 0
    assert "1 (step 2)" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", '"NaN"', '"-Infinity"', "1.7976931348623157e308"])
def test_a_diverged_run_has_no_value_in_any_source(tmp_path: Path, value: str) -> None:
    """Trackio keeps NaN and infinity as texts, MLflow's SQL stores infinity as the largest float."""
    lines = [{"cell": c, "seed": s, "acc": 0.5} for c in "ab" for s in range(2)]
    shown = [json.dumps(line) for line in lines]
    shown[3] = shown[3].replace("0.5", value)
    (tmp_path / "runs.jsonl").write_text("\n".join(shown))
    write_jobs(tmp_path / "jobs", {"metrics.json": '{"acc": 0.5}'})
    (tmp_path / "jobs" / "3" / "metrics.json").write_text(f'{{"acc": {value}}}')
    with closing(sqlite3.connect(tmp_path / "trackio.db")) as base:
        base.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id, run_name, config)")
        base.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id, run_name, step, metrics)")
        for n, line in enumerate(lines):
            base.execute("INSERT INTO configs VALUES (?, ?, ?, ?)", (n, n, f"run-{n}", json.dumps(line)))
            for step, metrics in ((0, '{"acc": 0.5}'), (1, shown[n])):
                base.execute(
                    "INSERT INTO metrics (run_id, run_name, step, metrics) VALUES (?, '', ?, ?)", (n, step, metrics)
                )
        base.commit()
    with (tmp_path / "runs.csv").open("w") as file:
        file.write("cell,seed,acc\na,0,.5\na,1,.5\nb,0,.5\nb,1," + value.strip('"') + "\n")
    for source in ("runs.jsonl", "jobs", "trackio.db", "runs.csv"):
        base_cell, other = cells(tmp_path / source)
        assert (base_cell.values, other.values, other.missing) == ({0: 0.5, 1: 0.5}, {0: 0.5}, (1,)), source


@pytest.mark.slow
def test_parents_infinity_and_unfinished_runs_of_mlflow(tmp_path: Path) -> None:
    """MLflow stores the state of a run, so that no --state is needed."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("sweep", artifact_location="mlflow-artifacts:/1")
    tags = {"mlflow.parentRunId": logged(client, experiment, "parent", {"acc": 0.9})}  # the best one
    for cell, seed in itertools.product("ab", range(3)):
        value = math.inf if (cell, seed) == ("b", 1) else 0.5
        status = "FAILED" if (cell, seed) == ("b", 2) else "FINISHED"
        run = logged(client, experiment, f"{cell}-{seed}", {"acc": value}, tags=tags, status=status)
        client.log_param(run, "cell", cell)
        client.log_param(run, "seed", seed)
    found = verdict(read_runs(uri), metric="acc", baseline="a")
    assert [one.run for one in found.left_out] == ["run parent"]
    assert [cell.missing for cell in found.metrics[0].cells] == [(), (1, 2)]


def test_decimal_commas_between_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("cell;seed;acc\n0,1;0;0,70\n0,1;1;,8\n0,2;0;1,5e-1\n")
    base, other = cells(path, baseline="0,1")
    assert (base.values, other.values) == ({0: 0.7, 1: 0.8}, {0: 0.15})


def test_blanks_around_values_and_a_long_field(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"cell,seed,acc,notes\n a,0, .7 ,{'x' * 200_000}\na ,1,.8,\n , ,,\nb,0 ,.9,\n")
    base, other = cells(path, baseline="a")
    assert (base.values, other.values) == ({0: 0.7, 1: 0.8}, {0: 0.9})


def test_the_verb(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["verdict", str(samples / "multirun"), "--cell", "optimiser.name", "--metric", "accuracy"]
    given += ["--baseline", "sgd", "--delta", "accuracy=0.02"]
    assert cli.main([*given, "--json", "--out", str(samples / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((samples / "out" / "verdict.json").read_text(encoding="utf-8"))
    written = {path.name for path in (samples / "out").iterdir() if path.stat().st_size}
    assert written == {"deltas.pdf", "deltas.png", "deltas.svg", "verdict.json", "verdict.md", "verdict.tex"}
    assert told["metrics"]["accuracy"]["momentum"]["finding"] == "equivalent"
    assert cli.main(given) == 0
    assert capsys.readouterr().out == (samples / "out" / "verdict.md").read_text(encoding="utf-8")
    assert cli.main([*given, "--delta", "accuracy"]) == 2
    assert cli.main([*given, "--pair", "fold"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
