"""Identity: changes that move a key, changes that do not, and stages that two runs share."""

import itertools
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.corpus.sources import source_options
from realm_lab.engine.masking import masking_scheme
from realm_lab.engine.params.load import flatten, load
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS, code_roots, open_stage, plan_run, record_run
from realm_lab.engine.systems.registry import PARTS, system_of, view_of
from realm_lab.errors import UserError
from realm_lab.lab.plan import check_parts
from realm_lab.records.files import read_json
from realm_lab.records.plugins import Kind
from tests.factories.switches import SWITCHES

TINY = Path(__file__).parents[2] / "tiny.yaml"
ORDER = ("prepare", "warm_start", "pretrain", "finetune", "evaluate")
# The first stage that a change of a section's parameter moves.
FIRST_FELT = {
    "corpus": "prepare",
    "tokenizer": "prepare",
    "model": "warm_start",
    "warm_start": "warm_start",
    "pretrain": "pretrain",
    "finetune": "finetune",
    "finetune.span_hidden_size": "warm_start",  # its head is drawn before that of masked words
    "finetune.answer_by": "evaluate",
    "evaluate": "evaluate",
    "streams": "warm_start",
}
# of a toy world; other systems' options are tested below
IRRELEVANT = (
    "launch.",
    "seeds",
    "preset",
    "plugins",
    "corpus.files.",
    "tokenizer.vocabulary_size",
    "system_options.",
)
OBSERVING = ("pretrain.watch.", "evaluate.interval_steps")
OTHERS: dict[str, Any] = {  # another valid value, where one more or a half would not do
    **{name: switch.value for name, switch in SWITCHES.items() if not callable(switch.value)},
    "corpus.source": None,  # files: tests/engine/corpus/test_prepare_files.py; its options below
    "corpus.tagger": "rule",
    "corpus.pretrain_corpus": "same",
    "corpus.source.entities": 44,
    "corpus.source.world": None,  # sets other parameters
    "corpus.source.salient": "object",
    "corpus.source.asked_relations": "half",
    "corpus.source.world_seed": 3,
    "tokenizer.checkpoint": None,
    "model.checkpoint": None,
    "warm_start.embedder.initial_encoder": "scratch",
    "pretrain.causal_checkpoint": None,  # tests/contrib/causal/test_training.py
    "pretrain.reward": None,  # the same
    "evaluate.questions": 11,
    "streams.order": {"warm_start": 1},
}


def other_value(name: str, value: Any) -> Any:
    """A value that differs."""
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    assert isinstance(value, float), f"name another value of {name} in OTHERS"
    return value / 2 if value else 0.5


BASE = load(TINY)
OF_WORLD = {f"corpus.source.{name}": value for name, value in source_options(BASE.corpus).model_dump().items()}
MATTERING = {
    name: other_value(name, value)
    for name, value in (flatten(BASE) | OF_WORLD).items()
    if not name.startswith(IRRELEVANT + OBSERVING) and other_value(name, value) is not None
}


def keys(params: Params, system: str = "realm", seed: int = 0) -> dict[str, str]:
    plan = plan_run(params, system, seed)
    return {"prepare": plan.corpus_key, **plan.stages}


@pytest.mark.parametrize("name", MATTERING)
def test_every_parameter_that_matters_changes_the_keys_from_its_stage_on(name: str) -> None:
    base = {"corpus.pretrain_corpus": "same"} if name == "pretrain.recurring_spans" else {}
    before, after = keys(load(TINY, base)), keys(load(TINY, base | {name: MATTERING[name]}))
    first = ORDER.index(FIRST_FELT.get(name) or FIRST_FELT[name.split(".")[0]])
    assert [stage for stage in ORDER if before[stage] == after[stage]] == list(ORDER[:first])


@pytest.mark.parametrize("name", [name for name in flatten(BASE) if name.startswith(OBSERVING)])
def test_parameters_that_only_observe_change_no_key(name: str) -> None:
    if other_value(name, flatten(BASE)[name]) is not None:
        assert keys(load(TINY, {name: other_value(name, flatten(BASE)[name])})) == keys(BASE)


@pytest.mark.parametrize("name", [name for name in PARTS if not name.startswith("corpus.")])
def test_code_of_ones_own_is_in_the_keys_with_its_helpers_and_options(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module, stage = f"own_{name.replace('.', '_')}", name.partition(".")[0]
    base = {"pretrain.train_reader": False} if name == "pretrain.reward" else {}
    helper, source = tmp_path / module / "helper.py", tmp_path / module / "parts.py"
    helper.parent.mkdir()
    (helper.parent / "__init__.py").touch()
    text = (
        f"from {module}.helper import best\nfrom realm_lab.engine.params.sections import Section\n"
        "class Size(Section):\n    size: int = 3\n"
        "def sized(first, second=None, *, options: Size): ...\n"
    )
    source.write_text(text)
    helper.write_text("best = max\n")
    sized = {"name": f"{module}.parts:sized"}
    sizes = [keys(load(TINY, base | {name: sized | size})) for size in ({}, {"size": 3}, {"size": 4})]
    assert sizes[0] == sizes[1] != sizes[2]
    found = []
    for part in ("best = max\n", "best = min\n"):
        helper.write_text(part)
        source.write_text(text)
        found.append(keys(load(TINY, base | {name: f"{module}.parts:best"})))
    source.write_text(text + "more = 1\n")
    found.append(keys(load(TINY, base | {name: f"{module}.parts:best"})))
    for before, after in itertools.pairwise(found):
        assert [one for one in ORDER if before[one] != after[one]] == list(ORDER[ORDER.index(stage) :])


@pytest.mark.parametrize("system", ["realm", "orqa"])  # orqa fixes parameters
def test_a_part_is_resolved_once_and_carried_by_its_run(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, find = Counter[str](), Kind.find

    def counted(kind: Kind[Any], parameter: str, name: str) -> Any:
        asked[parameter] += 1
        return find(kind, parameter, name)

    monkeypatch.setattr(Kind, "find", counted)
    params = load(TINY, {"pretrain.masking": "tests.tiny_masks:first_words"})
    check_parts(params)
    run = plan_run(params, system, 0)
    before = {name: asked[name] for name in PARTS}
    code_roots(run.params, system)
    for stage in ("prepare", *run.stages):
        view = view_of(run.params, system, stage)
        if system == "realm" and stage == "pretrain":
            masking_scheme(view.pretrain.masking)
    assert {name: asked[name] for name in PARTS} == before
    if system == "realm":
        assert set(before.values()) == {1}


def test_files_that_options_of_ones_own_code_name_are_in_the_keys_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words_mask.py").write_text(
        "from typing import Annotated\nfrom realm_lab import FILE, Section\n"
        "class Words(Section):\n    words: Annotated[list[str] | str, FILE] = []\n"
        "def listed(request, generator, options: Words): ...\n"
    )
    for name in ("one.txt", "same.txt", "folder/a.txt", "folder/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("oslo\n")

    def pretrain(words: Any) -> str:
        return keys(load(TINY, {"pretrain.masking": {"name": "words_mask:listed", "words": words}}))["pretrain"]

    before = [pretrain("one.txt"), pretrain(["one.txt"]), pretrain("folder")]
    assert len({*before, pretrain([])}) == 4
    assert pretrain("same.txt") == before[0], "the path is in no key"
    for name in ("one.txt", "folder/b.txt"):
        (tmp_path / name).write_text("bergen\n")
    after = [pretrain("one.txt"), pretrain(["one.txt"]), pretrain("folder")]
    assert not set(before) & set(after)
    with pytest.raises(UserError, match=r"parameter 'pretrain\.masking\.words': none\.txt: no such file"):
        pretrain("none.txt")


def test_options_of_a_system_change_its_keys_from_the_stage_that_has_them_and_no_other_system() -> None:
    given = load(TINY, {"system_options": {"dpr": {"steps": 5}}})
    assert keys(given) == keys(BASE)
    before, after = (plan_run(params, "dpr", 0).stages for params in (BASE, given))
    assert [stage for stage in before if before[stage] == after[stage]] == ["warm_start"]
    spelled = load(TINY, {"system_options": {"dpr": {"steps": 5, "batch_size": 16}}})  # as the preset has it
    assert plan_run(spelled, "dpr", 0).stages == after
    other = load(TINY, {"system_options.dpr.steps": 5, "system_options.dpr.batch_size": 128})
    assert plan_run(other, "dpr", 0).stages != after


def test_launch_settings_that_move_rounding_are_recorded_with_a_stage(tmp_path: Path) -> None:
    params = load(TINY, {"launch.micro_batch": 2, "launch.threads": 3})
    run = open_stage(tmp_path, plan_run(params, "realm", 0), "pretrain")
    run.start(1)
    launch = read_json(run.path / "env.json")["launch"]
    assert launch == {
        "device": "cpu",
        "ranks": 1,
        "threads": 3,
        "token_budget": BASE.launch.token_budget,
        "micro_batch": 2,
        "compile": False,
    }


LAUNCH: dict[str, Any] = {"device": "auto", "builder": "process", "tracking_uri": "x", "other_code": "fresh"}


@pytest.mark.parametrize("name", type(BASE.launch).model_fields)
def test_how_work_is_launched_changes_no_key(name: str) -> None:
    value = LAUNCH.get(name) or other_value(name, getattr(BASE.launch, name))
    assert keys(load(TINY, {f"launch.{name}": value, "seeds": [0, 1, 2]})) == keys(BASE)


def test_the_seed_is_in_every_key() -> None:
    one, other = keys(BASE, seed=0), keys(BASE, seed=1)
    assert all(one[stage] != other[stage] for stage in ORDER)
    fixed = load(TINY, {"corpus.source.world_seed": 0})  # one world for all seeds
    one, other = keys(fixed, seed=0), keys(fixed, seed=1)
    assert [stage for stage in ORDER if one[stage] == other[stage]] == ["prepare"]


def test_the_engine_version_is_in_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(BASE)
    monkeypatch.setattr("realm_lab.engine.systems.identity.ENGINE_VERSION", 10**6)
    after = keys(BASE)
    assert [stage for stage in ORDER if before[stage] == after[stage]] == ["prepare"]


def test_the_version_of_a_stage_is_in_its_key_and_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    system = system_of("bm25_reader")
    before = plan_run(BASE, "bm25_reader", 0).stages
    first, finetune, *rest = system.stages
    monkeypatch.setattr(system, "stages", (first, replace(finetune, version=7), *rest))
    after = plan_run(BASE, "bm25_reader", 0).stages
    assert [name for name in before if before[name] != after[name]] == ["finetune", "evaluate"]


def test_the_weights_of_bm25_are_in_the_keys_of_each_stage_that_uses_it() -> None:
    first = {"bm25_reader": "finetune", "bm25_dpr_reader": "finetune", "hard_em": "finetune", "dpr": "dpr"}
    first |= {"fid": "finetune", "path_retriever": "retriever", "graph_retriever": "retriever"}
    for system, stage in first.items():
        before = plan_run(BASE, system, 0).stages
        for option in ("k1", "b", "title_weight"):
            after = plan_run(load(TINY, {f"system_options.{system}.{option}": 0.3}), system, 0).stages
            assert next(name for name in before if before[name] != after[name]) == stage


def test_seeds_share_the_cell_and_systems_do_not(tmp_path: Path) -> None:
    records = {
        (system, seed): record_run(tmp_path, plan_run(BASE, system, seed))
        for system in DEFAULT_SYSTEMS
        for seed in (0, 1)
    }
    assert records["realm", 0].cell_key == records["realm", 1].cell_key
    assert records["realm", 0].run_key != records["realm", 1].run_key
    assert records["realm", 0].cell_key != records["warm_start", 0].cell_key
    other = load(TINY, {"pretrain.steps": 3})
    assert record_run(tmp_path, plan_run(other, "realm", 0)).cell_key != records["realm", 0].cell_key


def test_recording_twice_changes_nothing_and_launch_is_not_recorded(tmp_path: Path) -> None:
    record = record_run(tmp_path, plan_run(BASE, "realm", 0))
    path = tmp_path / record.name / "run.json"
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    launched = load(TINY, {"launch.processes": 4, "seeds": [0, 9]})
    assert record_run(tmp_path, plan_run(launched, "realm", 0)) == record
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert not {"launch", "seeds"} & read_json(path)["params"].keys()


def made_checkpoint(folder: Path) -> Path:
    (folder / "document").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"one")
    (folder / "document" / "model.safetensors").write_bytes(b"one")
    return folder


FOLDERS = [
    ("model.checkpoint", "warm_start"),
    ("pretrain.initial_reader", "pretrain"),
    ("pretrain.initial_retriever", "pretrain"),
    ("finetune.initial_reader", "finetune"),
    ("finetune.initial_retriever", "finetune"),
]


@pytest.mark.parametrize(
    ("name", "first", "file"),
    [
        *((*FOLDERS[0], file) for file in ("config.json", "model.safetensors", "document/model.safetensors")),
        *((*folder, "model.safetensors") for folder in FOLDERS[1:]),
    ],
)
def test_the_content_of_what_a_stage_begins_with_is_in_its_key(
    tmp_path: Path, name: str, first: str, file: str
) -> None:
    folder = made_checkpoint(tmp_path / "one")
    params = load(TINY, {name: str(folder)})
    before, cell = keys(params), record_run(tmp_path, plan_run(params, "realm", 0)).cell_key
    shutil.copytree(folder, tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "notes.txt").write_text("no model")
    moved = load(TINY, {name: str(tmp_path / "elsewhere")})
    assert keys(moved) == before  # wherever it lies
    (folder / file).write_bytes(b"{ }")
    after = keys(params)
    unchanged = ORDER[: ORDER.index(first)]
    assert [stage for stage in ORDER if before[stage] == after[stage]] == list(unchanged)
    assert record_run(tmp_path, plan_run(params, "realm", 0)).cell_key != cell
    if first == "pretrain":  # the baseline keeps its keys
        assert keys(params, "warm_start") == keys(BASE, "warm_start")


@pytest.mark.parametrize(("name", "first"), FOLDERS[1:])
def test_a_beginning_that_is_no_name_and_no_folder_is_refused(tmp_path: Path, name: str, first: str) -> None:
    choices = {
        "pretrain.initial_reader": "warm_start, scratch",
        "pretrain.initial_retriever": "warm_start, scratch, encoder",
    }.get(name, "previous, warm_start, scratch")
    with pytest.raises(UserError) as caught:
        keys(load(TINY, {name: "warmstart"}))
    remedy = f"choose {choices}, or give a local folder with config.json and safetensors"
    assert str(caught.value) == f"parameter '{name}': no folder 'warmstart'; {remedy}"
    for other in ("encoder", "previous"):
        if other not in choices:
            with pytest.raises(UserError, match=f"no folder '{other}'"):
                keys(load(TINY, {name: other}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "mpnet"}')
    with pytest.raises(UserError, match=rf"'{name}': .*other/config\.json: a model of type 'mpnet' is not supported"):
        keys(load(TINY, {name: str(tmp_path / "other")}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty/config\.json: no such file"):
        keys(load(TINY, {name: str(tmp_path / "empty")}))
