"""Let a rank ask other ranks questions at any time; threads of the asked ranks answer.

The exchanges of process.py need all ranks at once. Here a rank may ask while others compute, or wait for it in
`on_first_rank`. Messages are tensors in the format of safetensors, never pickles. The connections, over IPv4 or IPv6,
are made once and need a key that the ranks share.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

import torch
from safetensors.torch import load, save
from torch import Tensor

from realm_lab.engine.core.process import (
    TIMEOUT,
    announce_failure,
    exchange,
    expect_questions,
    of_all_ranks,
    on_first_rank,
    ranks,
)
from realm_lab.errors import UserError
from realm_lab.records.launched import launched

Message = dict[str, Tensor]
ERROR = "error"  # name of the tensor with the text of an error, as bytes


class Peers:
    """Connections to the other ranks, made by all ranks together. `answer` is called in several threads at once."""

    def __init__(self, answer: Callable[[Message], Message]):
        self._answer, (self.rank, self.size) = answer, ranks()
        expect_questions()
        self._key = bytes.fromhex(on_first_rank(lambda: secrets.token_hex(32)))
        address, listener = _listener(self.size)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        places = of_all_ranks(f"{address} {listener.getsockname()[1]}")
        self._others = dict[int, Connection]()
        with exchange():
            for rank, (host, port) in enumerate(place.split() for place in places):
                if rank != self.rank:
                    connection = _connection(socket.create_connection((host, int(port))))
                    answer_challenge(connection, self._key)
                    deliver_challenge(connection, self._key)
                    self._others[rank] = connection

    def ask(self, questions: Mapping[int, Message]) -> list[Message]:
        """Send each rank its question and return the answers, in the order of `questions`. UserError: a rank failed."""
        with exchange():
            for rank, question in questions.items():
                if rank != self.rank:
                    self._others[rank].send_bytes(save(question))
        own = {rank: self._answer(question) for rank, question in questions.items() if rank == self.rank}
        with exchange():
            answers = [own[rank] if rank in own else self._received(rank) for rank in questions]
        for answer in answers:
            if ERROR in answer:
                raise UserError(bytes(answer[ERROR].tolist()).decode())
        return answers

    def _received(self, rank: int) -> Message:
        if not self._others[rank].poll(TIMEOUT.total_seconds()):
            raise EOFError(f"no answer of rank {rank}")
        return load(self._others[rank].recv_bytes())

    def _accept(self, listener: socket.socket) -> None:
        while True:  # other programs may connect too, and send nothing
            with suppress(OSError):
                connection = _connection(listener.accept()[0])
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(AuthenticationError, EOFError, OSError):  # the other side is no rank, or has ended
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            while True:
                question = load(connection.recv_bytes())
                try:
                    answer = self._answer(question)
                except UserError as error:
                    answer = {ERROR: torch.tensor(list(str(error).encode()), dtype=torch.uint8)}
                except BaseException as error:  # the connection closes; the asking rank reports this error
                    announce_failure(error)
                    raise
                connection.send_bytes(save({name: value.cpu().contiguous() for name, value in answer.items()}))


def _connection(made: socket.socket) -> Connection:
    made.setblocking(True)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices a machine that goes down and sends nothing
    return Connection(made.detach())


def _listener(size: int) -> tuple[str, socket.socket]:
    """Return the address at which the other ranks reach this one, and a socket that listens there."""
    group = launched()
    with exchange(), socket.create_connection((group.address, group.port)) as store:
        own, family = store.getsockname()[0], store.family
    address, bound = own, own
    if own.startswith("127.") or own == "::1":
        address = group.address
        if address not in ("127.0.0.1", "::1", "localhost"):
            bound = ""  # all interfaces: the first rank's machine may resolve its name to the loopback
    return address, socket.create_server((bound, 0), family=family, backlog=size)
