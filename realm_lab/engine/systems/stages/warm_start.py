"""The warm start: BERT training of the reader, then the Inverse Cloze Task for the embedder (section 3.4)."""

from __future__ import annotations

from pathlib import Path

from realm_lab.engine.corpus.vocabulary import wordpieces_by_id
from realm_lab.engine.corpus.words import WordStarts
from realm_lab.engine.models.encoder import show
from realm_lab.engine.models.hub import AnyEncoder
from realm_lab.engine.models.initial import new_embedder, new_reader, read_initial_encoder
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.systems.corpus_context import CorpusContext
from realm_lab.engine.systems.stages.ending import compile_encoders, finish
from realm_lab.engine.training.loop import train
from realm_lab.engine.training.pairs import ArticlePairs, Captions, InverseCloze, PairSampler, PassagePairs
from realm_lab.engine.training.warm_start import WarmStartTask
from realm_lab.records.run import StageRun


def warm_start(context: CorpusContext, run: StageRun) -> None:
    """BERT training of the reader, then the Inverse Cloze Task for the embedder."""
    params, size = context.params, context.vocabulary_size
    initial_seed, order_seed = context.initial_seed, context.order_seed(run.stage)
    reader = new_reader(params, size, initial_seed)
    embedder = new_embedder(params, size, initial_seed, _initial_encoder(context, reader))
    show(reader, context.patches)
    show(embedder, context.patches)
    articles = context.corpus.articles()
    pairs = ArticlePairs(articles) if articles else PassagePairs(context.corpus.sentences(), context.passages)
    word_starts = WordStarts(wordpieces_by_id(context.tokenizer))
    sampler = PairSampler(
        pairs,
        context.special,
        word_starts,
        seed=order_seed,
        max_length=params.corpus.sentence_length + params.corpus.passage_length,
    )
    reader, embedder = reader.to(context.device), embedder.to(context.device)
    compile_encoders(params, reader.encoder, embedder.query_encoder, embedder.document_encoder)
    captions = Captions(articles, size) if articles and context.patches is not None else None
    has_pictures = reader.encoder.patches is not None
    clozes = InverseCloze(context.passages, params.warm_start.ict_cut, word_starts, has_pictures=has_pictures)
    models = reader, embedder, sampler, clozes, context.special, captions
    task = WarmStartTask(params, order_seed, *models, initial_seed=initial_seed)
    train(task, run, params.launch, context.device)
    task.finish()
    finish(context, run, reader, embedder, 0.0, passages=clozes.total, passages_ict=len(clozes.rows))


def _initial_encoder(context: CorpusContext, reader: Reader) -> AnyEncoder | None:
    """Return the initial Transformer of the towers; None: from scratch. If it is the reader's,
    WarmStartTask copies the reader's weights again once the reader is trained."""
    start = context.params.warm_start.embedder.initial_encoder
    checkpoint = context.params.model.checkpoint
    if start == "checkpoint" and checkpoint is not None:
        return read_initial_encoder(Path(checkpoint), context.params, context.vocabulary_size)
    return None if start == "scratch" else reader.encoder
