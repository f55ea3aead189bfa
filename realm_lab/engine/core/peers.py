"""Questions that a rank asks the others at any time; a thread of each answers.

The exchanges of process.py are made by all ranks together. Here one rank may ask while the others compute, or wait for
it in `on_first_rank`. Messages are tensors in the format of safetensors, never pickles, on connections that are made
once and need a key that the ranks share.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

import torch
from safetensors.torch import load, save
from torch import Tensor

from realm_lab.engine.core.process import exchange, of_all_ranks, on_first_rank, ranks
from realm_lab.errors import UserError
from realm_lab.records.launched import launched

Message = dict[str, Tensor]
ERROR = "error"  # name of a tensor with the bytes of a text


class Peers:
    """The other ranks. All ranks make it together; `answer` is called in threads, several at once."""

    def __init__(self, answer: Callable[[Message], Message]):
        self._answer, (self.rank, self.size) = answer, ranks()
        key = bytes.fromhex(on_first_rank(lambda: secrets.token_hex(32)))
        address, bound = _addresses()
        listener = Listener((bound, 0), backlog=self.size, authkey=key)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        places = of_all_ranks(f"{address} {listener.address[1]}")
        self._others = dict[int, Connection]()
        with exchange():
            for rank, (host, port) in enumerate(place.split() for place in places):
                if rank != self.rank:
                    self._others[rank] = Client((host, int(port)), authkey=key)

    def ask(self, questions: Mapping[int, Message]) -> list[Message]:
        """Return the answers of ranks to their questions, in the order of `questions`. UserError: one failed."""
        with exchange():
            for rank, question in questions.items():
                if rank != self.rank:
                    self._others[rank].send_bytes(save(question))
            own = {rank: self._answer(question) for rank, question in questions.items() if rank == self.rank}
            answers = [own[rank] if rank in own else load(self._others[rank].recv_bytes()) for rank in questions]
        for answer in answers:
            if ERROR in answer:
                raise UserError(bytes(answer[ERROR].tolist()).decode())
        return answers

    def _accept(self, listener: Listener) -> None:
        """Take one connection from each other rank; nobody can connect afterwards."""
        with listener:
            for _ in range(self.size - 1):
                threading.Thread(target=self._serve, args=(_accepted(listener),), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        while True:
            try:
                question = load(connection.recv_bytes())
            except (EOFError, OSError):
                return  # that rank has ended
            try:
                answer = self._answer(question)
            except UserError as error:
                answer = {ERROR: torch.tensor(list(str(error).encode()), dtype=torch.uint8)}
            connection.send_bytes(save({name: value.cpu().contiguous() for name, value in answer.items()}))


def _accepted(listener: Listener) -> Connection:
    while True:
        try:
            return listener.accept()
        except (AuthenticationError, EOFError, OSError):
            continue  # not a rank


def _addresses() -> tuple[str, str]:
    """Return the address at which the other ranks reach this one, and the one to listen at."""
    group = launched()
    with socket.create_connection((group.address, group.port)) as store:
        own: str = store.getsockname()[0]
    if not own.startswith("127."):
        return own, own
    is_local = group.address in ("127.0.0.1", "localhost")
    return group.address, own if is_local else ""  # on the first rank's machine, its name may mean the loopback
