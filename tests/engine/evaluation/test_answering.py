"""Answers against the enumeration of every span of every passage."""

import numpy as np
import pytest
import torch

from realm_lab.engine.evaluation.answering import best_text, read_answers
from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.models.embedder import Embedder
from tests.tiny_system import Reference, TinySystem

NUMBERS = (0, 11, 40, 77, 90)


def ask(system: TinySystem, queries: list[np.ndarray], **finetune: int | str) -> list[Answer]:
    params = system.params.model_copy(update={"finetune": system.params.finetune.model_copy(update=finetune)})
    retriever = system.built_retriever()
    retriever.embedder.eval()
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries)
        rows_BK = retriever.find(query_BD, params.finetune.candidates)
        score_BK = retriever.indexed_score(query_BD, rows_BK)
    models = (system.reader, system.tokenizer, system.special)
    return read_answers(params, system.passages, *models, queries, rows_BK, score_BK)


def test_the_answer_is_the_likeliest_span_of_the_likeliest_passage(system: TinySystem, reference: Reference) -> None:
    questions = system.corpus.questions("dev")
    queries = [questions.tokens[number] for number in NUMBERS]
    documents = [reference.document(row) for row in range(len(system.passages))]
    found = ask(system, queries, candidates=4, max_span_wordpieces=2)
    assert len(found) == len(queries)
    bests = set()
    for query, answer in zip(queries, found, strict=True):
        scores = np.array([(reference.query(query) @ document).item() for document in documents])
        rows = np.argsort(-scores, kind="stable")[:4]
        assert [candidate.row for candidate in answer.candidates] == rows.tolist()
        log_prior = scores[rows] - np.logaddexp.reduce(scores[rows])
        joint = []
        for place, (row, candidate) in enumerate(zip(rows.tolist(), answer.candidates, strict=True)):
            body = np.asarray(system.passages.bodies[row])
            spans = reference.spans(query, body, 2)
            (start, end), log_span = max(spans.items(), key=lambda item: item[1])
            assert candidate.log_prior == pytest.approx(log_prior[place], abs=1e-4)
            assert candidate.log_span == pytest.approx(log_span, abs=1e-4)
            assert candidate.wordpieces == tuple(body[start : end + 1].tolist())
            text = system.passages.text.row(row)["body"]
            offsets = system.tokenizer.encode(text, add_special_tokens=False).offsets
            assert candidate.span == (offsets[start][0], offsets[end][1])
            assert candidate.text == text[slice(*candidate.span)]
            joint.append(log_prior[place] + log_span)
        assert answer.best == int(np.argmax(joint))
        assert answer.text == answer.candidates[answer.best].text
        bests.add(answer.best)
    assert len(bests) > 1  # the reader's scores of spans change which passage wins


def test_a_joint_softmax_answers_with_its_largest_logit(system: TinySystem, reference: Reference) -> None:
    questions = system.corpus.questions("dev")
    queries = [questions.tokens[number] for number in range(30)]
    documents = [reference.document(row) for row in range(len(system.passages))]
    joint, factored = (ask(system, queries, candidates=4, softmax=softmax) for softmax in ("joint", "factored"))
    for query, answer in zip(queries[:6], joint, strict=False):
        scores = {row: (reference.query(query) @ document).item() for row, document in enumerate(documents)}
        logits = {}  # of every span of every passage, f(x, z) added
        for candidate in answer.candidates:
            body = np.asarray(system.passages.bodies[candidate.row])
            for span, logit in reference.span_logits(query, body, 3).items():
                logits[candidate.row, span] = logit + scores[candidate.row]
        total = np.logaddexp.reduce(list(logits.values()))
        row, (start, end) = max(logits, key=lambda place: logits[place])
        best = answer.candidates[answer.best]
        assert (best.row, best.wordpieces) == (row, tuple(system.passages.bodies[row][start : end + 1].tolist()))
        assert best.log_prior + best.log_span == pytest.approx(logits[row, (start, end)] - total, abs=1e-4)
        for candidate in answer.candidates:
            own = [value for (row, _), value in logits.items() if row == candidate.row]
            assert candidate.log_prior == pytest.approx(np.logaddexp.reduce(own) - total, abs=1e-4)
            assert candidate.log_span == pytest.approx(max(own) - np.logaddexp.reduce(own), abs=1e-4)
    assert [answer.text for answer in joint] != [answer.text for answer in factored]


@pytest.mark.parametrize("softmax", ["factored", "joint"])
def test_a_text_is_summed_over_passages_and_positions(system: TinySystem, reference: Reference, softmax: str) -> None:
    """By brute force: p(y|x) of every text of at most two wordpieces that a passage holds."""
    questions = system.corpus.questions("dev")
    queries = [questions.tokens[number] for number in range(24)]
    given: dict[str, int | str] = {"candidates": 12, "max_span_wordpieces": 2, "softmax": softmax}
    by_text, by_span = (ask(system, queries, **given, answer_by=by) for by in ("string", "span"))
    differ = 0
    for query, answer, other in zip(queries, by_text, by_span, strict=True):
        sums: dict[tuple[int, ...], list[float]] = {}
        for candidate in answer.candidates:
            body = np.asarray(system.passages.bodies[candidate.row])
            for (start, end), log_span in reference.spans(query, body, 2).items():
                sums.setdefault(tuple(body[start : end + 1].tolist()), []).append(candidate.log_prior + log_span)
        text = max(sums, key=lambda pieces: np.logaddexp.reduce(sums[pieces]))
        source = answer.candidates[answer.best]
        assert (source.wordpieces, source.text) == (text, answer.text)
        assert source.log_prior + source.log_span == pytest.approx(max(sums[text]), abs=1e-4)
        assert system.passages.text.row(source.row)["body"][slice(*source.span)] == answer.text
        assert [one.row for one in answer.candidates] == [one.row for one in other.candidates]
        for place, (one, same) in enumerate(zip(answer.candidates, other.candidates, strict=True)):
            assert place == answer.best or one == same
        differ += answer.text != other.text
    assert differ > 2  # some text beats the best span by its other spans


def test_three_weak_places_outweigh_a_strong_one() -> None:
    bodies = [np.array([7, 8, 7]), np.array([9, 7])]
    shares = np.array([[0.2, 0.1], [0.3, 0.1], [0.3, 0.0]]), np.array([[0.7, 0.1], [0.2, 0.0]])
    with np.errstate(divide="ignore"):
        log_spans = [np.log(each) for each in shares]
    # 7: (.2 + .3) / 2 + .2 / 2 = .35, and 9: .7 / 2 = .35 less a little
    assert best_text(bodies, [np.log(0.501), np.log(0.499)], log_spans) == (0, 2, 3)


def test_dropout_is_off(system: TinySystem) -> None:
    shape = system.embedder.query_encoder.shape._replace(dropout=0.5)
    embedder = Embedder(shape, system.embedder.head)
    embedder.load_state_dict(system.embedder.state_dict())
    reader = type(system.reader)(shape, system.params.finetune.span_hidden_size)
    reader.load_state_dict(system.reader.state_dict())
    dropping = system._replace(embedder=embedder.train(), reader=reader.train())
    queries = [system.corpus.questions("dev").tokens[number] for number in NUMBERS]
    for one, other in zip(ask(dropping, queries), ask(system, queries), strict=True):
        assert one.text == other.text
        assert [c.row for c in one.candidates] == [c.row for c in other.candidates]


def test_a_corpus_smaller_than_the_candidates(system: TinySystem) -> None:
    queries = [system.corpus.questions("dev").tokens[0]]
    (answer,) = ask(system, queries, candidates=400)
    assert sorted(candidate.row for candidate in answer.candidates) == list(range(len(system.passages)))
    assert np.logaddexp.reduce([candidate.log_prior for candidate in answer.candidates]) == pytest.approx(0.0, abs=1e-4)


def test_a_cut_passage_gives_only_what_was_read(system: TinySystem) -> None:
    # A long question leaves room for 6 wordpieces of each passage.
    question = np.asarray(system.passages.bodies[0]).repeat(4)[: 32 + 26 - 3 - 6]
    for answer in ask(system, [question]):
        for candidate in answer.candidates:
            body = system.passages.text.row(candidate.row)["body"]
            read = system.tokenizer.encode(body, add_special_tokens=False)
            assert candidate.wordpieces
            assert candidate.span[1] <= read.offsets[5][1]
