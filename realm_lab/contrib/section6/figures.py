"""A figure of retrieved pictures, for studies whose knowledge corpus has pictures."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from realm_lab.evidence.report.examples import load_examples
from realm_lab.evidence.report.figures import canvas
from realm_lab.evidence.report.frames import StudyFrames

SENTENCES = 5
PICTURES = 5  # of a sentence, by p(z|x)


def retrieved_pictures(study: StudyFrames) -> Any:
    """Images that the baseline retrieves for held-out sentences after pre-training, the most probable on the left.
    Below each: p(z|x) and, in brackets, p(y|z,x) of the masked span. A green frame marks the image with the fact; a row
    without a frame did not retrieve it, or no image has the fact."""
    found = [e for e in load_examples(study) if e["cell"] == study.record.baseline and e["kind"] == "cloze"]
    chosen = [example for example in found if example["when"] == "end" and _pictures(example)][:SENTENCES]
    if not chosen:
        return None
    height = 2.1 * len(chosen)
    figure = canvas(height)
    figure.set_layout_engine("constrained", hspace=0.25, rect=(0, 0, 1, 1 - 0.4 / height))  # room for the sentences
    axes = figure.subplots(len(chosen), PICTURES, squeeze=False)
    for row, example in zip(axes, chosen, strict=True):
        # Not a title, which would make the first column as wide as the sentence.
        text = f"{example['text']}\n[MASK]: {example['answer']}"
        row[0].text(0.0, 1.06, text, transform=row[0].transAxes, in_layout=False, fontsize=9)
        for column, axis in enumerate(row):
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
            if column < len(shown := _pictures(example)):
                _show(axis, shown[column])
    return figure


def _pictures(example: dict[str, Any]) -> list[dict[str, Any]]:
    return [candidate for candidate in example["candidates"] if candidate["picture"]]


def _show(axis: Any, candidate: dict[str, Any]) -> None:
    data = base64.b64decode(candidate["picture"].partition(",")[2])
    axis.imshow(np.asarray(Image.open(BytesIO(data))), interpolation="nearest")
    axis.set_xlabel(f"{candidate['probability']:.2f} ({np.exp(candidate['reader']):.2f})", fontsize=8)
    if candidate["is_gold"]:
        axis.spines[:].set(visible=True, color="#2a9d4a", linewidth=3)
