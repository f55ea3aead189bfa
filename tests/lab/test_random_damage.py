"""Whatever is flipped, exchanged, edited or deleted in runs/, no number of a report and no answer changes silently.

`REALM_LAB_FLIPS=540 pytest -s tests/lab/test_random_damage.py` flips as many bytes, 320 of 540 in any file and the
others in chosen ones, and prints a table; the default is a few. A digit in JSON becomes another digit.
"""

import contextlib
import io
import json
import os
import random
import re
import shutil
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import realm_lab
from realm_lab.cli.doctor import verify
from realm_lab.cli.parser import main
from realm_lab.lab.project import TEMPLATE
from realm_lab.records.digests import DIGESTS
from realm_lab.records.files import read_json, write_json, write_text
from tests import tiny

pytestmark = [pytest.mark.slow, pytest.mark.drill]
FLIPS = int(os.environ.get("REALM_LAB_FLIPS", 27))
STUDY = (
    "question: q\nseeds: [0, 1]\nbaseline: warm_start\nmetrics: [exact_match, recall_at_5]\n"
    "set: {warm_start.reader.steps: 4, warm_start.embedder.steps: 4, pretrain.steps: 4, finetune.steps: 4}\n"
)
CELLS = "cells:\n  warm_start: {system: warm_start}\n  realm: {system: realm}\n"
PAPERS = ("report.md", "results.csv", "summary.json")
DEEP = ("corpora", "embeddings", "bm25", "model")  # read by questions, not by reports
LOUD = ("refused", "named", "not complete")


class Seen(NamedTuple):
    """Everything that a user reads: exit codes, and texts by their origin."""

    codes: tuple[int, ...]
    texts: dict[str, str]


class Project:
    """A finished study, and the answers that a user gets from it."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs = root, root / "runs"
        self.record = {run["cell"] + str(run["seed"]): run for run in read_json(self._study)["runs"]}
        self.papers = {name: (root / "reports" / "s" / name).read_bytes() for name in PAPERS}
        self.right = {deep: self.look(deep) for deep in (False, True)}
        assert self.right == {deep: self.look(deep) for deep in (False, True)}, "it reads the same twice"
        assert not [found for found in verify(root) if found.state == "wrong"]

    @property
    def _study(self) -> Path:
        return self.runs / "studies" / "s" / "study.json"

    def stage(self, stage: str, cell: str = "realm", seed: int = 0) -> Path:
        """The folder of a stage of a run."""
        record = read_json(self.runs / self.record[f"{cell}{seed}"]["run"] / "run.json")
        return self.runs / str(record["stages"][stage])

    def corpus(self, seed: int = 0) -> Path:
        record = read_json(self.runs / self.record[f"realm{seed}"]["run"] / "run.json")
        return self.runs / "corpora" / str(record["inputs"]["corpus"])[:12]

    def look(self, deep: bool) -> Seen:
        """Ask every test question, or write the report and read the status; each in a separate process."""
        root = str(self.root)
        if deep:
            code, text = _apart(self._answers)
            return Seen((code,), {"ask": text})
        commands = {"report": ["report", "s", "--root", root], "status": ["status", "s", "--root", root, "--json"]}
        calls = {name: _apart(partial(main, command)) for name, command in commands.items()}
        papers = {name: (self.root / "reports" / "s" / name).read_text() for name in PAPERS}
        for name, content in self.papers.items():
            (self.root / "reports" / "s" / name).write_bytes(content)
        codes = tuple(code for code, _ in calls.values())
        return Seen(codes, papers | {name: text for name, (_, text) in calls.items()})

    def _answers(self) -> int:
        run = realm_lab.load_run("s/realm-s0", self.root)
        for question in QUESTIONS:
            reply = run.ask(question)
            print(reply.answer, [round(one.probability, 7) for one in reply.candidates])
        return 0

    def outcome(self, path: Path, deep: bool) -> str:
        """Compare the answers of now with the right ones."""
        now, right = self.look(deep), self.right[deep]
        text = "".join(now.texts.values())
        if re.search(r"Traceback|unexpected [A-Z]", text):
            return "traceback"
        if now.codes != right.codes:
            return "refused"
        if now.texts == right.texts:
            return "no effect"
        where = path.relative_to(self.root).as_posix()
        if where in text and where not in "".join(right.texts.values()):
            return "named"
        if text.count('"COMPLETE"') < "".join(right.texts.values()).count('"COMPLETE"'):
            return "not complete"
        return "SILENT"


QUESTIONS: list[str] = []


def _apart(work: Callable[[], int]) -> tuple[int, str]:
    """Return the exit code of work in a child process, and its output."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code, printed = 99, io.StringIO()
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                try:
                    code = work()
                except realm_lab.UserError as error:
                    print(error)
                    code = 2
                except BaseException:
                    traceback.print_exc(file=printed)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(printed.getvalue())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("damage")
    (root / "experiments").mkdir()
    (root / "experiments" / "s.yaml").write_text(STUDY + CELLS)
    shutil.copy2(tiny.PARAMETERS, root / "params.yaml")
    with tiny.undrawn():
        assert main(["sweep", "s", "--root", str(root), "--launcher", "inline"]) == 0
        evaluated = next(root.glob("runs/stages/evaluate-*/eval/predictions.jsonl"))
        QUESTIONS[:] = [json.loads(line)["question"] for line in evaluated.read_text().splitlines()]
        yield Project(root)


def flipped(content: bytes, is_text: bool, chance: random.Random) -> bytes:
    """Return content with one bit flipped, or one digit of a JSON file changed."""
    digits = [found.start() for found in re.finditer(rb"(?<=[ .\d])\d", content)] if is_text else []
    at = chance.choice(digits) if digits else chance.randrange(len(content))
    new = 48 + (content[at] - 48 + chance.randrange(1, 10)) % 10 if digits else content[at] ^ 1 << chance.randrange(8)
    return content[:at] + bytes([new]) + content[at + 1 :]


@contextlib.contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    """Inside the block, a file has other content and its old times."""
    before, times = path.read_bytes(), path.stat()
    try:
        _write(path, content, times)
        yield
    finally:
        _write(path, before, times)


def _write(path: Path, content: bytes, times: os.stat_result) -> None:
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def is_covered(path: Path) -> bool:
    """True if `doctor --verify` must find a change of the file: not of a lease, a cache or the ledger, which is a chain
    of digests."""
    hidden = any(part.startswith(".") for part in path.parts[-2:])
    return not hidden and "lease" not in path.parts and path.suffix != ".lock" and path.name != "ledger.jsonl"


def flip(
    project: Project, groups: dict[str, list[Path]], count: int, chance: random.Random, digits: bool
) -> Counter[str]:
    """Flip bytes in files of random groups; return the outcomes."""
    found: Counter[str] = Counter()
    for number in range(count):
        path = chance.choice(groups[[*groups][number % len(groups)]])
        content = path.read_bytes()
        inside = path.relative_to(project.runs).parts
        is_deep = any(part in DEEP for part in inside)
        with changed(path, flipped(content, digits and path.suffix in (".json", ".jsonl"), chance)):
            outcome = project.outcome(path, is_deep)
            is_found = any(one.state == "wrong" for one in verify(project.root))
        found[outcome] += 1
        found[
            "found by --verify" if is_found else "missed by --verify" if is_covered(path) else "without a digest"
        ] += 1
        if outcome in ("SILENT", "traceback") or (is_covered(path) and not is_found):
            print(f"\n{outcome}, {'found' if is_found else 'missed'}: {path}")
    return found


def test_flips_in_any_file(project: Project) -> None:
    groups = defaultdict(list)
    for path in sorted(project.runs.rglob("*")):
        if path.is_file() and path.stat().st_size and is_covered(path):
            parent = f"{path.parent.name}/" if path.suffix in (".safetensors", ".arrow", ".bin") else ""
            groups[parent + path.name].append(path)
    chance = random.Random(11)
    mixed = sorted(groups)
    chance.shuffle(mixed)
    found = flip(project, {name: groups[name] for name in mixed}, FLIPS * 32 // 54, chance, digits=False)
    print(f"\nflips in any file: {dict(found)}")
    assert not found["SILENT"] + found["traceback"] + found["missed by --verify"]


def test_flips_in_chosen_files(project: Project) -> None:
    stages = [project.stage(name) for name in ("warm_start", "pretrain", "finetune", "evaluate")]
    tuned, corpus = project.stage("finetune") / "model", project.corpus()
    groups = {
        "results.json": [stage / "results.json" for stage in stages],
        "predictions.jsonl": [stages[-1] / "eval" / "predictions.jsonl"],
        "metrics.jsonl": [stages[1] / "metrics.jsonl"],
        "status.json": [stage / "status.json" for stage in stages],
        "run.json": [project.runs / project.record["realm0"]["run"] / "run.json"],
        "reader": [*(tuned / "reader").glob("*.safetensors")],
        "embedder": [*(tuned / "embedder").rglob("*.safetensors")],
        "embeddings": [*project.runs.glob("embeddings/*/embeddings.bin")],
        "passages": [path for path in (corpus / "passages").iterdir() if path.stat().st_size],
        "questions": [path for path in (corpus / "questions_test").iterdir() if path.stat().st_size],
        "tokenizer": [*corpus.rglob("tokenizer*.json")],
    }
    found = flip(project, groups, FLIPS * 22 // 54, random.Random(5), digits=True)
    print(f"\nflips in chosen files: {dict(found)}")
    assert not found["SILENT"] + found["traceback"] + found["missed by --verify"]


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name(f"{one.name}.aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert re.search(old, text), f"{old} in {path}"
    path.write_text(re.sub(old, new, text, count=1))


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def other_run(project: Project) -> None:
    path = project.runs / "studies" / "s" / "study.json"
    record = read_json(path)
    first, second = record["runs"][:2]
    first["run"], second["run"] = second["run"], first["run"]
    write_json(path, record)


def undigested(project: Project) -> None:
    delete(project.stage("evaluate") / DIGESTS)
    edit(project.stage("evaluate") / "results.json", *EDIT)


def pairs(project: Project, stage: str, name: str = "") -> tuple[Path, Path]:
    """The same file or folder of both seeds."""
    first, second = (project.stage(stage, seed=seed) / name for seed in (0, 1))
    return first, second


EDIT = r'"recall_at_5": [\d.]+', '"recall_at_5": 0.9'
CHANGES: dict[str, Callable[[Project], object]] = {
    "evaluations of two seeds exchanged": lambda p: exchange(*pairs(p, "evaluate")),
    "fine-tunings exchanged": lambda p: exchange(*pairs(p, "finetune")),
    "pre-trainings exchanged": lambda p: exchange(*pairs(p, "pretrain")),
    "evaluations of two cells exchanged": lambda p: exchange(p.stage("evaluate"), p.stage("evaluate", "warm_start")),
    "models exchanged": lambda p: exchange(*pairs(p, "finetune", "model")),
    "readers exchanged": lambda p: exchange(*pairs(p, "finetune", "model/reader")),
    "results exchanged": lambda p: exchange(*pairs(p, "evaluate", "results.json")),
    "predictions exchanged": lambda p: exchange(*pairs(p, "evaluate", "eval/predictions.jsonl")),
    "curves exchanged": lambda p: exchange(*pairs(p, "pretrain", "metrics.jsonl")),
    "status exchanged": lambda p: exchange(*pairs(p, "pretrain", "status.json")),
    "digests exchanged": lambda p: exchange(*pairs(p, "evaluate", DIGESTS)),
    "corpora exchanged": lambda p: exchange(p.corpus(0), p.corpus(1)),
    "questions exchanged": lambda p: exchange(p.corpus(0) / "questions_test", p.corpus(1) / "questions_test"),
    "passages exchanged": lambda p: exchange(p.corpus(0) / "passages", p.corpus(1) / "passages"),
    "runs exchanged in study.json": other_run,
    "records of runs exchanged": lambda p: exchange(
        *(p.runs / p.record[name]["run"] / "run.json" for name in ("realm0", "realm1"))
    ),
    "a result edited": lambda p: edit(p.stage("evaluate") / "results.json", *EDIT),
    "a time edited": lambda p: edit(p.stage("pretrain") / "status.json", r'"wall_seconds": \d', '"wall_seconds": 9'),
    "the environment edited": lambda p: edit(p.stage("evaluate") / "env.json", r'"torch": "\d', '"torch": "9'),
    "predictions cut": lambda p: os.truncate(p.stage("evaluate") / "eval" / "predictions.jsonl", 900),
    "predictions deleted": lambda p: delete(p.stage("evaluate") / "eval" / "predictions.jsonl"),
    "weights deleted": lambda p: delete(p.stage("finetune") / "model" / "reader" / "model.safetensors"),
    "digests deleted and a result edited": undigested,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_exchanged_edited_and_deleted_files(project: Project, tmp_path: Path, name: str) -> None:
    """Change files as an interrupted copy of runs/ would."""
    shutil.copytree(project.runs, tmp_path / "runs")
    try:
        CHANGES[name](project)
        outcomes = {project.outcome(project.runs, deep) for deep in (False, True)}
        is_found = any(found.state == "wrong" for found in verify(project.root))
    finally:
        shutil.rmtree(project.runs)
        shutil.copytree(tmp_path / "runs", project.runs)
    print(f"\n{name}: {', '.join(sorted(outcomes))}; {'found' if is_found else 'not found'} by --verify")
    assert outcomes <= {*LOUD, "no effect"}
    assert is_found or outcomes & {*LOUD}


OWN = {
    "experiments/own.yaml": (
        "question: q\npreset: mini\nseeds: [0]\nbaseline: realm\nmetrics: [exact_match]\n"
        "cells:\n  realm: {}\n  own: {set: {pretrain.masking: 'damaged_masks:first'}}\n"
    ),
    "presets/mini.yaml": "preset: smoke\npretrain: {steps: 4}\nfinetune: {steps: 4}\n",
    "params.yaml": (
        "preset: mini\ntokenizer: {vocabulary_size: 600}\n"
        "corpus:\n  source: files\n  tagger: rule\n  pretrain_corpus: same\n  files:\n"
        "    knowledge: [knowledge.jsonl]\n    questions_train: [train.jsonl]\n    questions_test: [test.jsonl]\n"
    ),
    "damaged_masks.py": (
        "import numpy as np\n\nimport damaged_helper\n\n\ndef first(request, generator):\n"
        "    return np.arange(max(1, round(damaged_helper.SHARE * request.length)))\n"
    ),
    "damaged_helper.py": "SHARE = 0.2\n",
}
TEXTS = {"knowledge.jsonl": "countries", "train.jsonl": "questions-train", "test.jsonl": "questions-test"}
EDITS = {  # file, old, new, and if it counts
    "a mask": ("damaged_masks.py", "max\\(1", "max(2", True),
    "a helper of a mask": ("damaged_helper.py", "0.2", "0.7", True),
    "a comment in it": ("damaged_helper.py", "0.2", "0.2  # of the words", False),
    "a preset": ("presets/mini.yaml", "steps: 4", "steps: 5", True),
    "a parameter": ("params.yaml", "preset: mini", "preset: mini\nfinetune: {steps: 3}", True),
    "a comment beside it": ("params.yaml", "preset: mini", "preset: mini  # small", False),
    "a text, size and times kept": ("knowledge.jsonl", "France", "Frankr", True),
    "a training question": ("train.jsonl", "capital", "Capital", True),
    "a test question": ("test.jsonl", "capital", "Capital", True),
    "a cell": ("experiments/own.yaml", "realm: {}", "realm: {set: {pretrain.candidates: 3}}", True),
    "the seeds": ("experiments/own.yaml", "seeds: \\[0\\]", "seeds: [1]", True),
    "the question of a study": ("experiments/own.yaml", "question: q", "question: another", False),
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A finished study of custom code, a custom preset and text, and the work that a sweep of it lists."""
    root = tmp_path_factory.mktemp("own")
    for name, text in OWN.items():
        write_text(root / name, text)
    for name, example in TEXTS.items():
        shutil.copy2(TEMPLATE / "examples" / f"{example}.jsonl", root / name)
    with pytest.MonkeyPatch.context() as patches:
        patches.chdir(root)
        patches.syspath_prepend(root)
        with tiny.undrawn():
            assert _apart(lambda: main(["sweep", "own", "--launcher", "inline"]))[0] == 0
        before = to_do()
        assert before.count('"COMPLETE"') == 2
        assert "other code" not in before
        yield root, before


def to_do() -> str:
    """Return the work of a sweep, in a process that imports the custom code again."""
    code, text = _apart(lambda: main(["sweep", "own", "--dry-run", "--json"]))
    assert code == 0, text
    return text


@pytest.mark.parametrize("name", EDITS)
def test_edits_of_code_and_data(own: tuple[Path, str], name: str) -> None:
    """An edit that counts makes other runs, or is named; another one leaves nothing to do."""
    (root, before), (file, old, new, counts) = own, EDITS[name]
    with changed(root / file, re.sub(old, new, (root / file).read_text(), count=1).encode()):
        after = to_do()
    print(f"\n{name}: {'as before' if after == before else 'seen'}")
    assert (after != before) == counts
