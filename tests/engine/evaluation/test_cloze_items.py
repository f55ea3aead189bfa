"""Blanks with known answers, read under their candidates: against transformers' BERT and a plain search."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from realm_lab.contrib.causal.likelihoods import CausalReader, Identity, Likelihoods
from realm_lab.contrib.causal.model import CausalModel, left_prompt
from realm_lab.contrib.evaluating.corpus_update import cloze_summary
from realm_lab.engine.corpus.records import Question
from realm_lab.engine.evaluation.cloze_items import ClozeReading, best_filling, cloze_items, read_cloze_items
from realm_lab.engine.retrieval.rows import NULL
from tests.contrib.causal.causal_folder import write_causal_folder
from tests.tiny_system import Reference, TinySystem, tiny_params

CANDIDATES = 5


def questions_from(system: TinySystem, rows: list[int]) -> list[Question]:
    """The start of a passage with one or two words blanked; its document is the source."""
    made = []
    for number, row in enumerate(rows):
        text = system.passages.text.row(row)
        words = text["body"].split()
        answer = " ".join(words[2 : 3 + number % 2])
        blanked = " ".join([*words[:2], "[MASK]", *words[3 + number % 2 : 9]])
        made.append(Question(f"c{row}", blanked, (answer,), text["document"]))
    return made


def test_readings_are_those_of_a_plain_computation(system: TinySystem, reference: Reference) -> None:
    params = tiny_params(pretrain={"candidates": CANDIDATES})
    items, skipped = cloze_items(questions_from(system, [4, 17, 33]), system.tokenizer, system.special, 24)
    assert not skipped
    assert {len(item.targets) for item in items} >= {1, 2}
    retriever = system.built_retriever()
    readings = read_cloze_items(params, retriever, system.reader, system.tokenizer, system.special, items)
    documents = [reference.document(row) for row in range(len(system.passages))]
    sources = system.passages.text.column("document")
    ids = system.passages.text.column("id")
    for item, reading in zip(items, readings, strict=True):
        assert (item.tokens == system.special.mask).sum() == len(item.targets)
        assert item.tokens[item.positions].tolist() == [system.special.mask] * len(item.targets)
        query = reference.query(item.tokens)
        scores = [(query @ document).item() for document in documents]
        allowed = [row for row in range(len(scores)) if sources[row] != item.source]
        assert len(allowed) < len(scores)
        rows = [NULL, *sorted(allowed, key=lambda row: -scores[row])[: CANDIDATES - 1]]
        prior = torch.tensor(
            [(query @ reference.document(NULL)).item(), *(scores[row] for row in rows[1:])]
        ).log_softmax(0)
        empty = np.empty(0, np.int64)
        words = [
            reference.masked_words(item.tokens, system.passages.bodies[row] if row >= 0 else empty, item.positions)
            for row in rows
        ]
        places = torch.arange(len(item.targets))
        log_reader = torch.stack([word[places, torch.from_numpy(item.targets)].sum() for word in words])
        assert reading.null_log_likelihood == pytest.approx(log_reader[0].item(), abs=1e-3)
        assert reading.log_likelihood == pytest.approx((prior + log_reader).logsumexp(0).item(), abs=1e-3)
        order = sorted(range(1, len(rows)), key=lambda place: -prior[place].item())
        assert reading.passages == [ids[rows[place]] for place in order]
        bodies = [system.passages.text.row(row)["body"].split() for row in rows[1:]]
        assert reading.answer_retrieved is any(item.answers[0] in " ".join(body) for body in bodies)
        assert reading.wordpieces == len(item.targets)


def test_the_retriever_is_asked_in_the_query_form_of_pre_training(system: TinySystem) -> None:
    params = tiny_params(pretrain={"candidates": CANDIDATES, "query_form": "question"})
    [item], _ = cloze_items(questions_from(system, [4]), system.tokenizer, system.special, 24)
    retriever = system.built_retriever()
    [reading] = read_cloze_items(params, retriever, system.reader, system.tokenizer, system.special, [item])
    what, mark = (system.tokenizer.token_to_id(word) for word in ("what", "?"))
    full_stop = system.tokenizer.token_to_id(".")
    words = [word for word in item.tokens.tolist() if word != system.special.mask]
    words = words[:-1] if words[-1] == full_stop else words
    asked = retriever.embed_queries([np.array([what, *words, mark])])
    ids = [system.passages.id_of(row) for row in retriever.find(asked, len(system.passages))[0].tolist()]
    own = [
        system.passages.id_of(row)
        for row in range(len(ids))
        if system.passages.text.row(row)["document"] == item.source
    ]
    assert reading.passages == [found for found in ids if found not in own][: CANDIDATES - 1]


def test_the_right_words_are_an_exact_match(system: TinySystem) -> None:
    params = tiny_params(pretrain={"candidates": CANDIDATES})
    items, _ = cloze_items(questions_from(system, [4]), system.tokenizer, system.special, 24)
    retriever = system.built_retriever()
    args = (params, retriever, system.reader, system.tokenizer, system.special)
    first = read_cloze_items(*args, items)[0]
    told = items[0]._replace(answers=(first.prediction.upper() + "!",))
    assert read_cloze_items(*args, [told])[0].exact_match
    wrong = told._replace(answers=("zzz",))
    assert not read_cloze_items(*args, [wrong])[0].exact_match
    words = np.array([system.tokenizer.token_to_id(first.prediction)])
    assert read_cloze_items(*args, [wrong._replace(targets=words)])[0].exact_match
    unknown = system.special._replace(unk=int(words[0]))
    assert not read_cloze_items(*args[:-1], unknown, [wrong._replace(targets=words)])[0].exact_match


def test_a_causal_language_model_measures_the_answer(system: TinySystem, tmp_path: Path) -> None:
    params = tiny_params(pretrain={"candidates": CANDIDATES})
    items, _ = cloze_items(questions_from(system, [4, 17, 33]), system.tokenizer, system.special, 24)
    bodies = dict(zip(system.passages.text.column("id"), system.passages.text.column("body"), strict=True))
    model = CausalModel(write_causal_folder(tmp_path / "causal", list(bodies.values())), "float32", torch.device("cpu"))
    table = Likelihoods(tmp_path, Identity("model", "left", "float32", "code"))
    causal = CausalReader(system.passages, system.tokenizer, "left", table, lambda: model, torch.device("cpu"))
    args = (params, system.built_retriever())
    by_bert = read_cloze_items(*args, system.reader, system.tokenizer, system.special, items)
    readings = read_cloze_items(*args, causal, system.tokenizer, system.special, items)
    for item, reading, other in zip(items, readings, by_bert, strict=True):
        assert item.text[slice(*item.span)] == item.answers[0]
        assert reading.passages == other.passages  # both find the same passages
        texts = ["", *(bodies[passage] for passage in reading.passages)]  # the most likely first
        log_probs, likeliest = model.score([left_prompt(text, item.text, [item.span]) for text in texts])
        assert reading.null_log_likelihood == pytest.approx(float(log_probs[0]), abs=1e-4)
        assert log_probs.min() - 1e-4 <= reading.log_likelihood <= log_probs.max() + 1e-4  # a mean by p(z|x)
        assert reading.exact_match == bool(likeliest[1])
        assert reading.prediction == (item.answers[0] if reading.exact_match else "")


@pytest.mark.parametrize("null", ["encoded", "off"])
def test_without_a_null_document_as_many_passages_are_read(system: TinySystem, null: str) -> None:
    params = tiny_params(pretrain={"candidates": CANDIDATES, "null_document": null})
    items, _ = cloze_items(questions_from(system, [4, 17]), system.tokenizer, system.special, 24)
    readings = read_cloze_items(
        params, system.built_retriever(), system.reader, system.tokenizer, system.special, items
    )
    assert {len(reading.passages) for reading in readings} == {CANDIDATES - (null == "encoded")}


def test_long_texts_are_cut_around_the_blank(system: TinySystem) -> None:
    words = [word for row in range(4) for word in system.passages.text.row(row)["body"].split() if word.isalpha()]
    one, other = " ".join(words[:6]).capitalize() + ".", " ".join(words[6:12]).capitalize() + " [MASK]."
    answer = next(word for word in words if len(system.tokenizer.encode(word, add_special_tokens=False).ids) == 1)
    encoded = system.tokenizer.encode(other.replace("[MASK]", answer), add_special_tokens=False).ids
    encoded[-2] = system.special.mask  # before the full stop
    whole, sentence, window = (
        cloze_items([Question("q", f"{one} {other}", (answer,), None)], system.tokenizer, system.special, longest)[0][0]
        for longest in (60, len(encoded), 5)
    )
    assert (whole.shortened, sentence.shortened, window.shortened) == (False, True, True)
    assert whole.tokens.tolist()[-len(encoded) :] == encoded
    assert len(whole.tokens) > len(encoded)
    assert sentence.tokens.tolist() == encoded
    assert window.tokens.tolist() == encoded[-5:]  # there is less behind the blank, so more before it
    assert window.positions.tolist() == [3]


@pytest.mark.parametrize(
    ("text", "answer", "why"),
    [
        ("no blank", "x", "0 times"),
        ("[MASK] and [MASK]", "x", "2 times"),
        ("a [MASK]", " ", "0 wordpieces"),
        ("a [MASK]", None, "0 wordpieces"),
        ("a [MASK]", "a " * 40, "wordpieces"),
    ],
)
def test_what_cannot_be_read_is_named(system: TinySystem, text: str, answer: str | None, why: str) -> None:
    question = Question("q7", text, () if answer is None else (answer,), None)
    items, skipped = cloze_items([question], system.tokenizer, system.special, 24)
    assert not items
    assert skipped[0].startswith("q7: ")
    assert why in skipped[0]


def test_a_wide_beam_finds_the_best_of_all_fillings() -> None:
    generator = torch.Generator().manual_seed(0)
    log_prior = torch.randn(4, generator=generator).log_softmax(0)
    log_words = (3 * torch.randn(4, 3, 6, generator=generator)).log_softmax(-1)
    words, log_reader = best_filling(log_prior, log_words, beam=36)

    def marginal(filling: tuple[int, ...]) -> float:
        under = sum(log_words[:, place, word] for place, word in enumerate(filling))
        return float((log_prior + under).logsumexp(0))

    best = max(itertools.product(range(6), repeat=3), key=marginal)
    assert tuple(words) == best
    assert float((log_prior + log_reader).logsumexp(0)) == pytest.approx(marginal(best))


def test_evidence_among_the_candidates_is_counted_where_all_items_name_it(system: TinySystem) -> None:
    params = tiny_params(pretrain={"candidates": CANDIDATES})
    questions = questions_from(system, [4, 30])
    args = (params, system.built_retriever(), system.reader, system.tokenizer, system.special)

    def read(*evidence: tuple[str, ...]) -> list[ClozeReading]:
        asked = [question._replace(evidence=own) for question, own in zip(questions, evidence, strict=True)]
        return read_cloze_items(*args, cloze_items(asked, system.tokenizer, system.special, 24)[0])

    documents = dict(zip(system.passages.text.column("id"), system.passages.text.column("document"), strict=True))
    found, _ = read((), ())
    last = documents[found.passages[-1]]
    both, one = read(("gone", last), ("gone",)), read((last,), ())
    assert [reading.evidence_retrieved for reading in both] == [True, False]
    assert [reading.evidence_retrieved for reading in one] == [True, None]
    assert cloze_summary(both, both)["new"]["evidence_retrieved"] == 0.5
    assert cloze_summary(both, both)["difference"]["evidence_retrieved"]["deltas"] == [0.0, 0.0]
    assert "evidence_retrieved" not in cloze_summary(one, one)["new"]
