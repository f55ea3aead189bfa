"""The tokenizer: BERT's WordPiece with a learned, given or loaded vocabulary, or one loaded from another encoder.

Byte-level BPE (RoBERTa, ModernBERT) and Unigram (XLM-R) write the blank before a word into its first piece. Here these
tokenizers read each word by itself, as after a blank, so that a text has the pieces of its words, as with WordPiece.
A tokenizer is a `tokenizers.Tokenizer`. Corpus text is encoded with `encode_batch_plain`, which adds no special
tokens and reads a literal "[MASK]" in a text as plain characters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from realm_lab.engine.corpus.words import is_punctuation
from realm_lab.errors import UserError
from realm_lab.records.files import digest, read_object, write_json, write_text

ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in tokenizer_config.json
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
BERT = ["WordPiece", "BertNormalizer", "BertPreTokenizer"]  # the parts of BERT's tokenizer
# Field of a model in tokenizer.json -> its type, which files of tokenizers before 0.9 lack (bert-base-uncased's)
TYPES = {"max_input_chars_per_word": "WordPiece", "merges": "BPE", "unk_id": "Unigram"}
NEVER = -1.0e4  # log-probability of a special token in a Unigram model: no text gets it
BLANK_MARKS = {"ByteLevel": "Ġ", "Metaspace": "▁"}  # pre-tokeniser -> mark of a piece that follows a blank
USE_KNOWN = "name the folder of an encoder with BERT's WordPiece, a byte-level BPE or a Unigram tokenizer"
# Classes that read vocab.txt as BERT's does; other classes first cut words in another way (BertJapaneseTokenizer).
SAME_AS_BERT = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "RealmTokenizer", "PreTrainedTokenizer")
TOKENIZER_CONFIG = "tokenizer_config.json"
MAX_CHARACTERS = 1000  # characters with separate wordpieces, as in the trainer's default
LONGEST_WORD = 100  # characters: BERT makes [UNK] of a longer word; learning is quadratic in the length
# Name in tokenizer_config.json -> in BertNormalizer. If strip_accents is null, only lower-casing strips accents.
NORMALISER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
NEUTRAL = {"strip_accents": None, "tokenize_chinese_chars": True}  # values with the effect of no setting
BLANK = "[MASK]"  # in a question, whatever the tokenizer
_CHUNK = 1000  # occurrences of a word handed to the trainer in one text
_REMEMBERED_WORDS = 200_000  # of WordEncoder; some 80 MB


class SpecialIds(NamedTuple):
    """Token ids of the special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """The ids of the special tokens; a vocabulary that lacks one is a UserError."""
    names = special_tokens(tokenizer)
    ids = [tokenizer.token_to_id(token) for token in names]
    missing = [token for token, number in zip(names, ids, strict=True) if number is None]
    if missing:
        lacks = f"the vocabulary lacks {', '.join(missing)}"
        raise UserError(lacks, remedy="use the tokenizer of an encoder that was trained with masked words")
    return SpecialIds(*(number for number in ids if number is not None))


def special_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The special tokens in the order of ROLES: BERT's or RoBERTa's, whichever the vocabulary has more of."""
    known = (SPECIAL_TOKENS, ROBERTA_TOKENS)
    return max(known, key=lambda names: sum(tokenizer.token_to_id(name) is not None for name in names))


def blank_kind(tokenizer: Tokenizer) -> str | None:
    """Return the pre-tokeniser that marks blanks, one of BLANK_MARKS; None for WordPiece."""
    if isinstance(tokenizer.model, models.WordPiece):
        return None
    parts = json.loads(tokenizer.pre_tokenizer.__getstate__())["pretokenizers"]
    return str(parts[-1]["type"])


def wordpieces_by_id(tokenizer: Tokenizer) -> list[str]:
    """Return the wordpiece of each token id; a piece that continues a word starts with ##, whatever the tokenizer."""
    pieces = [tokenizer.id_to_token(number) or "" for number in range(tokenizer.get_vocab_size())]
    kind = blank_kind(tokenizer)
    if kind is None:
        return pieces
    mark, special = BLANK_MARKS[kind], special_tokens(tokenizer)
    decoder = decoders.ByteLevel() if kind == "ByteLevel" else decoders.Replace(mark, " ")

    def written(piece: str) -> str:
        starts, bare = piece.startswith(mark), decoder.decode([piece.removeprefix(mark)])
        return bare if starts or is_punctuation(bare) else f"##{bare}"

    return [piece if piece in special else written(piece) for piece in pieces]


def train_wordpiece(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn a WordPiece vocabulary of at most `size` entries (fewer if the text has no more to offer).

    Special tokens have the ids 0 to 4. The same texts give the same vocabulary in every process: the trainer would
    order characters by a random hash, so it is given the sorted characters.
    """
    blank = _build({token: number for number, token in enumerate(SPECIAL_TOKENS)}, lowercase=True)
    assert blank.normalizer is not None
    assert blank.pre_tokenizer is not None
    words: Counter[str] = Counter()
    for text in texts:
        normal = blank.normalizer.normalize_str(text)
        split = blank.pre_tokenizer.pre_tokenize_str(normal)
        words.update(word for word, _ in split if len(word) <= LONGEST_WORD)
    if not words:
        raise UserError("no text to learn a vocabulary from", "name files with text in corpus.files.knowledge")
    pieces = _character_pieces(words)
    if size < len(SPECIAL_TOKENS) + len(pieces):
        least = len(SPECIAL_TOKENS) + len(pieces)
        problem, name = (
            f"{size} is too small for the special tokens and the characters of the text",
            "tokenizer.vocabulary_size",
        )
        raise UserError(f"{name}: {problem}", f"give at least {least}", parameter=name)
    # Given as "special tokens", the characters come first and in this order. Only the vocabulary is kept:
    # the tokenizer is built again below.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[*SPECIAL_TOKENS, *pieces], limit_alphabet=MAX_CHARACTERS, show_progress=False
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_repeated(words, set(pieces)), trainer)
    vocabulary = learner.get_vocab()
    return _build({word: vocabulary[word] for word in sorted(vocabulary, key=vocabulary.__getitem__)}, lowercase=True)


def wordpiece_from_vocabulary(words: Sequence[str], lowercase: bool = True) -> Tokenizer:
    """A tokenizer over given wordpieces, in their order after the special tokens (ids 0 to 4)."""
    entries = [*SPECIAL_TOKENS, *words]
    assert len(set(entries)) == len(entries), "each wordpiece is named once"
    return _build({word: number for number, word in enumerate(entries)}, lowercase=lowercase)


def tokenizer_config(folder: Path | str) -> dict[str, Any]:
    """Read tokenizer_config.json of a Hugging Face folder; empty if it has none."""
    path = Path(folder) / TOKENIZER_CONFIG
    return read_object(path) if path.is_file() else {}


def normaliser_settings(folder: Path | str) -> dict[str, bool | None]:
    """The settings of tokenizer_config.json that decide how text is normalised, under BertNormalizer's names."""
    config = tokenizer_config(folder)
    given = {theirs: config[theirs] for theirs in NORMALISER if theirs in config}
    for name, value in given.items():
        if not isinstance(value, bool) and (name, value) != ("strip_accents", None):
            path = Path(folder) / TOKENIZER_CONFIG
            raise UserError(f"{name} is {value!r}", path=path, remedy="write true or false")
    return {NORMALISER[name]: value for name, value in given.items()}


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """The tokenizer of a Hugging Face folder: tokenizer.json, else vocab.txt.

    As in transformers, the normaliser follows tokenizer_config.json if that has a setting. Truncation and padding
    that a checkpoint's tokenizer.json may carry are switched off.
    """
    folder = Path(folder)
    config, settings = tokenizer_config(folder), normaliser_settings(folder)
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        state = read_object(path)
        model = state.get("model") or {}
        model.setdefault("type", next((kind for field, kind in TYPES.items() if field in model), None))
        kinds = [(state.get(part) or {}).get("type") for part in ("model", "normalizer", "pre_tokenizer")]
        is_bert = kinds == BERT
        if not is_bert and not _reads_words(state):
            raise UserError(f"its parts are {', '.join(map(str, kinds))}", path=path, remedy=USE_KNOWN)
        if is_bert and (words := [token["content"] for token in state.get("added_tokens", []) if not token["special"]]):
            added_words = f"words were added to its vocabulary ('{words[0]}')"
            raise UserError(added_words, path=path, remedy="use that of a BERT checkpoint")
        try:
            if is_bert:
                state["normalizer"] |= settings
                known = {*state["model"]["vocab"], *SPECIAL_TOKENS}  # other tokens may lack an embedding
                state["added_tokens"] = [one for one in state.get("added_tokens", []) if one["content"] in known]
            added = [token["id"] for token in state.get("added_tokens", [])]
            if isinstance(state["model"]["vocab"], dict):  # Unigram has a list
                state["model"]["vocab"] = _without_holes(state["model"]["vocab"], added)
            tokenizer = Tokenizer.from_str(json.dumps(state))
        except Exception as error:  # tokenizers raises plain Exceptions
            raise UserError(f"not readable ({error})", path=path, remedy="copy the file again") from None
    elif (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        kind = str(config.get("tokenizer_class") or SAME_AS_BERT[0]).removesuffix("Fast")
        if kind not in SAME_AS_BERT:
            raise UserError(f"a {kind} is not supported", path=folder, remedy=USE_KNOWN)
        try:
            words = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: U+2028 may be a wordpiece
        except UnicodeDecodeError as error:
            raise UserError(f"not UTF-8 ({error})", path=path, remedy="copy the file again") from None
        words = [word.rstrip("\r") for word in words]
        while words and not words[-1]:
            words.pop()
        tokenizer = _build(_without_holes({word: number for number, word in enumerate(words)}), **settings)
    else:
        remedy = "write tokenizer.json with transformers' AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise UserError("neither tokenizer.json nor vocab.txt", path=folder, remedy=remedy)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        special_ids(tokenizer)
    except UserError as error:
        raise UserError(error.problem, path=path, remedy=error.remedy) from None
    if blank_kind(tokenizer) is not None:
        tokenizer.post_processor = _joined(tokenizer)
    return tokenizer


def _reads_words(state: dict[str, Any]) -> bool:
    """Make a byte-level BPE or a Unigram tokenizer (tokenizer.json) read each word by itself, as after a blank. Return
    false for a tokenizer of another kind, or one that first cuts words in another way."""
    cutter = state.get("pre_tokenizer") or {}
    parts = [part for part in cutter.get("pretokenizers", [cutter]) if part.get("type") != "WhitespaceSplit"]
    if (state.get("model") or {}).get("type") not in ("BPE", "Unigram") or len(parts) != 1:
        return False
    if parts[0].get("type") not in BLANK_MARKS or "Prepend" in json.dumps(state.get("normalizer")):
        return False
    parts[0] |= {"add_prefix_space": True} if parts[0]["type"] == "ByteLevel" else {"prepend_scheme": "always"}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, *parts]}
    # As special tokens they are never recognised in a text (`encode_batch_plain`).
    state["added_tokens"] = [token | {"special": True} for token in state.get("added_tokens", [])]
    if state["model"]["type"] == "Unigram":  # else "</s>" in a text would win over its characters
        special = {token["content"] for token in state["added_tokens"]}
        state["model"]["vocab"] = [
            [word, NEVER if word in special else score] for word, score in state["model"]["vocab"]
        ]
    state["post_processor"] = None  # RoBERTa's takes a word's first character for a blank
    return True


def _joined(tokenizer: Tokenizer) -> TemplateProcessing:
    """Return the post-processor that joins two segments as BERT and `models.inputs.join` do."""
    cls, sep = special_tokens(tokenizer)[2:4]
    ids = [(name, tokenizer.token_to_id(name)) for name in (cls, sep)]
    pair = f"{cls} $A {sep} $B:1 {sep}:1"
    return TemplateProcessing(single=f"{cls} $A {sep}", pair=pair, special_tokens=ids)


def _without_holes(vocabulary: dict[str, int], others: Iterable[int] = ()) -> dict[str, int]:
    """Fill each unused id of a vocabulary with an entry that is no word, so that ids go up to its size.

    If vocab.txt has a word twice, the last line counts, as in transformers, and the id of the first line is unused.
    """
    taken = {*vocabulary.values(), *others}
    return vocabulary | {f"[no word {n}]": n for n in range(max(taken, default=0)) if n not in taken}


def save_tokenizer(tokenizer: Tokenizer, folder: Path | str, max_length: int = 512, segments: bool = True) -> None:
    """Write a folder that `AutoTokenizer.from_pretrained` reads: tokenizer.json, tokenizer_config.json and, for
    WordPiece, vocab.txt. `segments`: true if the encoder takes the segment of each wordpiece."""
    folder = Path(folder)
    names: dict[str, Any] = dict(zip(ROLES, special_tokens(tokenizer), strict=True))
    names |= {} if segments else {"model_input_names": ["input_ids", "attention_mask"]}
    if blank_kind(tokenizer) is not None:
        write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length} | names
        write_json(folder / TOKENIZER_CONFIG, config)
        return
    ids = tokenizer.get_vocab()
    words = sorted(ids, key=ids.__getitem__)
    assert [ids[word] for word in words] == list(range(len(words))), "a vocabulary has no holes"
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    write_text(folder / "vocab.txt", "\n".join(words) + "\n")
    normaliser = json.loads(tokenizer.to_str())["normalizer"]
    settings = {theirs: normaliser[ours] for theirs, ours in NORMALISER.items()}
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": max_length} | names
    config |= {name: value for name, value in settings.items() if (name, value) not in NEUTRAL.items()}
    write_json(folder / TOKENIZER_CONFIG, config)


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Return SHA-256 of everything that decides the encoding: wordpieces with ids, normaliser and pre-tokeniser."""
    state = json.loads(tokenizer.to_str())
    return digest({key: state[key] for key in ("model", "normalizer", "pre_tokenizer")})


def encode_batch_plain(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """Encode corpus texts: no special tokens added, none recognised in the text, nothing cut; offsets in characters."""
    before = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True  # the library's name for: encode them as the text they are
    try:
        return tokenizer.encode_batch(list(texts), add_special_tokens=False)
    finally:
        tokenizer.encode_special_tokens = before


def encode_inside(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[list[int]]]:
    """Return the ids that each text may have inside another text: after a blank, and, if the tokenizer marks blanks,
    directly after a bracket or quote."""
    found = [[encoding.ids] for encoding in encode_batch_plain(tokenizer, texts)]
    kind, before = blank_kind(tokenizer), tokenizer.pre_tokenizer
    if kind is None:
        return found
    bare = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = [text.split(maxsplit=1) for text in texts]
    try:
        tokenizer.pre_tokenizer = bare if kind == "ByteLevel" else pre_tokenizers.Metaspace(prepend_scheme="never")
        firsts = encode_batch_plain(tokenizer, ["".join(words[:1]) for words in cut])
    finally:
        tokenizer.pre_tokenizer = before
    rests = encode_batch_plain(tokenizer, ["".join(words[1:]) for words in cut])
    return [[*own, first.ids + rest.ids] for own, first, rest in zip(found, firsts, rests, strict=True)]


def answer_wordpieces(
    tokenizer: Tokenizer, special: SpecialIds, answers: Sequence[Sequence[str]]
) -> list[list[np.ndarray]]:
    """Return the wordpieces of each answer of each question. An answer with an unknown word is left out, since it would
    match any other unknown word."""
    pieces = (chain.from_iterable(encode_inside(tokenizer, texts)) for texts in answers)
    return [[np.array(ids, np.int64) for ids in found if special.unk not in ids] for found in pieces]


def encode_around_blanks(tokenizer: Tokenizer, parts: Sequence[str]) -> list[list[int]]:
    """Return the ids of the parts of a text around its [MASK]s. A part that follows a [MASK] directly ("[MASK].") has
    no blank before its first word."""
    forms = encode_inside(tokenizer, parts)
    return [
        own[-1 if number and part[:1].strip() else 0]
        for number, (part, own) in enumerate(zip(parts, forms, strict=True))
    ]


def encode_questions(tokenizer: Tokenizer, questions: Sequence[str], sentence_length: int) -> list[list[int]]:
    """Return questions as a query tower reads them, cut to its length; its two special tokens are added later. A
    blank, [MASK], becomes the token that pre-training masks with."""
    mask, found = special_ids(tokenizer).mask, []
    for question in questions:
        first, *others = encode_around_blanks(tokenizer, question.split(BLANK))
        ids = [*first, *chain.from_iterable([mask, *other] for other in others)]
        found.append(ids[: sentence_length - 2])
    return found


class WordEncoder:
    """Encodes as `encode_batch_plain`, several times as fast: it encodes each word between two blanks once, and keeps
    its wordpieces.

    A tokenizer reads such a word by itself, so a word's pieces do not depend on its neighbours.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._ids: dict[str, tuple[int, ...]] = {}  # each word's wordpieces; tuples, which cost no garbage collection
        self._offsets: dict[str, tuple[tuple[int, int], ...]] = {}  # characters [start, end) of each piece

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The wordpiece ids of each text."""
        words = [text.split(" ") for text in texts]
        if len(self._ids) > _REMEMBERED_WORDS:
            self._ids.clear()
            self._offsets.clear()
        new = list(set().union(*words).difference(self._ids))
        for word, encoding in zip(new, encode_batch_plain(self._tokenizer, new), strict=True):
            self._ids[word], self._offsets[word] = tuple(encoding.ids), tuple(encoding.offsets)
        return [list(chain.from_iterable(map(self._ids.__getitem__, found))) for found in words]

    def place_spans(self, text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int] | None]:
        """Return the wordpiece span [start, end) of each character span of a text in the last call of `encode`.

        A wordpiece span is None if the character span's first or last character is in no wordpiece.
        """
        words = text.split(" ")
        firsts = list(accumulate(map(len, map(self._ids.__getitem__, words)), initial=0))

        def pieces_at(position: int) -> list[int]:
            word = text.count(" ", 0, position)
            inside = position - text.rfind(" ", 0, position) - 1  # character of the word
            offsets = enumerate(self._offsets[words[word]], firsts[word])
            return [number for number, (start, end) in offsets if start <= inside < end]  # several: a character's bytes

        pairs = [(pieces_at(start), pieces_at(end - 1)) for start, end in spans]
        return [(first[0], last[-1] + 1) if first and last else None for first, last in pairs]


def _build(vocabulary: dict[str, int], **settings: bool | None) -> Tokenizer:
    """BERT's pipeline over a vocabulary. The `settings` of its normaliser are lowercase (True if it is not given),
    strip_accents and handle_chinese_chars."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    tokenizer.normalizer = normalizers.BertNormalizer(**settings)  # type: ignore[arg-type]  # None for strip_accents
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    if all(token in vocabulary for token in SPECIAL_TOKENS):
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
        )
    return tokenizer


def _character_pieces(words: Counter[str]) -> list[str]:
    """The most frequent characters as wordpieces ("a", and "##a" if it continues a word), in code point order."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    inner = {character for word in words for character in word[1:]}
    kept = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:MAX_CHARACTERS])
    return kept + [f"##{character}" for character in kept if character in inner]


def _repeated(words: Counter[str], characters: set[str]) -> Iterator[str]:
    """Each word as often as it occurred, in texts of bounded length: the corpus need not be read twice or kept.

    Words with a character that got no wordpiece are left out: they can only become [UNK].
    """
    for word in sorted(word for word in words if characters.issuperset(word)):
        for done in range(0, words[word], _CHUNK):
            yield " ".join([word] * min(_CHUNK, words[word] - done))
