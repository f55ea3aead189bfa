"""Text files prepared: the output decodes back to the text, drops are counted, the key follows the content."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.engine.corpus import prepare as prepare_module
from realm_lab.engine.corpus.cutting import MIN_SENTENCE_WORDPIECES
from realm_lab.engine.corpus.files_corpus import FilesCorpus, is_orqa_dev
from realm_lab.engine.corpus.prepare import corpus_inputs, prepare
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.corpus.vocabulary import save_tokenizer, wordpiece_from_vocabulary
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


FilesParams = Callable[..., Params]


@pytest.fixture(scope="module")
def files_params() -> FilesParams:
    def build(knowledge: str, **overrides: Any) -> Params:
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
        changes = {key.replace("__", "."): value for key, value in overrides.items()}
        return tiny.params(values | changes)

    return build


@pytest.fixture(scope="module")
def squad_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return squad(tmp_path_factory.mktemp("raw") / "train.json", 80)


@pytest.fixture(scope="module")
def filed(files_params: FilesParams, squad_path: str, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return made(files_params(squad_path), tmp_path_factory.mktemp("files") / "corpus")


def test_file_passages_cover_the_text(filed: Prepared, squad_path: str) -> None:
    passages = filed.corpus.passages()
    longest = filed.params.corpus.passage_length
    paragraphs = {
        f"{article['title']}#{number}": paragraph["context"]
        for article in json.loads(Path(squad_path).read_text())["data"]
        for number, paragraph in enumerate(article["paragraphs"])
    }
    covered: dict[str, str] = {}
    for row in range(len(passages)):
        passage = passages.text.row(row)
        assert passage["body"] in paragraphs[passage["document"]]
        assert passage["title"] == passage["article"].replace("_", " ")
        assert len(passages.bodies[row]) + len(passages.titles[row]) + 3 <= longest
        decoded = filed.tokenizer.decode(passages.bodies[row].tolist()).replace(" ", "")
        assert decoded == passage["body"].lower().replace(" ", "")
        covered[passage["document"]] = (covered.get(passage["document"], "") + " " + passage["body"]).strip()
    assert covered == paragraphs


def test_file_sentences_decode_to_a_sentence_of_their_origin(filed: Prepared) -> None:
    passages = filed.corpus.passages()
    for name in ("sentences", "cloze_dev", "cloze_test"):
        sentences = filed.corpus.sentences(name)
        assert len(sentences) > 0
        assert (len(sentences.rows_with_spans()) == len(sentences)) == (name != "sentences")
        for number in range(len(sentences)):
            tokens = sentences.tokens[number]
            body = passages.text.row(sentences.origins[number])["body"].lower().replace(" ", "")
            assert filed.tokenizer.decode(tokens.tolist()).replace(" ", "") in body
            for first, end in sentences.salient_spans(number):
                assert 0 <= first < end <= len(tokens)
                span = filed.tokenizer.decode(tokens[first:end].tolist())
                assert any(character.isdigit() for character in span) or any(
                    name.lower() in span for name in (*PEOPLE, *PLACES)
                )
        assert (np.asarray(sentences.gold) == NO_ROW).all()


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


def test_drops_of_files_are_counted_by_reason(filed: Prepared) -> None:
    total = sum(filed.manifest.counts[name] for name in ("sentences", "cloze_dev", "cloze_test"))
    assert set(filed.manifest.dropped) == {"sentence without a salient span"}
    several = (filed.corpus.passages().sentence_starts.lengths > 1).sum()
    assert 0 < several == filed.manifest.counts["passages of two sentences or more"]
    assert filed.manifest.counts["wordpieces of passages"] == filed.corpus.passages().bodies.lengths.sum()
    held_out = filed.manifest.counts["cloze_dev"] + filed.manifest.counts["cloze_test"]
    assert 0 < filed.manifest.dropped["sentence without a salient span"] < 5 * held_out  # only of held-out sentences
    assert total == 80 * 3 * 4 - sum(filed.manifest.dropped.values())
    shortest = min(filed.corpus.sentences().tokens.lengths)
    assert shortest >= MIN_SENTENCE_WORDPIECES


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


def test_paragraphs_of_one_title_in_two_files_are_all_kept_and_found(
    files_params: FilesParams, squad_path: str, tmp_path: Path
) -> None:
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


def test_a_separate_pretraining_corpus_has_no_origins(
    files_params: FilesParams, squad_path: str, tmp_path: Path
) -> None:
    other = squad(tmp_path / "news.json", 10, first=81)
    params = files_params(squad_path, corpus__pretrain_corpus="separate", corpus__files__pretrain=[other])
    prepared = made(params, tmp_path / "corpus")
    sentences = prepared.corpus.sentences()
    assert 30 < len(sentences.rows_with_spans()) <= 60
    assert (np.asarray(sentences.origins) == NO_ROW).all()
    decoded = [prepared.tokenizer.decode(sentences.tokens[number].tolist()) for number in range(len(sentences))]
    assert any("1981" in text.replace(" ", "") for text in decoded)  # of the other file: Z ends with 1979


def test_the_key_depends_on_the_content_and_the_format_and_not_on_the_seed(
    files_params: FilesParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_vocabulary_that_does_not_hold_the_characters_is_refused(files_params: FilesParams, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    letters = "".join(chr(0x4E00 + number) for number in range(150))
    path.write_text(json.dumps({"title": "T", "text": f"{letters}."}) + "\n")
    nothing: dict[str, Any] = {"corpus__files__questions_train": [], "corpus__files__questions_test": []}
    params = files_params(str(path), tokenizer__vocabulary_size=120, **nothing)
    with refused(": 120 ", parameter="tokenizer.vocabulary_size"):
        prepare(params, tmp_path / "out" / "corpus", 0)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "said", "parameter"),
    [
        ({"tokenizer__checkpoint": "no/such"}, "set tokenizer.checkpoint", ""),
        ({"corpus__files__knowledge": ["no/such.json"]}, "no/such.json", "corpus.files.knowledge"),
        ({"corpus__sentence_length": 8}, "0 sentences", ""),
        (
            {"corpus__pretrain_corpus": "separate", "corpus__files__pretrain": ["no/such.txt"]},
            "no/such.txt",
            "corpus.files.pretrain",
        ),
    ],
)
def test_bad_input_leaves_nothing(
    files_params: FilesParams, squad_path: str, tmp_path: Path, overrides: dict[str, Any], said: str, parameter: str
) -> None:
    with refused(said, parameter=parameter):
        prepare(files_params(squad_path, **overrides), tmp_path / "out" / "corpus", 0)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("split", "content", "why"),
    [
        *((split, "[]", "there is none") for split in ("train", "dev", "test")),
        ("train", '[{"question": "who", "answer": "the"}]', "1 × question: no answer"),
    ],
)
def test_a_file_without_a_question_to_ask_is_refused_before_anything_is_cut(
    files_params: FilesParams, squad_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    split: str, content: str, why: str,
) -> None:  # fmt: skip
    path = tmp_path / "questions.json"
    path.write_text(content)
    monkeypatch.setattr(FilesCorpus, "cuts", None)
    params = files_params(squad_path, **{f"corpus__files__questions_{split}": [squad_path, str(path)]})
    with refused(str(path), why, parameter=f"corpus.files.questions_{split}"):
        prepare(params, tmp_path / "out" / "corpus", 0)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_questions_of_which_none_is_left_are_refused(files_params: FilesParams, tmp_path: Path) -> None:
    first, second = squad(tmp_path / "first.json", 1), squad(tmp_path / "second.json", 1, first=1)
    both: dict[str, Any] = {"corpus__files__knowledge": [first, second], "corpus__files__questions_test": [first]}
    last: dict[str, Any] = {"corpus__files__questions_train": [second], "corpus__files__drop_pages": []}
    held_out = tmp_path / "held_out.jsonl"
    text = next(text for text in map(str, range(99)) if is_orqa_dev(text))
    held_out.write_text(json.dumps({"question": text, "answer": "Oslo"}) + "\n")
    causes = {
        "its document is not in the corpus": {"corpus__files__max_articles": 1} | last,
        "set corpus.files.dev_split: none": {"corpus__files__questions_train": [str(held_out)]},
    }
    third = squad(tmp_path / "third.json", 1, first=2)
    both["corpus__files__knowledge"].insert(0, third)
    for why, changes in causes.items():
        with refused(why, parameter="corpus.files.questions_train"):
            prepare(files_params(first, **both | changes), tmp_path / "out" / "corpus", 0)


def test_dev_split_is_in_the_key_only_if_it_splits_something(files_params: FilesParams, squad_path: str) -> None:
    def inputs_of(**files: Any) -> Any:
        return corpus_inputs(files_params(squad_path, **files), 0)["corpus"]["files"]

    assert inputs_of()["dev_split"] == "orqa"
    assert "dev_split" not in inputs_of(corpus__files__questions_dev=[squad_path])
