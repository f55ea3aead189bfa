"""realm_lab: experiments on retrieval-augmented language-model pre-training (REALM, Guu et al. 2020)."""

import importlib
import os
from typing import Any

__version__ = "0.1.0"

# Part of every run's identity. Bump it when the golden losses move: results made by
# different numerics must never be taken for one another.
ENGINE_VERSION = 4

# A thread of OpenMP that waits for the others burns its core, by default for milliseconds: if another program has taken
# a core, a step takes many times as long. OpenMP reads these variables when torch is loaded, so they are set before.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "20000"  # of GNU's OpenMP, as in torch's wheels for Linux
if not {"OMP_WAIT_POLICY", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["KMP_BLOCKTIME"] = "1"  # milliseconds; of Intel's and LLVM's OpenMP

# The public names and their modules. A module is imported when a name is first used: `import realm_lab` costs nothing.
_PUBLIC = {
    "load_run": "api",
    "results": "api",
    "curves": "api",
    "predictions": "api",
    "sweep": "api",
    "verdict": "evidence.verdict.answer",
    "Metric": "records.metrics",
    "Prediction": "records.computed",
    "computes": "records.computed",
    "MaskRequest": "engine.masking",
    "RewardRequest": "engine.models.rewards",
    "Section": "engine.params.sections",
    "FILE": "engine.params.sections",
    "System": "engine.systems.registry",
    "Stage": "engine.systems.registry",
    "WARM_START": "engine.systems.realm",
    "FINETUNE_READER": "engine.systems.realm",
    "EVALUATE": "engine.systems.registry",
    "SpanReader": "engine.systems.reading",
    "DenseRetriever": "engine.systems.reading",
    "Retrieved": "engine.systems.registry",
    "Answer": "engine.evaluation.answers",
    "Unsupported": "engine.systems.registry",
    "SeedRule": "lab.rules.seeds",
    "Launcher": "lab.launchers",
    "RemoteLauncher": "contrib.remote",
    "LauncherSettings": "lab.launchers",
    "Outcome": "lab.workers",
    "Task": "lab.tasks",
    "Tracker": "lab.tracking.mirror",
    "Document": "engine.corpus.records",
    "Question": "engine.corpus.records",
    "SourceRequest": "engine.corpus.sources",
    "Span": "engine.corpus.records",
    "TextSource": "engine.corpus.text_source",
    "PassageSearch": "engine.retrieval.candidate_sources",
    "QueryBatch": "engine.retrieval.candidate_sources",
    "register_candidate_source": "engine.retrieval.candidate_sources",
    "ReportSection": "evidence.report.section",
    "register_figure": "evidence.report.own_figures",
    "register_section": "evidence.report.own_figures",
    "register_launcher": "lab.launchers",
    "register_masking": "engine.masking",
    "register_metric": "records.metrics",
    "register_objective": "engine.models.objectives",
    "register_reward": "engine.models.rewards",
    "register_refresh": "engine.retrieval.refresh_policies",
    "register_search": "engine.retrieval.backends",
    "register_reader": "engine.corpus.readers.registry",
    "register_seed_rule": "lab.rules.seeds",
    "register_shape": "engine.corpus.readers.json_records",
    "register_source": "engine.corpus.sources",
    "register_tagger": "engine.corpus.sources",
    "register_system": "engine.systems.registry",
    "register_tracker": "lab.tracking.mirror",
    "UserError": "errors",
}
__all__ = ["ENGINE_VERSION", *_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'realm_lab' has no attribute '{name}'")
    return getattr(importlib.import_module(f"realm_lab.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
