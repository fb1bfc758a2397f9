"""Several workers: who does what, whose job is done again, and how all of it ends."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.conftest import PATH

from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._pool import Job, WorkerPool
from qdqtune.engines._process import ChildProcess, FailureKind, WorkerFailure
from qdqtune.engines._worker import Worker
from qdqtune.records._errors import EngineError

_LONG_S = 30.0


@contextlib.contextmanager
def pool_of(count: int) -> Iterator[WorkerPool]:
    """Workers that no process was started for yet."""
    hosts = [LocalHost(name=f"place {number}") for number in range(1, count + 1)]
    with contextlib.closing(WorkerPool([Worker("simulated", host=host) for host in hosts])) as pool:
        yield pool


def place(worker: Worker) -> str:
    return worker.host.name


def lost(worker: Worker) -> WorkerFailure:
    return WorkerFailure(f"the node {place(worker)} is gone", FailureKind.HOST)


def together(count: int, action: Callable[[Worker], str] = place) -> list[Job[str]]:
    """Jobs of which none ends before all have begun; begun again, they don't wait."""
    barrier = threading.Barrier(count)
    all_began = threading.Event()

    def work(worker: Worker) -> str:
        if not all_began.is_set():
            barrier.wait(_LONG_S)
            all_began.set()
        return action(worker)

    return [Job(f"job {number}", work) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_answers_come_in_the_order_of_the_jobs(workers: int) -> None:
    with pool_of(workers) as pool:
        assert pool.run([Job("", lambda _, n=n: n) for n in range(20)]) == list(range(20))
        assert sum(member.jobs for member in pool.members) == 20


@given(st.permutations(range(4)))
def test_whoever_is_first(order: list[int]) -> None:
    """The order in which jobs end is not that of their results."""
    ended = [threading.Event() for _ in order]
    seen: list[int] = []

    def job(number: int) -> Job[int]:
        def work(_: Worker) -> int:
            turn = order.index(number)
            assert turn == 0 or ended[order[turn - 1]].wait(_LONG_S)
            seen.append(number)
            ended[number].set()
            return number

        return Job("", work)

    with pool_of(4) as pool:
        assert pool.run([job(number) for number in range(4)]) == [0, 1, 2, 3]
    assert seen == order


def test_workers_work_side_by_side_and_say_what_they_do() -> None:
    with pool_of(3) as pool:
        told: list[tuple[str, ...]] = []
        pool.listener = lambda: told.append(pool.doing)
        places = pool.run(together(3))
        assert sorted(places) == ["place 1", "place 2", "place 3"]
        assert (
            "worker 1 (place 1): job 0",
            "worker 2 (place 2): job 1",
            "worker 3 (place 3): job 2",
        ) in told
        assert pool.doing == ()


def test_one_worker_works_in_this_thread_and_has_no_name() -> None:
    with pool_of(1) as pool:
        assert pool.run([Job("", lambda _: threading.get_ident())]) == [threading.get_ident()]
        assert pool.name_of(pool.first) == ""


def test_a_lost_worker_costs_its_job_which_another_one_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried: list[str] = []

    def work(worker: Worker) -> str:
        tried.append(place(worker))
        if place(worker) == "place 2":
            raise lost(worker)
        return place(worker)

    with pool_of(3) as pool, caplog.at_level(logging.WARNING):
        found = pool.run(together(3, work) + [Job("", work) for _ in range(5)])
        assert "place 2" not in found
        assert len(found) == 8
        assert tried.count("place 2") == 1
        assert len(tried) == 9
        assert [member.name for member in pool.active] == [
            "worker 1 (place 1)",
            "worker 3 (place 3)",
        ]
        assert pool.members[1].left_out == "the node place 2 is gone"
    assert "worker 2 (place 2) is left out: the node place 2 is gone" in caplog.text


def test_if_the_first_worker_is_lost_another_one_takes_its_place() -> None:
    """What is done only once is done by the first."""

    def work(worker: Worker) -> str:
        if place(worker) == "place 1":
            raise lost(worker)
        return place(worker)

    with pool_of(2) as pool:
        first = pool.first
        assert pool.run(together(2, work)) == ["place 2", "place 2"]
        assert pool.first is first
        assert place(first) == "place 2"
        assert len(pool) == 1
        assert pool.members[1].left_out == "the node place 1 is gone"
        assert pool.run([Job("", place)]) == ["place 2"]


@pytest.mark.parametrize("workers", [1, 2])
def test_without_workers_there_is_no_answer(workers: int) -> None:
    def work(worker: Worker) -> str:
        raise lost(worker)

    with pool_of(workers) as pool, pytest.raises(EngineError, match="No worker is left") as caught:
        pool.run([Job("", work)] * 3)
    assert "run the same command again" in caught.value.hint


def test_a_worker_that_is_lost_while_nobody_waits_for_it_is_left_out() -> None:
    with pool_of(2) as pool:
        pool.members[1].worker.process.on_host_lost("the node is gone")
        assert [member.number for member in pool.active] == [1]
        pool.first.process.on_host_lost("this one, too")  # the last one stays, and fails by itself
        assert [member.number for member in pool.active] == [1]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_ends_all_once_those_that_run_have_ended(workers: int) -> None:
    begun: list[int] = []

    def job(number: int) -> Job[int]:
        def work(_: Worker) -> int:
            begun.append(number)
            if number == 1:
                raise EngineError("the reference does not run", "look")
            return number

        return Job("", work)

    with pool_of(workers) as pool:
        with pytest.raises(EngineError, match="the reference does not run"):
            pool.run([job(number) for number in range(50)])
        assert len(begun) < 50
        assert pool.run([Job("", lambda _: 1)] * 2) == [1, 1]  # and all of them go on


def test_no_job_begins_when_there_is_no_time() -> None:
    left = iter([True, True, True, False, False, False])
    with pool_of(2) as pool:
        jobs = (Job("", lambda _, n=n: n) for n in range(10))
        assert sorted(dict(pool.each(jobs, lambda: next(left)))) == [0, 1, 2]


def test_an_interrupt_ends_what_the_workers_wait_for(model_that: Callable) -> None:
    """Both hang for ever; the one that gives out jobs is interrupted."""
    hanging = model_that("hang", at="open")
    environment = {"PYTHONPATH": PATH}
    both_wait = threading.Event()
    hosts = [LocalHost(variables=environment, name=name) for name in ("one", "other")]
    workers = [Worker("faulty_engine:FaultyEngine", timeout_s=600, host=host) for host in hosts]

    def hang(worker: Worker) -> None:
        worker.info()
        barrier.wait(_LONG_S)
        worker.open(hanging)

    barrier = threading.Barrier(2, action=both_wait.set)
    with contextlib.closing(WorkerPool(workers)) as pool:

        def interrupt() -> None:
            if all(member.doing for member in pool.members):
                assert both_wait.wait(_LONG_S)
                raise KeyboardInterrupt

        pool.listener = interrupt
        with pytest.raises(KeyboardInterrupt):
            pool.run([Job("hang", hang)] * 2)
        assert [worker.pid for worker in workers] == [None, None]
        assert pool.doing == ()
        pool.listener = lambda: None
        names = pool.run([Job("", lambda worker: worker.info().name)] * 2)
        assert names == ["faulty", "faulty"]


def test_an_interrupt_while_a_process_starts_is_not_lost(model_that: Callable) -> None:
    class Slow(LocalHost):
        def start(self, *arguments: Any) -> ChildProcess:
            child = super().start(*arguments)
            worker.process.stop()  # as another thread does
            return child

    worker = Worker("faulty_engine:FaultyEngine", host=Slow(variables={"PYTHONPATH": PATH}))
    with worker, pytest.raises(KeyboardInterrupt):
        worker.open(model_that("hang", at="open"))
