"""A metric of predictions with an option."""

from typing import Literal

from realm_lab import Metric, Prediction, Section, computes


class Unit(Section):
    unit: Literal["words", "letters"] = "words"
    """The words to count."""


LENGTH = Metric("answer_length", "mean length of the answer", digits=1, better="")


@computes(LENGTH)
def answer_length(predictions: list[Prediction], options: Unit) -> float:
    """Words or letters of an answer, on average."""
    lengths = [len(one.answer.split()) if options.unit == "words" else len(one.answer) for one in predictions]
    return sum(lengths) / len(lengths)
