"""Cross-lingual questions from XQuAD (github.com/deepmind/xquad): asked in each language, answered in English.

    python examples/xquad_questions.py data/raw/xquad

writes data/raw/xquad/questions.jsonl from the files xquad.LANGUAGE.json in the same folder. A question names its
English paragraph, so that recall of that paragraph can be measured for each language.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def asked(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(document, question) of a SQuAD file, the documents named as realm_lab names them."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for number, paragraph in enumerate(article["paragraphs"]):
            yield from ((f"{article['title']}#{number}", question) for question in paragraph["qas"])


folder = Path(sys.argv[1] if len(sys.argv) == 2 else sys.exit("usage: xquad_questions.py FOLDER"))
english = {
    question["id"]: [answer["text"] for answer in question["answers"]]
    for _, question in asked(folder / "xquad.en.json")
}
with open(folder / "questions.jsonl", "w", encoding="utf-8") as file:
    for path in sorted(folder.glob("xquad.*.json")):
        language = path.name.split(".")[1]
        for document, question in asked(path):
            identity, text = question["id"], question["question"]
            record = {
                "id": f"{identity}-{language}",
                "question": text,
                "answer": english[identity],
                "document": document,
            }
            file.write(json.dumps(record | {"groups": [f"language_{language}"]}, ensure_ascii=False) + "\n")
