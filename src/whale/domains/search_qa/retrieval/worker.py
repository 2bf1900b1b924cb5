"""One thread that answers searches in batches, so that no event loop waits for an index."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from whale.domains.search_qa.retrieval.base import RetrievalError
from whale.errors import WhaleError

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class BatchWorker(Generic[Question, Answer]):
    """Answers questions on a thread of its own, all that wait at once.

    answer: list of questions -> answers in the same order; runs on that thread only. max_batch: questions at a time.
    Nothing waits for a batch to fill: what came in during the last batch is the next one. Any event loop may ask.
    """

    def __init__(self, answer: Callable[[list[Question]], list[Answer]], max_batch: int, name: str) -> None:
        self._answer = answer
        self._max_batch = max_batch
        self._queue: queue.SimpleQueue[tuple[Question, Future[Answer]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._name = name
        self._thread = threading.Thread(target=self._work, name=f"whale-{name}", daemon=True)
        self._thread.start()

    async def ask(self, question: Question) -> Answer:
        """The answer. Raises RetrievalError: closed, or whatever went wrong in the index."""
        future: Future[Answer] = Future()
        with self._lock:  # nothing may come behind the end mark
            if self._closed:
                raise RetrievalError(f"retriever {self._name} is closed")
            self._queue.put((question, future))
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Answer what waits, then stop; safe to call twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        running = True
        while running:
            batch, running = self._next_batch()
            if batch:
                self._settle(batch)

    def _next_batch(self) -> tuple[list[tuple[Question, Future[Answer]]], bool]:
        batch: list[tuple[Question, Future[Answer]]] = []
        item = self._queue.get()
        while item is not None:
            if item[1].set_running_or_notify_cancel():
                batch.append(item)
            if len(batch) == self._max_batch:
                return batch, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _settle(self, batch: list[tuple[Question, Future[Answer]]]) -> None:
        try:
            answers = self._answer([question for question, _ in batch])
        except Exception as error:  # an index may raise anything; every caller has to hear of it
            for _, future in batch:
                future.set_exception(_as_retrieval_error(error, self._name))
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)


def _as_retrieval_error(error: Exception, name: str) -> WhaleError:
    if isinstance(error, WhaleError):
        return error
    return RetrievalError(f"retriever {name} failed: {type(error).__name__}: {error}")
