"""The whole pipeline at full size, by commands: prepare, embed, train, evaluate, ask, and update a corpus of texts.

    python -m benchmarks.full_size --folder FOLDER --output benchmarks/results/full_size.json   # 80 minutes

Each text states where one invented person was born. The model has the toy preset's sizes, trained for a few steps: it
shows what the size costs, and answers nothing. Each step is a separate command. Its time and the memory of all its
processes, without pages of files, are measured from outside. Finished steps are kept in FOLDER for a later start.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import description, table
from benchmarks.prepare import anonymous_bytes, children_of
from benchmarks.search_scale import WIKIPEDIA_2018
from realm_lab.engine.corpus.vocabulary import save_tokenizer, train_wordpiece
from realm_lab.records.files import read_json, write_json

REPOSITORY = Path(__file__).resolve().parents[1]
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]  # 70
PLACES, JOBS = 5000, ("baker", "painter", "teacher", "sailor", "lawyer", "doctor", "farmer", "singer")
PRETRAIN, VOCABULARY = 5_000, 8_000
CHANGED = 100  # every hundredth passage has another town after the update
POLL_SECONDS = 0.5
SIZES = [100_000, 1_000_000, WIKIPEDIA_2018]
PARAMETERS = """
preset: PRESET
seeds: [0]
corpus:
  source: files
  tagger: rule
  files:
    knowledge: [knowledge.jsonl]
    pretrain: [pretrain.jsonl]
    questions_train: [questions-train.jsonl]
    questions_test: [questions-test.jsonl]
tokenizer: {checkpoint: vocabulary}
warm_start: {reader: {steps: COUNT}, embedder: {steps: COUNT}}
finetune: {steps: 20}
"""
STUDY = """
question: What does the full size cost?
preset: PRESET
seeds: [0]
baseline: warm_start
cells:
  warm_start: {title: warm start only, system: warm_start}
metrics: [exact_match, recall_at_5]
"""
STEPS = {  # step -> the command that is measured; if it runs several stages, each of them is measured
    "prepare": "prepare",
    "bench": "plan --measure",  # for the planner's times
    "warm start": "run --until warm-start",
    "index build": "index build --system warm_start --stage warm-start",
    "fine-tuning and evaluation": "sweep full_size.yaml --launcher inline",
    "ask": "ask QUESTION --system warm_start",
    "ask again": "ask QUESTION --system warm_start",
    "prepare and evaluate the update": "evaluate --corpus updated.jsonl --system warm_start",
}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark, print it, and write it to --output."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.full_size", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passages", type=int, nargs="+", help=f"sizes (default: {SIZES})")
    parser.add_argument("--questions", type=int, default=1000, help="asked by evaluate (default: 1000)")
    parser.add_argument("--tiny", action="store_true", help="a smaller model and fewer steps, to try the program out")
    parser.add_argument("--folder", type=Path, required=True, help="where the projects are made, and continued")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args(argv)
    sizes = arguments.passages or ([2000] if arguments.tiny else SIZES)
    if min(sizes) < 2 * arguments.questions:
        parser.error(f"--passages {min(sizes)}: fewer than two for each of the {arguments.questions} --questions")
    found = {str(size): measure(arguments.folder / str(size), size, arguments) for size in sizes}
    result = {"machine": description(os.cpu_count() or 1), "questions": arguments.questions, "sizes": found}
    print(report(result))
    if arguments.output:
        write_json(arguments.output, result)
    return 0


def measure(folder: Path, passages: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all steps of one size in a separate project folder; finished steps are not repeated."""
    if not (folder / "params.yaml").exists():
        write_project(folder, passages, arguments.questions, *(("smoke", 5) if arguments.tiny else ("toy", 100)))
    done = folder / "measured.json"
    found: dict[str, Any] = read_json(done) if done.exists() else {}
    for name, verb in STEPS.items():
        if name not in found:
            words = [text(0)[1] if word == "QUESTION" else word for word in verb.split()]
            found[name] = run(folder, words)
            write_json(done, found)
            print(f"{passages:,} passages, {name}: {found[name]}", file=sys.stderr)
    return {"steps": found, "planned_seconds": planned(folder)}


def planned(folder: Path) -> dict[str, float]:
    """Estimates of `realm-lab plan` for the steps."""
    command = [sys.executable, "-m", "realm_lab", "plan", "--json"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    written = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout
    plan = json.loads(written)
    hours, build = plan["stage_device_hours"], plan["seconds"]["build"]
    stages = {"warm start": hours["warm_start"], "finetune": hours["finetune"], "evaluate": hours["evaluate"]}
    seconds = {name: 3600 * value for name, value in stages.items()}
    return seconds | {"index build": build, "finetune": seconds["finetune"] - build}  # fine-tuning includes the build


def report(result: dict[str, Any]) -> str:
    """The table of steps: for each size the seconds, the planner's seconds, and the peak memory."""
    columns = {f"{int(size):,}": found for size, found in result["sizes"].items()}
    header = ["step", *(f"{size}: {what}" for size in columns for what in ("seconds", "planned", "peak, MiB"))]
    lines = {name: dict[str, dict[str, float]]() for name in STEPS}
    for size, found in columns.items():
        for name, step in found["steps"].items():
            parts = step["stages"] if len(step["stages"]) > 1 else {name: step}
            for part, measured in parts.items():
                lines.setdefault(part, {})[size] = measured
    rows = []
    for name, sizes in lines.items():
        if sizes:
            cells = [
                (one["seconds"], columns[size]["planned_seconds"].get(name, ""), one["peak_mebibytes"])
                for size, one in sizes.items()
            ]
            rows.append([name, *itertools.chain(*cells)])
    return f"{result['machine']}\n\n{table(header, rows)}"


def run(folder: Path, words: list[str]) -> dict[str, Any]:
    """Run a command in the folder; returns seconds, processor seconds, peak MiB without pages of files, and stages."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TOKENIZERS_PARALLELISM": "false"}
    before, start = os.times(), time.time()
    samples = []
    with open(folder / "output.txt", "ab") as output:
        command = [sys.executable, "-m", "realm_lab", *words]
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output) as process:
            while process.poll() is None:
                samples.append((time.time(), sum(map(anonymous_bytes, [process.pid, *children_of(process.pid)]))))
                time.sleep(POLL_SECONDS)
    if process.returncode:
        raise SystemExit(f"{folder / 'output.txt'}: realm-lab {words[0]} failed; mend it, then start this again")
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    statuses = {path.parent.name: read_json(path) for path in sorted(folder.glob("runs/stages/*/status.json"))}
    now = {name.split("-")[0]: one for name, one in statuses.items() if one["started_at"] >= start}
    stages = {name: stage(status, samples) for name, status in now.items()}
    return {"seconds": time.time() - start, "processor_seconds": spent, "stages": stages} | peak(samples)


def stage(status: dict[str, Any], samples: list[tuple[float, int]]) -> dict[str, Any]:
    """Seconds and peak memory of one stage of a command."""
    first, last = status["started_at"], status["finished_at"]
    return {"seconds": last - first} | peak([one for one in samples if first <= one[0] <= last])


def peak(samples: list[tuple[float, int]]) -> dict[str, float]:
    return {"peak_mebibytes": max((size for _, size in samples), default=0) / 2**20}


def text(number: int, version: int = 0) -> tuple[str, str, str, str]:
    """Name, question, answer and passage of a person. Each version has another town of birth."""
    rest, letters = number, []
    for _ in range(5):
        rest, letter = divmod(rest, len(SYLLABLES))
        letters.append(SYLLABLES[letter])
    name = f"{''.join(letters[:3])} {''.join(letters[3:])}na".title()
    place, home = word((number * 7919 + version) % PLACES), word(number * 104_729 % PLACES)
    year, job = 1800 + number * 31 % 200, JOBS[number % len(JOBS)]
    body = f"{name} was born in {place} in {year}. The {job} later lived in {home}."
    return name, f"Where was {name} born?", place, body


def word(number: int) -> str:
    """The name of a town."""
    first, second = divmod(number, len(SYLLABLES))
    places = first % len(SYLLABLES), second, (first + second) % len(SYLLABLES)
    return "".join([*(SYLLABLES[place] for place in places), "l"]).title()


def write_project(folder: Path, passages: int, questions: int, preset: str, steps: int) -> None:
    """Texts, questions, vocabulary, parameters and study."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, numbers, version in (
        ("knowledge.jsonl", range(passages), 0),
        ("updated.jsonl", range(passages), 1),
        ("pretrain.jsonl", range(min(PRETRAIN, passages)), 0),
    ):
        with open(folder / name, "w", encoding="utf-8") as file:
            for number in numbers:
                title, _, _, body = text(number, version * (number % CHANGED == 0))
                file.write(f'{{"id": "{number}", "title": "{title}", "text": "{body}"}}\n')
    step = passages // (2 * questions)
    for name, first in (("questions-train.jsonl", step), ("questions-test.jsonl", 0)):
        with open(folder / name, "w", encoding="utf-8") as file:
            for number in range(first, passages, 2 * step)[:questions]:
                _, question, answer, _ = text(number)
                file.write(json.dumps({"id": str(number), "question": question, "answer": [answer]}) + "\n")
    sample = [text(number)[3] for number in range(0, passages, max(1, passages // 50_000))]
    save_tokenizer(train_wordpiece(sample, VOCABULARY), folder / "vocabulary")
    (folder / "full_size.yaml").write_text(STUDY.replace("PRESET", preset), encoding="utf-8")
    parameters = PARAMETERS.replace("PRESET", preset).replace("COUNT", str(steps))
    (folder / "params.yaml").write_text(parameters, encoding="utf-8")  # last: with it the project is complete


if __name__ == "__main__":
    sys.exit(main())
