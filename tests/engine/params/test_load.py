"""Parameters: any fault is one line that names file, line or key, and the remedy."""

import re
import sys
from pathlib import Path
from typing import Any, get_origin

import pytest
from ruamel.yaml import YAML

from realm_lab.engine.params.load import (
    PRESET_FOLDER,
    PRESETS,
    beyond_preset,
    flatten,
    is_option,
    is_section,
    load,
    parameter_fields,
    parse_override,
    preset_values,
    resolve,
    suggest_parameter,
)
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.params_yaml import SELDOM, render_params_yaml, renewed_params_yaml
from realm_lab.errors import UserError
from realm_lab.records.parameters import OPTIONS, WHOLE, flat
from realm_lab.records.plugins import Choice
from tests.factories.errors import refused


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "params.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(path: Path, overrides: dict[str, Any] | None = None) -> str:
    """The message for the user: one line, with the file's folder left out."""
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("preset: toy\npretrain:\n  candidates: 9\n  step: 5\n", 4, "'pretrain.steps'"),
        ("preset: toyy\n", 1, "'toy'"),
        ("preset: toy\npretrain.steps: 4\n", 2, "nested"),
        ("preset: toy\nmodle:\n", 2, "'model'"),
    ],
)
def test_an_unknown_name_has_the_nearest_one_and_its_line(
    tmp_path: Path, text: str, line: int | None, word: str
) -> None:
    path = write(tmp_path, text)
    with refused(word, path=path, line=line):
        load(path)


@pytest.mark.parametrize(
    ("text", "line", "parameter", "expected"),
    [
        ("pretrain:\n  steps: many\n", 2, "pretrain.steps", "must be a whole number, got 'many'"),
        ("pretrain:\n  steps: true\n", 2, "pretrain.steps", ": must not be true or false (given: True)"),
        ("pretrain:\n  marginal: no\n", 2, "pretrain.marginal", "must be 'example' or 'token', got 'no'"),
        ("pretrain:\n  candidates: 0\n", 2, "pretrain.candidates", "must be at least 1, got 0"),
        ("pretrain:\n  mask_rate: .nan\n", 2, "pretrain.mask_rate", "must be a finite number, got nan"),
        ("seeds: [0, -1]\n", 1, "seeds", ".1 must be at least 0, got -1"),
        ("pretrain: 5\n", 1, "pretrain", "must be a section of names and values, got 5"),
        ("plugins: [5]\n", 1, "plugins", ".0 must be a string, got 5"),
        ("corpus:\n  files:\n    knowledge: a.txt\n", 3, "corpus.files.knowledge", "must be a list, got 'a.txt'"),
    ],
)
def test_a_wrong_value_names_key_and_line(tmp_path: Path, text: str, line: int, parameter: str, expected: str) -> None:
    path = write(tmp_path, text)
    with refused(path=path, line=line, parameter=parameter) as caught:
        load(path)
    assert expected in caught.value.problem


@pytest.mark.parametrize("section", ["pretrain: 5\n", "pretrain: [1]\n", "pretrain:\n  refresh: often\n"])
def test_a_section_that_is_none_is_refused_with_an_option_inside_it(tmp_path: Path, section: str) -> None:
    message = refusal(write(tmp_path, f"preset: toy\n{section}"), {"pretrain.refresh.policy.overlap": 0.5})
    assert "must be a section of names and values" in message


@pytest.mark.parametrize("written", ["false", "no", "off", "none", "never", "No", "'false'"])
def test_a_switch_takes_each_word_for_no(tmp_path: Path, written: str) -> None:
    """Each parameter with a choice off, none or never."""
    path = write(
        tmp_path,
        f"preset: toy\nmodel: {{score_scale: {written}}}\ncorpus: {{files: {{dev_split: {written}}}}}\n"
        f"pretrain: {{null_document: {written}, exclude_trivial: {written}, refresh: {{policy: {written}}}}}\n",
    )
    params = load(path)
    assert (params.model.score_scale, params.corpus.files.dev_split) == ("none", "none")
    assert (params.pretrain.null_document, params.pretrain.exclude_trivial) == ("off", "off")
    assert params.pretrain.refresh.policy == Choice("never")


def test_a_contradiction_names_what_was_given_and_what_the_preset_chose(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: toy\ncorpus:\n  tagger:\n")  # the line of the tagger is empty
    with refused(
        "also set corpus.tagger to rule", path="--set corpus.source", line=None, parameter="corpus.source"
    ) as one:
        load(path, {"corpus.source": "files"})
    assert one.value.problem.endswith("(in preset 'toy', corpus.tagger is exact)")
    with refused(path="--set corpus.tagger", parameter="corpus.tagger") as other:
        load(path, {"corpus.source": "files", "corpus.tagger": "exact"})
    assert "in preset" not in other.value.problem


FILES: dict[str, Any] = {"corpus.source": "files", "corpus.tagger": "rule", "corpus.pretrain_corpus": "same"}
FROZEN: dict[str, Any] = {"pretrain.train_query_tower": False, "pretrain.train_document_tower": False}
CAUSAL: dict[str, Any] = {"pretrain.causal_checkpoint": "m.gguf"}
SPREAD: dict[str, Any] = {"launch.spread_index": True}
# Parameters that contradict each other, laid over the toy preset, with names in the message and its remedy.
CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"corpus.tagger": "model"}, "corpus.tagger: model reads English", "use tagger: exact"),
    (FILES, "corpus.files.knowledge is empty", "name at least one file"),
    ({"corpus.files.knowledge": ["a.txt"]}, "corpus.source is toy", "set corpus.source to files"),
    (SPREAD | {"pretrain.search.backend": "faiss_flat"}, "only pretrain.search.backend: exact", "set one or the other"),
    (SPREAD | {"pretrain.changes": {5: {"search.backend": "faiss_flat"}}}, "only pretrain.search.backend", "set one"),
    ({"launch.builder": "srun 'n1"}, "launch.builder", "no closing quotation"),
    ({"launch.builder": "proces"}, "'proces' starts no builder", "write inline, process, or a command"),
    (FILES | {"corpus.files.pretrain": ["a.txt"]}, "pretrain_corpus: same ignores files.pretrain", "separate"),
    (FILES | {"corpus.pretrain_corpus": "separate"}, "pretrain_corpus: separate needs files.pretrain", "to same"),
    ({"model.hidden_size": 65}, "hidden_size 65 is not a multiple of heads 4", "change either"),
    ({"model.projection": "identity", "model.projection_size": 7}, "projection: identity needs", "set it"),
    ({"warm_start.embedder.initial_encoder": "checkpoint"}, "initial_encoder", "name a folder there"),
    ({"pretrain.candidates": 1, "pretrain.null_document": "encoded"}, "room for the null document alone", "raise it"),
    (FROZEN | {"pretrain.train_reader": False}, "nothing is trained", "or steps to 0"),
    (CAUSAL, "causal_checkpoint: a causal language model is not trained", "set train_reader to false"),
    (CAUSAL | {"pretrain.train_reader": False, "pretrain.marginal": "token"}, "reads whole answers", "set marginal"),
    ({"pretrain.reward": "containment"}, "reward: containment: no reader reads", "set train_reader to false"),
    (FROZEN | {"pretrain.null_document": "learned"}, "null_document: learned", "needs a tower that trains"),
    ({"pretrain.objective": "hard_em", "pretrain.marginal": "token"}, "objective: hard_em", "set marginal to example"),
    ({"finetune.objective": "gated"}, "objective: gated", "fine-tuning never reads"),
    ({"finetune.objective": "emdr2", "finetune.softmax": "joint"}, "objective: emdr2", "set softmax to factored"),
    ({"finetune.softmax": "selected"}, "softmax: selected leaves the query tower", "set train_query_tower to false"),
    ({"pretrain.recurring_spans": [1, 20]}, "pretrain.recurring_spans: no span recurs", "set it to same"),
    ({"pretrain.recurring_spans": [20, 1]}, "recurring_spans: at least 20 and at most 1", "swap them"),
    ({"seeds": [1, 0, 1]}, "seeds: one is listed twice", "list each once"),
]


@pytest.mark.parametrize(("change", "named", "remedy"), CONTRADICTIONS)
def test_contradictions_have_a_remedy(tmp_path: Path, change: dict[str, Any], named: str, remedy: str) -> None:
    message = refusal(write(tmp_path, "preset: toy\n"), change)
    assert named in message
    assert remedy in message.partition(named)[2]


@pytest.mark.parametrize(
    "change",
    [
        FROZEN | {"pretrain.search_query": "fresh", "pretrain.refresh.interval_steps": 500},  # the same either way
        {"pretrain.null_document": "off", "pretrain.candidates": 1, "pretrain.calibrate_null": True},
        {"pretrain.steps": 5, "pretrain.train_reader": False},  # shorter than its warm-up: a trial
    ],
)
def test_what_is_merely_without_effect_is_allowed(tmp_path: Path, change: dict[str, Any]) -> None:
    assert load(write(tmp_path, "preset: toy\n"), change)


BOMB = "preset: &a0 [x, x]\n" + "".join(f"k{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
ITSELF = "pretrain: &a\n  search: *a\n"
UNREADABLE = [
    ("preset: toy\npretrain:\n  steps: [1\nmodel: 2\n", 4, "not valid"),
    ("preset: toy\nseeds: [0]\npreset: smoke\n", 3, "not valid"),
    ("- toy\n", None, "'key: value'"),
    (BOMB, 2, "aliases"),
    (ITSELF, 2, "aliases"),
    ("seeds: [0]\n<<: {preset: toy}\n", 2, "merge keys"),
    (f"seeds: {'[' * 600}{']' * 600}\n", 1, "a value"),
    (f"pretrain:\n  steps: {'9' * 5000}\n", 2, "a value"),
    ("# one\u2028two\nseeds: [0]\n", 1, "invisible"),
    ("pretrain:\n  masking: 2001-99-99\n", 2, "a value"),
    ("pretrain:\n  train_reader: !!bool maybe\n", 2, "aliases"),
    (b"preset: \xff\n", None, "byte 8"),
]


@pytest.mark.parametrize(("text", "line", "word"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_cannot_be_read_is_one_short_line(tmp_path: Path, text: str | bytes, line: int | None, word: str) -> None:
    with refused(word, path=tmp_path / "params.yaml", line=line) as caught:
        load(write(tmp_path, text))
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_a_missing_file_says_how_to_name_one_or_is_not_needed(tmp_path: Path) -> None:
    message = refusal(tmp_path / "params.yaml")
    assert all(part in message for part in ("params.yaml: no such file", "--params FILE", "`realm-lab init FOLDER`"))
    assert load(tmp_path / "params.yaml", {"preset": "smoke"}).preset == "smoke"
    assert tmp_path.name in refusal(tmp_path)  # a folder


@pytest.mark.parametrize(
    "text", ["", "# only this\n", "preset:\n", "\ufeffpreset: toy\n", "preset: toy\npretrain:\nmodel:\n  layers:\n"]
)
def test_what_is_empty_is_left_to_the_preset(tmp_path: Path, text: str) -> None:
    assert load(write(tmp_path, text)) == resolve(preset_values("toy"))


def test_options_of_systems_are_laid_over_the_preset_option_by_option(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: smoke\nsystem_options: {embedding: {folder: x}}\n")
    preset = load(tmp_path / "none.yaml", {"preset": "smoke"}).system_options
    assert load(path).system_options == preset | {"embedding": {"folder": "x"}}
    dpr = {"dpr": preset["dpr"] | {"steps": 3}, "embedding": {"folder": "x"}}
    assert load(path, {"system_options": {"dpr": {"steps": 3}}}).system_options == preset | dpr
    assert load(path, {"system_options.dpr.steps": 3}).system_options == preset | dpr


def test_the_paper_preset_is_the_defaults_and_leaves_files_and_checkpoint_to_name(tmp_path: Path) -> None:
    named = "preset: paper\ncorpus:\n  files:\n    knowledge: [wiki.jsonl]\n"
    assert "needs model.checkpoint; name a folder there" in refusal(write(tmp_path, named))
    params = load(write(tmp_path, f"{named}model:\n  checkpoint: bert\n"))
    # Guu et al. 2020, section 4.3 and appendix: blocks of 288 wordpieces, 8 candidates with the null document,
    # 200k steps of 512, refresh every 500 steps, learning rate 3e-5.
    pretrain = params.pretrain
    assert params.corpus.passage_length == 288
    assert (pretrain.candidates, pretrain.null_document, pretrain.masking.name) == (8, "encoded", "salient_span")
    assert (pretrain.steps, pretrain.batch_size, pretrain.refresh.interval_steps) == (200_000, 512, 500)
    assert pretrain.reader.learning_rate == pretrain.retriever.learning_rate == 3e-5
    assert flatten(params) == flatten(
        Params(corpus={"files": {"knowledge": ["wiki.jsonl"]}}, model={"checkpoint": "bert"})
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_file_loads_and_holds_known_keys_and_no_empty_ones(tmp_path: Path, preset: str) -> None:
    assert {path.stem for path in PRESET_FOLDER.glob("*.yaml")} == set(PRESETS)
    raw = flatten(YAML(typ="safe").load(PRESET_FOLDER / f"{preset}.yaml"))
    assert {name for name in raw if name not in flatten(Params())} == {name for name in raw if is_option(name)}
    assert None not in raw.values()
    if preset != "paper":
        found = flatten(load(write(tmp_path, f"preset: {preset}\n")))
        assert (raw | {"preset": preset}).items() <= found.items()


def test_a_line_of_the_file_goes_before_the_preset_and_an_override_before_both(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: toy\npretrain:\n  steps: 7\n  reader: {learning_rate: 1e-4}\n")
    toy = resolve(preset_values("toy"))
    params = load(path, {"pretrain.batch_size": 3, "pretrain.reader": {"warmup_steps": 0}})
    assert params.pretrain.steps == 7
    assert params.pretrain.batch_size == 3
    assert params.pretrain.reader.learning_rate == 1e-4  # a number in YAML 1.2; readers of YAML 1.1 see a word
    assert params.pretrain.reader.warmup_steps == 0
    assert params.pretrain.reader.recipe == toy.pretrain.reader.recipe == "short"  # a section is merged, not replaced
    assert load(path, {"pretrain.steps": 8}).pretrain.steps == 8
    smoke = load(path, {"preset": "smoke"})
    assert (smoke.preset, smoke.model.hidden_size, smoke.pretrain.steps) == ("smoke", 32, 7)


@pytest.mark.parametrize(
    ("override", "flag", "parameter"),
    [
        ({"pretrain.step": 1}, "--set pretrain.step", "pretrain.step"),
        ({"pretrain.candidates": 0}, "--set pretrain.candidates", "pretrain.candidates"),
        ({"preset": "tou"}, "--preset", ""),
    ],
)
def test_an_override_is_not_blamed_on_the_file(
    tmp_path: Path, override: dict[str, Any], flag: str, parameter: str
) -> None:
    with refused(path=flag, line=None, parameter=parameter):
        load(write(tmp_path, "preset: toy\npretrain:\n  steps: 7\n"), override)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("pretrain.steps=100", "pretrain.steps", 100),
        ("pretrain.reader.learning_rate=1e-4", "pretrain.reader.learning_rate", 1e-4),
        ("seeds=[3, 4]", "seeds", [3, 4]),
        ("model.checkpoint=", "model.checkpoint", None),
    ],
)
def test_an_override_is_read_as_yaml(text: str, key: str, value: object) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["pretrain.steps", " =3", "a=[1", "a=*x", f"a={'9' * 5000}"])
def test_an_override_that_is_none_is_refused(text: str) -> None:
    with refused() as caught:
        parse_override(text)
    assert str(caught.value.path).startswith("--set")
    assert len(str(caught.value)) < 400


def test_the_rendered_file_names_what_is_often_changed_and_changes_nothing(tmp_path: Path) -> None:
    text = render_params_yaml({"preset": "smoke"})
    raw = flatten(YAML(typ="safe").load(text))
    every = [name for name in parameter_fields() if not is_section(name)]
    assert set(every) >= SELDOM
    assert list(raw) == [name for name in every if name not in SELDOM]
    assert {key: value for key, value in raw.items() if value is not None} == {"preset": "smoke"}
    assert load(write(tmp_path, text)) == load(write(tmp_path, "preset: smoke\n"))


def test_writing_the_file_again_keeps_what_was_filled_in(tmp_path: Path) -> None:
    text = render_params_yaml({"preset": "smoke"})
    text = text.replace("  steps:  #", "  steps: 7  #").replace("seeds:  #", "seeds: [3, 4]  #")
    text = text.replace("  masking:  #", '  masking: "a: b"  #')
    stale = re.sub(r"  #.*", "  # another comment", text)
    assert renewed_params_yaml(stale) == renewed_params_yaml(text) == text
    params = load(write(tmp_path, renewed_params_yaml(stale)))
    assert (params.preset, params.seeds, params.pretrain.masking.name) == ("smoke", [3, 4], "a: b")
    assert {params.warm_start.reader.steps, params.pretrain.steps, params.finetune.steps} == {7}
    assert renewed_params_yaml("") == render_params_yaml({"preset": "toy"})


def test_a_part_is_written_as_a_name_or_with_its_options(tmp_path: Path) -> None:
    path = write(tmp_path, "preset: smoke\npretrain:\n  masking: {name: a, share: 1.0e-1, labels: [b, c]}\n")
    assert load(path).pretrain.masking == Choice("a", {"share": 0.1, "labels": ["b", "c"]})
    key, value = parse_override("pretrain.masking={name: a, share: 0.3}")
    chosen = load(path, {key: value})
    assert chosen.pretrain.masking == Choice("a", {"share": 0.3})  # replaced as a whole
    assert (flatten(chosen)["pretrain.masking"], flatten(chosen)["pretrain.masking.share"]) == ("a", 0.3)
    more = load(path, {"pretrain.masking": {"share": 0.3}, "pretrain.masking.labels": ["d"]}).pretrain.masking
    assert more == Choice("a", {"share": 0.3, "labels": ["d"]})  # options without a name keep the part
    assert flatten(load(path, {key: {"name": "a"}}))["pretrain.masking"] == "a"
    assert Params(**chosen.model_dump(mode="json")) == chosen
    renewed = tmp_path / "renewed.yaml"
    renewed.write_text(renewed_params_yaml(path.read_text()))
    assert load(renewed) == load(path)
    path = write(tmp_path, "preset: smoke\nsystem_options: {dpr: {steps: 3}, 'my.code:Mine': {size: 2}}\n")
    renewed.write_text(renewed_params_yaml(path.read_text()))
    assert load(renewed) == load(path)
    assert load(path).system_options["my.code:Mine"] == {"size": 2}
    path = write(tmp_path, "preset: smoke\npretrain:\n  masking: {name: a, share: .nan}\n")
    with refused("share should be", path=path, line=3, parameter="pretrain.masking"):
        load(path)


@pytest.mark.parametrize(
    ("unknown", "remedy"),
    [
        ("maskin", "did you mean 'pretrain.masking'?"),  # without its section
        ("pretrain.retreiver.learning_rate", "did you mean 'pretrain.retriever.learning_rate'?"),
        ("steps", "choose from: warm_start.reader.steps, warm_start.embedder.steps, pretrain.steps, finetune.steps"),
        ("tokenizer.foo", "choose from: tokenizer.checkpoint, tokenizer.vocabulary_size"),  # of its section
    ],
)
def test_an_unknown_parameter_gets_a_near_one_or_those_of_its_section(unknown: str, remedy: str) -> None:
    assert suggest_parameter(unknown) == remedy


def test_a_preset_of_the_project_is_chosen_by_name_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "presets" / "narrow.yaml"
    own.parent.mkdir()
    own.write_text("preset: smoke\nmodel: {hidden_size: 8, heads: 1}\nsystem_options: {dpr: {steps: 3}}\n")
    usual = load(tmp_path / "none.yaml", {"preset": "smoke"})
    for name in ("narrow", "presets/narrow.yaml"):
        found = load(write(tmp_path, f"preset: {name}\nmodel: {{heads: 2}}\n"))
        assert (found.preset, found.model.hidden_size, found.model.heads) == (name, 8, 2)
        assert found.warm_start == usual.warm_start
        assert found.system_options["dpr"] == usual.system_options["dpr"] | {"steps": 3}
    for text, line, word in (("preset: narrow\n", 1, "'narrow'"), ("modle: {heads: 1}\n", 1, "'model'")):
        own.write_text(text)
        with refused(word, path=Path("presets/narrow.yaml"), line=line):
            load(write(tmp_path, "preset: narrow\n"))
    with refused("'narow'", "'narrow'"):
        load(write(tmp_path, "preset: narow\n"))


def test_a_preset_may_leave_something_out_for_params_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "presets" / "narrow.yaml"
    own.parent.mkdir()
    own.write_text(
        "preset: paper\nmodel: {hidden_size: 8, heads: 1}\nwarm_start: {embedder: {initial_encoder: scratch}}\n"
    )
    corpus = "corpus: {files: {knowledge: [texts.jsonl]}}\n"
    found = beyond_preset(load(write(tmp_path, f"preset: narrow\n{corpus}")))
    assert found == {"corpus.files.knowledge": ["texts.jsonl"]}


def test_plug_ins_are_imported_before_anything_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lab_plugin.py").write_text("IMPORTED = True\n")
    path = write(tmp_path, "preset: smoke\nplugins: [lab_plugin]\n")
    assert load(path).plugins == ["lab_plugin"]
    assert sys.modules.pop("lab_plugin").IMPORTED
    (tmp_path / "lab_plugin.py").write_text("1 / 0\n")
    with refused("'lab_plugin'", "ZeroDivisionError", path=path, line=2):
        load(path)
    with refused("'gone_lab'", line=2, parameter="plugins"):
        load(write(tmp_path, "preset: smoke\nplugins: [gone_lab]\n"))


def test_records_have_the_dotted_names_of_parameters() -> None:
    params = resolve(preset_values("toy") | {"pretrain.changes": {2: {"mask_rate": 0.3}}})
    assert flat(params.model_dump(mode="json")) == flatten(params)
    mappings = {name for name, field in parameter_fields().items() if get_origin(field.annotation) is dict}
    assert mappings == {*WHOLE, OPTIONS}
