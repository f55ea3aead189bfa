"""A corpus source with options."""

from collections.abc import Iterator
from typing import Any

from realm_lab import Document, Question, Section, TextSource, register_source


class Towns(Section):
    towns: int = 40
    """Documents, one for each town."""
    mayors: list[str] = ["Ada Berg", "Tom Holm"]
    """Their names, which are the answers."""


@register_source("towns")
class TownSource(TextSource):
    """Towns and their mayors."""

    uses_seed = True

    def __init__(self, request: Any, options: Towns):
        super().__init__(request)
        self.options = options

    def mayor(self, town: int) -> str:
        """Name the mayor of a town."""
        return str(self.options.mayors[(town + self.request.seed) % len(self.options.mayors)])

    def documents(self, version: int = 0) -> Iterator[Document]:
        for town in range(self.options.towns):
            text = f"Town{town} lies by the sea. Its mayor is {self.mayor(town)}, who came there in {1900 + town}."
            yield Document(f"town{town}", f"Town{town}", text, f"Town{town}")

    def questions(self, split: str) -> Iterator[Question]:
        for town in range({"train": 0, "dev": 1, "test": 2}[split], self.options.towns, 3):
            yield Question(f"q{town}", f"who is the mayor of town{town}?", (self.mayor(town),), f"town{town}")
