"""`realm-lab status --runs` and `gc`: list the runs in runs/, and delete folders that nothing needs."""

from __future__ import annotations

import csv
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from realm_lab.engine.corpus.records import UPDATED
from realm_lab.engine.params.frozen import causal
from realm_lab.errors import UserError
from realm_lab.lab.project import studies_of
from realm_lab.lab.slurm_queue import jobs_of_stages, latest_jobs
from realm_lab.lab.stopping import sweepers
from realm_lab.records.files import is_ours, read_json
from realm_lab.records.run import KEY_LENGTH, Run, is_stage_folder, read_runs
from realm_lab.records.run_lease import writer_of
from realm_lab.records.state import UNFINISHED, StageStates
from realm_lab.records.study import DEFAULT, Studies, study_folder

KEPT_SECONDS = 86_400.0  # a stage is kept this long after its process's last sign of life, since clocks may differ


def list_runs(root: Path) -> list[dict[str, Any]]:
    """List every run under ROOT/runs: its name, state, and the studies (STUDY/VARIANT) that it belongs to."""
    runs = Path(root) / "runs"
    states, members, studies = StageStates(runs, jobs_of_stages(root)), defaultdict(list), studies_of(root)
    for record in (part for name in studies.names() for part in studies.read(name).with_trials):
        for run in record.runs:
            members[run.name].append(f"{record.name}/{run.cell}")
    return [{"run": run.name, "state": states.look(run).state, "studies": members[run.name]} for run in read_runs(runs)]


def process_logs(root: Path, run: Run) -> list[Path]:
    """Return logs of the processes and SLURM jobs of a run's stages, the newest last."""
    runs, stages = Path(root) / "runs", _stages(run)
    submitted = [job for study in Studies(runs).names() for job in latest_jobs(root, study)]
    jobs = {job.job for job in submitted if stages & {run.path.name for run in job.runs(root)}}
    found = [log for stage in stages for log in runs.glob(f"studies/*/logs/{stage}*.txt")]
    found += [log for job in jobs for log in runs.glob(f"studies/*/slurm/{job}_*_log.*")]
    return sorted(found, key=lambda log: log.stat().st_mtime)


def unneeded(root: Path, forget: Sequence[str] = ()) -> list[Path]:
    """Find folders that nothing needs: runs that no study and no report names, and stages, corpora, embeddings, BM25
    indexes and tables of likelihoods that no kept run uses. Only folders that realm_lab wrote are among them.

    The studies in `forget` need nothing, and their folders are found too. Folders of a running process or a queued job
    are kept, with all inputs of its run. `default` needs the runs of the present params.yaml and those that ran
    last. UserError: no such study, one that is being swept, or a record that cannot be read.
    """
    runs = Path(root) / "runs"
    last, now = Studies(runs), studies_of(root)
    studies = [*map(last.read, last.names()), *(now.read(name) for name in now.names() if name == DEFAULT)]
    for study in forget:
        if study not in {record.name for record in studies}:
            raise UserError(f"--forget {study}: no such study in {runs / 'studies'}; see `realm-lab status`")
        if sweepers(root, study):
            raise UserError(f"--forget {study}: it is being swept; `realm-lab sweep {study} --cancel` first")
    records = read_runs(runs)
    wanted = {run.name for record in studies if record.name not in forget for run in (*record.trials, *record.runs)}
    reported = _reported(Path(root) / "reports", forget)
    jobs = jobs_of_stages(root, must_answer=True)
    live = {path.name for path in (runs / "stages").glob("*") if writer_of(path, KEPT_SECONDS)}
    live |= {stage for stage, job in jobs.items() if job.state in UNFINISHED}
    begun = [
        run
        for run in records
        if any(folder.exists() for stage, folder in run.folders(runs).items() if stage != "prepare")
    ]
    reported &= {run.run_key for run in begun}
    kept = [run for run in records if run.name in wanted or run.run_key in reported or live & _stages(run)]
    stages = live.union(*map(_stages, kept))
    corpora = {run.corpus_key[:KEY_LENGTH] for run in kept}
    folders = [runs / run.name for run in records if run not in kept]
    others = [path for path in sorted(runs.glob("stages/*")) if path.name not in stages]
    folders += [path for path in others if is_stage_folder(path)]
    folders += [path for path in sorted(runs.glob("corpora/*")) if path.name not in corpora and is_ours(path)]
    folders += [path for path in sorted(runs.glob("corpora/.*.cuts")) if path.name.split(".")[1] not in corpora]
    folders += [study_folder(runs, study) for study in forget]
    manifests = [path for path in runs.glob("corpora/*/manifest.json") if path.parent.name in corpora]
    manifests += [path for run in kept for path in runs.glob(f"{run.name}/corpus_updates/*/*/prepared/manifest.json")]
    digests = {read_json(path)["digest"] for path in manifests}
    digests |= {f"{known}{UPDATED}" for known in digests}
    manifests = [path for store in ("embeddings", "bm25") for path in sorted(runs.glob(f"{store}/*/manifest.json"))]
    published = [path.parent / "identity.json" for path in manifests]
    folders += [path.parent for path in published if read_json(path)["corpus_digest"] not in digests]
    return folders + _unread_tables(Path(root), kept)


def remove(folder: Path) -> None:
    """Delete a folder; for a link to a folder, only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def size_of(folder: Path) -> int:
    """Count the bytes of the files in a folder; a link has none."""
    return 0 if folder.is_symlink() else sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _stages(run: Run) -> set[str]:
    return {folder.name for folder in run.folders(Path()).values()}


def _unread_tables(root: Path, kept: Sequence[Run]) -> list[Path]:
    """Find tables of likelihoods whose causal language model no kept run names. If the model of a kept run is missing,
    find none, since the table of that run is then unknown."""
    named = {run.params["pretrain"].get("causal_checkpoint") for run in kept if "pretrain" in run.params}
    paths = [root / name for name in named if name]
    if not all(path.exists() for path in paths):
        return []
    models = {causal().load().digest(path) for path in paths}
    tables = sorted((root / "runs").glob("likelihoods/*/identity.json"))
    return [path.parent for path in tables if read_json(path)["checkpoint"] not in models]


def _reported(reports: Path, forget: Sequence[str]) -> set[str]:
    keys: set[str] = set()
    for path in (path for path in reports.rglob("results.csv") if path.parent.name not in forget):
        try:
            with path.open(encoding="utf-8", newline="") as file:
                keys |= {row.get("run_key", "") for row in csv.DictReader(file)}
        except (UnicodeDecodeError, csv.Error) as error:
            remedy = "write the report again, or move the file out of reports/"
            raise UserError(
                f"cannot be read ({error}), so the runs it needs are not known", remedy, path=path
            ) from None
    return keys
