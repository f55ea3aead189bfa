"""Text files prepared: the output decodes back to the text, drops are counted, the key follows the content."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.engine.corpus import prepare as prepare_module
from realm_lab.engine.corpus.files_corpus import FilesCorpus, is_orqa_dev
from realm_lab.engine.corpus.prepare import corpus_inputs, prepare
from realm_lab.engine.corpus.vocabulary import save_tokenizer, special_ids, wordpiece_from_vocabulary
from realm_lab.engine.params.parameters import Params
from realm_lab.records.files import digest
from tests import tiny
from tests.engine.corpus.preparing import Prepared, made
from tests.factories.errors import refused

PEOPLE = (
    "Ada Bela Cora Dora Edna Fritz Gerda Hanna Ida Jonas Karl Lena Maria Nils Otto Paula Rosa Sven Ute Vera".split()
)
PLACES = "Oslo Paris London Vienna Prague Dublin Madrid Lisbon Warsaw Athens".split()


def squad(path: Path, articles: int, first: int = 0) -> str:
    """Write paragraphs of four sentences, two with names; each has two questions, one with an answer in the second."""
    data = []
    for number in range(first, first + articles):
        paragraphs = []
        for place in range(3):
            who, where = PEOPLE[(number + place) % 20], PLACES[(number * 3 + place) % 10]
            context = (
                f"There are some things that people know. {who} Miller lived in {where} until 19{number:02d}. "
                f"It was not so long ago. {who} Miller then met {PEOPLE[(number * 7 + place) % 20]} Smith in a house."
            )
            asked = ((f"where did {who} live ?", where), ("what is not there ?", "zebra"))
            qas = [
                {"id": f"{number}-{place}-{kind}", "question": question, "answers": [{"text": answer}]}
                for kind, (question, answer) in enumerate(asked)
            ]
            paragraphs.append({"context": context, "qas": qas})
        data.append({"title": f"Article_{number}", "paragraphs": paragraphs})
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return str(path)


def files_params(knowledge: str, **overrides: Any) -> Params:
    values: dict[str, Any] = {
        "corpus.source": "files",
        "corpus.tagger": "rule",
        "corpus.pretrain_corpus": "same",
        "corpus.passage_length": 48,
        "corpus.files.knowledge": [knowledge],
        "corpus.files.questions_train": [knowledge],
        "corpus.files.questions_test": [knowledge],
        "tokenizer.vocabulary_size": 400,
    }
    return tiny.params(values | {key.replace("__", "."): value for key, value in overrides.items()})


@pytest.fixture(scope="module")
def squad_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return squad(tmp_path_factory.mktemp("raw") / "train.json", 80)


@pytest.fixture(scope="module")
def filed(squad_path: str, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return made(files_params(squad_path), tmp_path_factory.mktemp("files") / "corpus")


def test_held_out_sentences_of_files_are_not_in_x_and_have_one_span(filed: Prepared) -> None:
    def identities(name: str) -> set[tuple[int, bytes]]:
        sentences = filed.corpus.sentences(name)
        return {(int(sentences.origins[n]), sentences.tokens[n].tobytes()) for n in range(len(sentences))}

    train, dev, test = identities("sentences"), identities("cloze_dev"), identities("cloze_test")
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert 0.005 < (len(dev) + len(test)) / (len(train) + len(dev) + len(test)) < 0.06
    for name in ("cloze_dev", "cloze_test"):
        sentences = filed.corpus.sentences(name)
        assert {len(sentences.salient_spans(number)) for number in range(len(sentences))} == {1}


def test_x_keeps_sentences_without_a_salient_span(filed: Prepared) -> None:
    sentences = filed.corpus.sentences()
    with_spans = sentences.rows_with_spans()
    assert filed.manifest.counts["sentences with a salient span"] == len(with_spans)
    without = np.setdiff1d(np.arange(len(sentences)), with_spans)
    assert {filed.tokenizer.decode(sentences.tokens[row].tolist()) for row in without.tolist()} == {
        "there are some things that people know.",
        "it was not so long ago.",
    }
    assert len(without) > 0.9 * 80 * 3 * 2  # two of four have no name; a few are held out
    assert (np.diff(sentences.origins) >= 0).all()  # in the order of the text, with or without a span


def test_gold_rows_of_files_hold_the_answer_and_are_of_the_document(filed: Prepared) -> None:
    passages = filed.corpus.passages()
    questions = filed.corpus.questions("test")
    assert len(questions) == 80 * 3 * 2
    trained, held_out = (set(filed.corpus.questions(split).texts) for split in ("train", "dev"))
    assert held_out == {text for text in questions.texts if is_orqa_dev(text)} != set()
    assert trained == set(questions.texts) - held_out  # the same file, without what is held out
    for number in range(len(questions)):
        article, place, kind = questions.ids[number].split("-")
        rows = questions.gold[number].tolist()
        assert len(rows) == (1 if kind == "0" else 0)  # 'zebra' is in no passage
        for row in rows:
            passage = passages.text.row(row)
            assert passage["document"] == f"Article_{article}#{place}"
            assert questions.answers[number][0] in passage["body"]


def test_paragraphs_of_one_title_in_two_files_are_kept(squad_path: str, tmp_path: Path) -> None:
    """The files of XQuAD's languages have the same titles, too."""
    text = Path(squad_path).read_text()
    for name in PEOPLE:
        text = text.replace(f"{name} Miller", f"{name} Müller").replace(f"did {name} live", f"lebte {name}")
    other = tmp_path / "train.json"
    other.write_text(text.replace('"id": "', '"id": "de-'))
    both = [squad_path, str(other)]
    prepared = made(
        files_params(squad_path, corpus__files__knowledge=both, corpus__files__questions_test=both), tmp_path / "corpus"
    )
    assert prepared.manifest.dropped["document: id of an earlier one, kept under another"] == 80 * 3
    assert prepared.manifest.counts["passages"] == 2 * 80 * 3
    questions = prepared.corpus.questions("test")
    names = {
        questions.ids[row]: {prepared.corpus.passages().text.row(gold)["document"] for gold in questions.gold[row]}
        for row in range(len(questions))
    }
    assert names["5-1-0"] == names["de-5-1-0"] == {"Article_5#1", "Article_5#1~2"}


def json_lines(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_questions_know_their_documents_and_are_stored_as_a_query_tower_reads_them(tmp_path: Path) -> None:
    text = "Mayor {} Miller came to Oslo in the long winter of 1901."
    documents = [{"id": one, "text": text.format(who)} for one, who in (("A", "Ada"), ("A~B", "Bela"), ("C", "Cora"))]
    known = {"question": "Where ?", "answer": "Oslo"}
    asked = [known | {"id": f"of {one}", "document": one} for one in ("A", "")]
    long = {"id": "long", "cloze": f"[MASK] {'came ' * 99}", "answer": "Oslo", "source_id": ""}
    questions = [json_lines(tmp_path / "q.jsonl", *asked), json_lines(tmp_path / "cloze.jsonl", long)]
    knowledge = json_lines(tmp_path / "k.jsonl", *documents)
    files = {TRAIN: questions, "corpus__files__questions_test": questions, "corpus__files__dev_split": "none"}
    params = files_params(knowledge, **files)
    prepared = made(params, tmp_path / "corpus")
    stored, passages = prepared.corpus.questions("train"), prepared.corpus.passages()
    assert stored.ids == ["of A", "of ", "long"]
    assert [[passages.text.row(row)["document"] for row in stored.gold[n]] for n in range(3)] == [["A"], [], []]
    assert stored.tokens[2][0] == special_ids(prepared.tokenizer).mask
    assert len(stored.tokens[2]) == params.corpus.sentence_length - 2


def test_the_key_depends_on_content_and_format_not_on_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.json"
    params = files_params(squad(path, 2))
    key = digest(corpus_inputs(params, 0))
    assert digest(corpus_inputs(params, 1)) == key
    squad(path, 3)
    assert digest(corpus_inputs(params, 0)) != key
    folder = tmp_path / "folder"
    save_tokenizer(wordpiece_from_vocabulary(["a"]), folder)
    with_folder = files_params(str(path), tokenizer__checkpoint=str(folder))
    assert "normaliser" not in corpus_inputs(with_folder, 0)
    (folder / "tokenizer_config.json").write_text('{"strip_accents": false}')
    assert corpus_inputs(with_folder, 0)["normaliser"] == {"strip_accents": False}
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with refused("BertJapaneseTokenizer", path=folder):
        corpus_inputs(with_folder, 0)
    toy = digest(corpus_inputs(tiny.params(), 0))
    assert digest(corpus_inputs(tiny.params({"corpus.files.max_articles": 3}), 0)) == toy  # not of the toy source
    assert digest(corpus_inputs(tiny.params({"corpus.source.articles": 121}), 0)) != toy
    assert "ids" not in corpus_inputs(params, 0)
    (tmp_path / "later").mkdir()
    both = [str(path), squad(tmp_path / "later" / "train.json", 2)]
    assert "ids" in corpus_inputs(files_params(str(path), corpus__files__knowledge=both), 0)
    monkeypatch.setattr(prepare_module, "FORMAT", prepare_module.FORMAT + 1)
    assert digest(corpus_inputs(tiny.params(), 0)) != toy


@pytest.mark.parametrize(
    ("overrides", "said", "parameter"),
    [
        ({"tokenizer__checkpoint": "no/such"}, "set tokenizer.checkpoint", ""),
        ({"corpus__files__knowledge": ["no/such.json"]}, "no/such.json", "corpus.files.knowledge"),
        ({"corpus__sentence_length": 8}, "0 sentences", ""),
    ],
)
def test_bad_input_leaves_nothing(
    squad_path: str, tmp_path: Path, overrides: dict[str, Any], said: str, parameter: str
) -> None:
    with refused(said, parameter=parameter):
        prepare(files_params(squad_path, **overrides), tmp_path / "out" / "corpus", 0)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("split", "content", "why"),
    [("test", "[]", "there is none"), ("train", '[{"question": "who", "answer": "the"}]', "1 × question: no answer")],
)
def test_a_file_without_a_question_is_refused_before_anything_is_cut(
    squad_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, content: str, why: str
) -> None:
    path = tmp_path / "questions.json"
    path.write_text(content)
    monkeypatch.setattr(FilesCorpus, "cuts", None)
    params = files_params(squad_path, **{f"corpus__files__questions_{split}": [squad_path, str(path)]})
    with refused(str(path), why, parameter=f"corpus.files.questions_{split}"):
        prepare(params, tmp_path / "out" / "corpus", 0)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


TRAIN = "corpus__files__questions_train"


def test_questions_of_which_none_is_left_are_refused(tmp_path: Path) -> None:
    first, second = squad(tmp_path / "first.json", 1), squad(tmp_path / "second.json", 1, first=1)
    third, held_out = squad(tmp_path / "third.json", 1, first=2), tmp_path / "held_out.jsonl"
    both = {"corpus__files__knowledge": [third, first, second], "corpus__files__questions_test": [first]}
    text = next(text for text in map(str, range(99)) if is_orqa_dev(text))
    held_out.write_text(json.dumps({"question": text, "answer": "Oslo"}) + "\n")
    causes: dict[str, dict[str, Any]] = {
        "its document is not in the corpus": {"corpus__files__max_articles": 1, TRAIN: [second]},
        "set corpus.files.dev_split: none": {TRAIN: [str(held_out)]},
    }
    for why, changes in causes.items():
        with refused(why, parameter="corpus.files.questions_train"):
            prepare(files_params(first, **both | changes), tmp_path / "out" / "corpus", 0)


def test_dev_split_is_in_the_key_only_if_it_splits_something(squad_path: str) -> None:
    def inputs_of(**files: Any) -> Any:
        return corpus_inputs(files_params(squad_path, **files), 0)["corpus"]["files"]

    assert inputs_of()["dev_split"] == "orqa"
    assert "dev_split" not in inputs_of(corpus__files__questions_dev=[squad_path])
