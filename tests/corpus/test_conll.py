"""CoNLL files: layouts, encodings told apart, faults repaired and counted or refused with file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from realm_lab.corpus import conll
from realm_lab.corpus.conll import ConllFile, one_label_set, read_conll, split_documents
from realm_lab.errors import UserError

DATA = Path(os.environ.get("REALM_LAB_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def write(folder: Path, text: str | bytes, name: str = "a.conll") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def entities(file: ConllFile) -> list[list[str]]:
    return [
        [f"{' '.join(sentence.tokens[start:end])}/{label}" for start, end, label in sentence.entities]
        for sentence in file.sentences
    ]


# The same two sentences in every layout.
LAYOUTS = {
    "blank": "New I-LOC\nYork I-LOC\nis O\n\nAnn I-PER\n",
    "several blanks": "New   I-LOC\nYork  I-LOC\nis    O\n\nAnn   I-PER\n",
    "tab": "New\tB-LOC\nYork\tI-LOC\nis\tO\n\nAnn\tB-PER\n",
    "CoNLL-2003": "-DOCSTART- -X- -X- O\n\nNew NNP I-NP I-LOC\nYork NNP I-NP I-LOC\nis VBZ I-VP O\n\nAnn NNP O I-PER\n",
    "Universal NER": (
        "# newdoc id = a\n# sent_id = a-1\n# text = New York is\n"
        "1\tNew\tB-LOC\t-\tx\n2\tYork\tI-LOC\t-\tx\n3\tis\tO\t-\t-\n"
        "\n# sent_id = a-2\n# text = Ann\n1\tAnn\tB-PER\t-\tx\n"
    ),
    "CR LF, BOM, blanks in blank lines, no last line end": (
        "\ufeffNew I-LOC\r\nYork I-LOC\r\nis O\r\n \r\n\r\nAnn I-PER"
    ),
    "-DOCSTART- before the first and after the last": (
        "-DOCSTART- O\n\nNew I-LOC\nYork I-LOC\nis O\n\nAnn I-PER\n\n-DOCSTART- O\n"
    ),
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(tmp_path: Path, text: str) -> None:
    file = read_conll(write(tmp_path, text))
    assert entities(file) == [["New York/LOC"], ["Ann/PER"]]
    assert [sentence.document for sentence in file.sentences] == [0, 0]
    assert file.tokens == 4
    assert not file.repaired


# tags of one row -> encoding, entities as token ranges, what is repaired
ENCODINGS = {
    "PER PER O LOC": ("bare", "0-2 3-4", {}),
    "I-PER I-PER O I-LOC": ("IO", "0-2 3-4", {}),
    "I-PER B-PER I-PER O I-LOC": ("IOB1", "0-1 1-3 4-5", {}),
    "B-PER B-PER I-PER O B-LOC": ("IOB2", "0-1 1-3 4-5", {}),
    "B-PER I-LOC O": ("IOB2", "0-1 1-2", {conll.I_WITHOUT_B: 1}),
    "B-PER I-PER O I-PER O B-LOC": ("IOB2", "0-2 3-4 5-6", {conll.I_WITHOUT_B: 1}),
    "I-PER O I-LOC O I-LOC B-LOC O B-PER": ("IOB1", "0-1 2-3 4-5 5-6 7-8", {conll.B_INSIDE_IOB1: 1}),
    "B-PER E-PER O S-LOC": ("BIOES", "0-2 3-4", {}),
    "B-PER I-PER E-PER S-PER": ("BIOES", "0-3 3-4", {}),
    "B-PER L-PER O U-LOC": ("BILOU", "0-2 3-4", {}),
    "B-PER O S-LOC": ("BIOES", "0-1 2-3", {conll.BROKEN_BOUNDS: 1}),
    "O E-PER S-LOC": ("BIOES", "1-2 2-3", {conll.BROKEN_BOUNDS: 1}),
    "O O": ("IO", "", {}),
}


@pytest.mark.parametrize("tags", ENCODINGS)
def test_encodings_are_told_apart(tmp_path: Path, tags: str) -> None:
    file = read_conll(write(tmp_path, "".join(f"w\t{tag}\n" for tag in tags.split())))
    found = " ".join(f"{entity.start}-{entity.end}" for entity in file.sentences[0].entities)
    assert (file.encoding, found, dict(file.repaired)) == ENCODINGS[tags]


# text -> the line that is named, and what is said of it
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "a.conll: the file is empty"),
    "only comments": ("# a\n# b\n", "a.conll: no line with a token and a tag"),
    "one column": ("Paris\n", "a.conll, line 1: one column"),
    "a column is missing": ("a O\nb O\nParis\n", "line 3: the number of columns is 1, of the lines before 2"),
    "a column too many": ("a O\nb O O\n", "line 2: the number of columns is 3"),
    "a comment that is none": ("a O\n#b\n", "line 2: the number of columns is 1"),
    "no tag": ("a\tO\n\nb\t\n", "line 3: no tag after 'b'"),
    "no token": ("a\tO\n\tB-PER\n", "line 2: no token before the tag 'B-PER'"),
    "unknown prefix": ("a O\nb X-PER\n", "line 2: tag 'X-PER': its prefix is none of B, I, E, S, L, U"),
    "with and without prefix": ("a B-PER\nb PER\n", "line 2: tag 'PER', but line 2 has 'PER'"),
    "without and with prefix": ("a PER\nb O\nc B-PER\n", "line 3: tag 'B-PER', but line 1 has 'PER'"),
    "no label": ("a B-\nb B-PER\n", "line 2: tag 'B-PER', but line 1 has 'B-'"),
    "BIOES and BILOU": ("a S-PER\nb U-PER\n", "BIOES .* and of BILOU"),
    "UTF-16": ("a O\n".encode("utf-16"), "line 1: looks like UTF-16"),
    "not UTF-8": (b"a O\nb\xff O\n", "line 2: not UTF-8"),
    "a NUL": ("a O\nb\0 O\n", "line [12]: .*(NUL|UTF-16)"),
    "CR alone": ("a O\rb O\r", "line 1: lines end in CR alone"),
    "a label of another world": ("a B-GENE\n", "line 1: label 'GENE' is none of those that stand for"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_faults_are_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    text, said = REFUSED[name]
    with pytest.raises(UserError, match=said) as refused:
        read_conll(write(tmp_path, text), "conll")
    assert str(refused.value).startswith(str(tmp_path / "a.conll"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.conll: no such file"):
        read_conll(tmp_path / "none.conll")


def test_tokens_are_kept_as_they_are(tmp_path: Path) -> None:
    text = "#\tO\n#tag\tO\n# a b\nNew\u00a0York\tB-LOC\nN Y\tB-LOC\n\u2028\tO\n[MASK]\tO\ne\u0301\tB-PER\n\u200bx\tO\n"
    [sentence] = read_conll(write(tmp_path, text)).sentences
    assert sentence.tokens == ("#", "#tag", "New\u00a0York", "N Y", "\u2028", "[MASK]", "e\u0301", "\u200bx")
    assert len(sentence.entities) == 3


def test_a_hash_is_a_token_where_it_has_a_tag(tmp_path: Path) -> None:
    [sentence] = read_conll(write(tmp_path, "No O\n# O\n# a remark\n1 O\n")).sentences
    assert sentence.tokens == ("No", "#", "1")


def test_labels_of_other_sets_become_those_of_conll(tmp_path: Path) -> None:
    text = "a B-person\nb B-geo-loc\nc B-creative-work\nd B-corporation\ne B-DATE\nf B-misc\n"
    file = read_conll(write(tmp_path, text), "conll")
    assert [entity.label for entity in file.sentences[0].entities] == ["PER", "LOC", "MISC", "ORG", "MISC"]
    assert file.repaired == {conll.NOT_OF_CONLL: 1}
    assert read_conll(write(tmp_path, text)).labels == (
        "DATE",
        "corporation",
        "creative-work",
        "geo-loc",
        "misc",
        "person",
    )


def test_files_must_share_their_labels(tmp_path: Path) -> None:
    texts = ("a B-PER\nb B-LOC\n", "a B-PER\n", "a B-person\n", "a B-per\n", "a O\n")
    upper, fewer, other, spelling, none = (read_conll(write(tmp_path, t, f"{n}.conll")) for n, t in enumerate(texts))
    assert one_label_set([upper, fewer, none]) == ("LOC", "PER")
    with pytest.raises(UserError, match=r"2.conll has the labels person.*set tagger.labels: conll"):
        one_label_set([upper, other])
    with pytest.raises(UserError, match=r"3.conll: label 'per', but .*0.conll has 'PER'"):
        one_label_set([upper, spelling])


def test_the_last_documents_are_split_off(tmp_path: Path) -> None:
    text = "".join(f"-DOCSTART- O\n\nw{n} I-PER\n\nx O\n\n" for n in range(5))
    file = read_conll(write(tmp_path, text))
    early, late = split_documents(file, 0.4)
    assert [s.tokens[0] for s in late.sentences] == ["w3", "x", "w4", "x"]
    assert early.sentences + late.sentences == file.sentences
    assert split_documents(file, 0.0)[1].sentences == ()
    whole = read_conll(write(tmp_path, "".join(f"w{n} O\n\n" for n in range(10))))
    assert [s.tokens[0] for s in split_documents(whole, 0.2)[1].sentences] == ["w8", "w9"]  # no documents marked


# name, sentences, tokens, encoding, entities. Of WikiGold 39 tokens are "#".
FILES = [
    ("wikigold.train.conll.txt", 1257, 29_558, "IO", 2597),
    ("wnut17train.conll", 3394, 62_730, "IOB2", 1975),
    ("wnut17.emerging.dev.conll", 1009, 15_733, "IOB2", 836),
    ("uner_ewt-ud-dev.iob2", 2001, 25_149, "IOB2", 966),
]


@pytest.mark.parametrize(("name", "sentences", "tokens", "encoding", "found"), FILES)
def test_real_files(name: str, sentences: int, tokens: int, encoding: str, found: int) -> None:
    path = DATA / "ner" / name
    if not path.exists():
        pytest.skip(f"{path}: no such file; set REALM_LAB_DATA to the folder of the data")
    file = read_conll(path, "conll")
    counted = sum(len(sentence.entities) for sentence in file.sentences)
    assert (len(file.sentences), file.tokens, file.encoding, counted) == (sentences, tokens, encoding, found)
    assert not file.repaired
