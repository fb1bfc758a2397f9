"""Several workers of one engine that answer independent jobs side by side.

Every job runs on one worker from start to end, so that a comparison never mixes two of them. A
worker whose host is lost costs the job that it had, which another worker does again.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from qdqtune.engines._process import FailureKind, WorkerFailure
from qdqtune.engines._worker import Worker
from qdqtune.records._errors import EngineError

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job(Generic[_T]):
    """Something to do with a worker.

    Attributes:
        what: What it is, in a few words, for progress.
        action: Does it; raises `WorkerFailure` of the kind `HOST` if the worker's host is lost.
    """

    what: str
    action: Callable[[Worker], _T]


@dataclass
class Member:
    """A worker of a pool.

    Attributes:
        number: Its number, from 1 on.
        worker: The worker.
        doing: What it does now; empty while it waits.
        jobs: How many jobs it has finished.
        left_out: Why it gets no more jobs; empty while it does.
    """

    number: int
    worker: Worker
    doing: str = ""
    jobs: int = 0
    left_out: str = ""

    @property
    def name(self) -> str:
        """What it is called in messages and records."""
        return f"worker {self.number} ({self.worker.host.name})"


_Ended = tuple[Member, int, Job[_T], _T | None, BaseException | None]


class WorkerPool:
    """Workers that do jobs side by side; one alone does them one after the other, in this thread.

    Args:
        workers: The workers; the first is also used for everything that is done only once.

    Attributes:
        members: All workers, including those that were left out.
        listener: Called whenever a worker begins or ends a job.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.members = [Member(number, worker) for number, worker in enumerate(workers, 1)]
        self.listener: Callable[[], None] = lambda: None
        self._is_busy = False
        for member in self.members:
            process = member.worker.process
            process.clock = workers[0].process.clock
            process.on_host_lost = functools.partial(self._lost_while_idle, member)

    def __len__(self) -> int:
        return len(self.active)

    @property
    def first(self) -> Worker:
        """The worker for what is done only once."""
        return self.members[0].worker

    @property
    def active(self) -> list[Member]:
        """The workers that get jobs."""
        return [member for member in self.members if not member.left_out]

    @property
    def doing(self) -> tuple[str, ...]:
        """What each worker does now, if there are several."""
        busy = any(member.doing for member in self.members)
        return tuple(f"{m.name}: {m.doing or 'waits'}" for m in self.active) if busy else ()

    def name_of(self, worker: Worker) -> str:
        """Return the name of a worker; empty if the pool has no other one."""
        names = {member.worker: member.name for member in self.members}
        return names[worker] if len(names) > 1 else ""

    def leave_out(self, member: Member, why: str) -> None:
        """Give an idle worker no more jobs, and end its process."""
        _logger.warning("%s is left out: %s", member.name, why)
        member.left_out = why
        member.worker.process.end()
        self._keep_first()

    def close(self) -> None:
        """End all workers."""
        for member in self.members:
            member.worker.close()

    def _lost_while_idle(self, member: Member, why: str) -> None:
        if not self._is_busy and not member.left_out and len(self) > 1:
            self.leave_out(member, why)

    def _keep_first(self) -> None:
        """If the first worker is out, let it have the place of the last one, which is then out."""
        first = self.members[0]
        if first.left_out and self.active:
            last = self.active[-1]
            own, other = first.worker.process, last.worker.process
            other.end()
            own.host, other.host = other.host, own.host
            last.left_out, first.left_out = first.left_out, ""
            last.jobs, first.jobs = first.jobs, last.jobs

    def run(self, jobs: Sequence[Job[_T]]) -> list[_T]:
        """Do jobs, and return their results in the order of the jobs.

        Raises:
            EngineError: If one of them does, or if no worker is left.
            KeyboardInterrupt: After all workers have stopped.
        """
        found = dict(self.each(jobs))
        return [found[number] for number in range(len(jobs))]

    def each(
        self, jobs: Iterable[Job[_T]], go_on: Callable[[], bool] = lambda: True
    ) -> Iterator[tuple[int, _T]]:
        """Do jobs, and yield the number and the result of each as it ends.

        Args:
            jobs: The jobs; taken one by one, when a worker is free.
            go_on: Called before each job; False ends the jobs once those that run have ended.

        Raises:
            EngineError: If a job does, or if no worker is left.
            KeyboardInterrupt: After all workers have stopped.
        """
        numbered = enumerate(jobs)
        if len(self) > 1:
            yield from self._side_by_side(numbered, go_on)
            return
        member = self.members[0]
        for number, job in numbered:
            if not go_on():
                return
            try:
                result = job.action(member.worker)
            except WorkerFailure as failure:
                raise _none_left(failure) if _is_host_lost(failure) else failure from None
            member.jobs += 1
            yield number, result

    def _side_by_side(
        self, jobs: Iterator[tuple[int, Job[_T]]], go_on: Callable[[], bool]
    ) -> Iterator[tuple[int, _T]]:
        ended: queue.SimpleQueue[_Ended[_T]] = queue.SimpleQueue()
        again: deque[tuple[int, Job[_T]]] = deque()  # whose worker was lost
        failure: BaseException | None = None
        busy, self._is_busy = 0, True
        try:
            while True:
                for member in self.active:
                    if member.doing or failure is not None:
                        continue
                    given = again.popleft() if again else next(jobs, None) if go_on() else None
                    if given is None:
                        break
                    self._begin(member, *given, ended)
                    busy += 1
                if not busy:
                    break
                member, number, job, result, error = ended.get()
                busy -= 1
                member.doing = ""
                if error is None:
                    member.jobs += 1
                    self.listener()
                    yield number, result  # type: ignore[misc]  # nothing failed, so it is one
                elif _is_host_lost(error):
                    _logger.warning("%s is left out: %s", member.name, error)
                    member.left_out = str(error)
                    again.append((number, job))
                    failure = failure or (None if self.active else _none_left(error))
                else:
                    failure = failure or error
        except BaseException:
            self._stop(busy, ended)
            raise
        finally:
            self._is_busy = False
            self._keep_first()
        if failure is not None:
            raise failure

    def _begin(
        self, member: Member, number: int, job: Job[_T], ended: queue.SimpleQueue[_Ended[_T]]
    ) -> None:
        context = contextvars.copy_context()

        def work() -> None:
            result: _T | None = None
            error: BaseException | None = None
            try:
                result = context.run(job.action, member.worker)
            except BaseException as raised:  # raised again where jobs are given out
                error = raised
            ended.put((member, number, job, result, error))

        member.doing = job.what
        threading.Thread(target=work, name=f"qdqtune-{member.name}", daemon=True).start()
        self.listener()

    def _stop(self, busy: int, ended: queue.SimpleQueue[_Ended[_T]]) -> None:
        """Interrupt all workers, and wait until their threads have ended."""
        for member in self.members:
            member.worker.process.stop()
        for _ in range(busy):
            ended.get()
        for member in self.members:
            member.doing = ""
            member.worker.process.resume()


def _is_host_lost(error: BaseException) -> bool:
    return isinstance(error, WorkerFailure) and error.kind is FailureKind.HOST


def _none_left(error: BaseException) -> EngineError:
    return EngineError(
        f"No worker is left: {error}",
        "What was measured so far is kept: run the same command again to go on.",
    )
