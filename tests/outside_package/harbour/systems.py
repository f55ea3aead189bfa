"""A retriever system with an option."""

from typing import Any

import numpy as np

from realm_lab import EVALUATE, FINETUNE_READER, WARM_START, Retrieved, Section, SpanReader, register_system


class Salt(Section):
    salt: int = 0
    """Changes which passages are drawn."""


@register_system
class RandomReader(SpanReader):
    """Reads passages that are drawn at random, alike for the same question."""

    name = "random_reader"
    title = "random passages with a reader"
    options = Salt
    stages = (WARM_START, FINETUNE_READER, EVALUATE)

    def retrieve(self, questions: Any, k: int) -> Retrieved:
        found = []
        for question in questions:
            generator = np.random.default_rng([self.own.salt, *question.encode()])
            rows = generator.choice(len(self.passages), size=min(k, len(self.passages)), replace=False)
            found.append((rows, np.zeros(len(rows), np.float32)))
        return Retrieved.padded(found, k)
