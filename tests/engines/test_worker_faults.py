"""An engine that crashes, hangs or lies is one failed measurement."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from tests.engines.conftest import PATH

from qdqtune.calibration._instrumentation import _open as open_instrumented
from qdqtune.engines import _process as process
from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._worker import FailureKind, Worker, WorkerFailure
from qdqtune.records._errors import OutputError
from qdqtune.resources import resource_limits

FEEDS = {"x": np.zeros(1, dtype=np.float32)}


def fails(worker, path) -> str:
    """Measures, asserts a failure after which the worker goes on, and returns the error."""
    measured = worker.measure(path, FEEDS, blocks=1, runs=2)
    assert not measured.ok
    assert measured.blocks_ms == ()
    good = path.parent / "afterwards.json"
    good.write_text("{}")
    assert worker.measure(good, FEEDS, blocks=1, runs=2).latency_ms == 5.0
    return measured.error


@pytest.mark.parametrize("moment", ["open", "feed", "time"])
def test_segfault(faulty, model_that, moment):
    error = fails(faulty, model_that("segfault", at=moment))
    assert f"was ended by SIGSEGV during '{moment}'" in error


def test_abort_shows_the_last_words_without_escape_codes(faulty, model_that):
    error = fails(faulty, model_that("abort"))
    assert "SIGABRT during 'time': it ran out of memory" in error
    assert "std::bad_alloc" in error
    assert "\x1b" not in error


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to it")
@pytest.mark.parametrize("moment", ["open", "feed", "time"])
def test_too_much_memory_is_one_failed_measurement(faulty_with, model_that, moment):
    with resource_limits(max_memory="1GiB"):
        worker = faulty_with()
    error = fails(worker, model_that("allocate", at=moment))
    assert f"ran out of memory (limit 1 GiB; --max_memory) during '{moment}'" in error
    with pytest.raises(WorkerFailure) as caught:
        worker.open(model_that("allocate", at="open"))
    assert caught.value.kind is FailureKind.MEMORY
    assert worker.pid is None, "whatever it still holds is not left to the next model"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to it")
def test_the_limit_is_what_the_kernel_is_told(faulty_with):
    with resource_limits(max_memory="1GiB"):
        worker = faulty_with()
    worker.info()
    assert psutil.Process(worker.pid).rlimit(psutil.RLIMIT_DATA)[0] == 1 << 30


def test_the_users_timeout_is_the_longest_of_all(faulty_with, model_that):
    with resource_limits(timeout_s=2):
        worker = faulty_with(timeout_s=None)
    assert worker.timeout_s == 2
    with pytest.raises(WorkerFailure, match="no answer to 'open' within 2 s"):
        worker.open(model_that("hang", at="open"), timeout_s=600)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(("users_s", "is_short"), [(None, True), (600.0, False)])
def test_a_small_model_has_to_open_soon_unless_the_user_allows_more(
    model_that, monkeypatch, engine, users_s, is_short
):
    limits = []
    with resource_limits(timeout_s=users_s), Worker(engine) as worker:
        monkeypatch.setattr(worker, "_ask", lambda *asked, **_: limits.append(asked[2]))
        with pytest.raises(TypeError):  # there is no answer
            worker.open(model_that())
    (limit_s,) = limits
    assert (limit_s is not None and limit_s < 60) == is_short


def test_silent_exit(faulty, model_that):
    assert "exited with code 7" in fails(faulty, model_that("exit"))


def test_exception_keeps_the_child(faulty, model_that):
    faulty.info()
    pid = faulty.pid
    error = fails(faulty, model_that("raise"))
    assert "RuntimeError: this model is ?[31mbad" in error
    assert faulty.pid == pid


@pytest.mark.parametrize("fault", ["hang", "hang_with_gil"])
def test_hang_is_killed_after_its_limit(faulty_with, model_that, fault):
    worker = faulty_with(timeout_s=2)
    worker.info(timeout_s=60)
    child = psutil.Process(worker.pid)
    error = fails(worker, model_that(fault))
    assert "no answer to 'time' within 2 s" in error
    assert not child.is_running()


def test_a_gigabyte_of_output_hurts_neither_memory_nor_disk(faulty_with, model_that, tmp_path):
    log = tmp_path / "engine.log"
    worker = faulty_with(log_path=log)
    before = psutil.Process().memory_info().rss
    path = model_that("gigabyte")
    assert worker.measure(path, FEEDS, blocks=1, runs=1).ok
    assert psutil.Process().memory_info().rss - before < 64 * 2**20
    assert log.stat().st_size <= 8 * 2**20


def test_prints_cannot_forge_answers(faulty, model_that):
    measured = faulty.measure(model_that("garbage"), FEEDS, blocks=3, runs=2)
    assert measured.latency_ms == 5.0


@pytest.mark.parametrize("latency", ["nan", "-1", "0", "inf"])
def test_impossible_times_fail(faulty, model_that, latency):
    assert "impossible latency" in fails(faulty, model_that(latency_ms=latency))


@pytest.mark.parametrize("latency", ["1e14", "5e-324", "1e308"])
def test_absurd_times_fail(faulty, model_that, latency):
    assert "impossible latency" in fails(faulty, model_that(latency_ms=latency))


@pytest.mark.parametrize(
    ("raw", "times"),
    [
        ("", 1),
        ("[", 50_000),
        ("9", 50_000),
        ("[]", 1),
        ("null", 1),
        ('{"number": 3}', 1),
        ('{"number": 3, "error": 5}', 1),
        ('{"number": 3, "error": ""}', 1),
        ('{"number": 1e400, "result": 1}', 1),
        ('{"number": 3, "result": {"samples_ms": "soon"}}', 1),
        ('{"number": 3, "result": NaN}', 1),
    ],
)
def test_answers_that_are_none_fail(faulty, model_that, monkeypatch, raw, times):
    monkeypatch.setattr(process, "_GRACE_S", 0.2)  # it does not end by itself
    assert fails(faulty, model_that(raw=raw, times=times))


def test_a_limit_beyond_the_systems_clock_is_none(faulty, model_that):
    assert faulty.measure(model_that(), FEEDS, blocks=1, runs=2, timeout_s=1e300).ok


def test_times_that_are_no_numbers_fail(faulty, model_that):
    assert "could not convert" in fails(faulty, model_that(latency_ms="soon"))


def test_an_engine_that_cannot_be_imported_is_named(faulty_with):
    worker = faulty_with(host=LocalHost(variables={"PYTHONPATH": "/nowhere"}))
    with pytest.raises(WorkerFailure, match="No module named 'faulty_engine'"):
        worker.info()


@pytest.mark.parametrize("fault", ["full disk", "native full disk"])
def test_a_full_disk_is_not_the_models_fault(faulty, model_that, fault):
    with pytest.raises(OutputError) as caught:
        faulty.measure(model_that(fault), FEEDS, blocks=1, runs=2)
    assert caught.value.what.startswith(f"{faulty.scratch} could not be written: No space left")
    assert "MB left" in caught.value.hint
    assert "set TMPDIR to a folder on another disk" in caught.value.hint
    assert faulty.measure(model_that(), FEEDS, blocks=1, runs=2).ok


def test_models_are_lost_with_their_child(faulty, model_that):
    good = faulty.open(model_that())
    bad = faulty.open(model_that("segfault"))
    with pytest.raises(WorkerFailure) as crash:
        faulty.time(bad, 1)
    assert crash.value.kind is FailureKind.CRASH
    with pytest.raises(WorkerFailure) as lost:
        faulty.time(good, 1)
    assert lost.value.kind is FailureKind.LOST
    faulty.info()
    with pytest.raises(WorkerFailure):
        faulty.time(good, 1)
    faulty.release(good)


def test_crashes_leak_no_descriptors(faulty, model_that):
    path = model_that("exit", at="open")
    faulty.measure(path, FEEDS)
    before = psutil.Process().num_fds()
    for _ in range(5):
        faulty.measure(path, FEEDS)
    assert psutil.Process().num_fds() <= before


def test_a_timeout_ends_the_grandchildren_too(faulty_with, model_that):
    worker = faulty_with(timeout_s=60)
    model = worker.open(model_that("grandchild"))
    with pytest.raises(WorkerFailure) as caught:
        worker.time(model, 1, timeout_s=2)
    pid = int(re.search(r"grandchild (\d+)", caught.value.hint).group(1))
    assert gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to a subreaper")
@pytest.mark.parametrize("end", ["close", "timeout", "crash", "killed worker"])
def test_daemons_of_an_engine_end_with_its_worker(faulty_with, model_that, tmp_path, end):
    log = tmp_path / "engine.log"
    worker = faulty_with(timeout_s=60, log_path=log)
    worker.time(worker.open(model_that("daemon")), 1)
    deadline = time.monotonic() + 10.0
    while not (told := re.search(r"daemon (\d+)\n", log.read_text())):  # it is drained by a thread
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int(told.group(1))
    assert psutil.pid_exists(pid)
    if end == "close":
        worker.close()
    elif end == "killed worker":
        os.kill(worker.pid, signal.SIGKILL)
    else:
        worker.measure(
            model_that({"timeout": "hang", "crash": "segfault"}[end]), FEEDS, timeout_s=1
        )
    assert gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to a subreaper")
def test_daemons_of_an_engine_end_with_a_killed_parent(model_that, tmp_path):
    log = tmp_path / "engine.log"
    with parent_of_worker(model_that("daemon"), log) as (parent, worker):
        pid = int(re.search(r"daemon (\d+)", log.read_text()).group(1))
        parent.send_signal(signal.SIGKILL)
        assert gone(pid)
        assert gone(worker)


def test_a_child_outlives_the_thread_that_started_it(faulty, model_that):
    thread = threading.Thread(target=faulty.info)
    thread.start()
    thread.join()
    time.sleep(0.3)
    pid = faulty.pid
    assert faulty.measure(model_that(), FEEDS).ok
    assert faulty.pid == pid


PARENT = """
import sys
from pathlib import Path
from qdqtune.engines._worker import Worker
log = Path(sys.argv[2]) if sys.argv[2] else None
worker = Worker("faulty_engine:FaultyEngine", timeout_s=100, log_path=log)
worker.info()
model = worker.open(sys.argv[1])
print(worker.pid, flush=True)
try:
    worker.time(model, 1)
    sys.stdin.read()
except KeyboardInterrupt:
    print(worker.info().name, flush=True)
    worker.close()
"""


@contextlib.contextmanager
def parent_of_worker(path, log=""):
    """Another Python that runs a model in a worker; yields it and the worker's process id."""
    environment = {
        **os.environ,
        "PYTHONPATH": PATH,
    }
    argv = [sys.executable, "-c", PARENT, str(path), str(log)]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as parent:
        try:
            pid = int(parent.stdout.readline())
            time.sleep(0.5)  # the request is under way
            yield parent, pid
        finally:
            parent.kill()


def gone(pid: int, within_s: float = 5.0) -> bool:
    try:
        psutil.Process(pid).wait(within_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("fault", ["", "hang", "hang_with_gil"])
def test_the_child_dies_with_a_killed_parent(model_that, fault):
    if fault == "hang_with_gil" and sys.platform != "linux":
        pytest.skip("only Linux signals the death of a parent")
    with parent_of_worker(model_that(fault)) as (parent, pid):
        assert psutil.pid_exists(pid)
        parent.send_signal(signal.SIGKILL)
        assert gone(pid)


def test_interrupt_reaches_the_parent_which_goes_on(model_that):
    with parent_of_worker(model_that("hang")) as (parent, pid):
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "faulty\n"
        assert parent.wait(10) == 0
        assert gone(pid)


def test_the_child_ignores_interrupts(faulty, model_that):
    model = faulty.open(model_that())
    os.kill(faulty.pid, signal.SIGINT)
    time.sleep(0.2)
    assert faulty.time(model, 1) == [5.0]


def test_a_model_that_hangs_is_not_opened_again_without_optimizations(faulty_with, model_that):
    worker = faulty_with(timeout_s=1.5)
    worker.info(timeout_s=60)
    before = worker.process.generation
    with pytest.raises(WorkerFailure) as found:
        open_instrumented(worker, model_that("hang", at="open"), None)
    assert found.value.kind is FailureKind.TIMEOUT
    assert worker.process.generation == before  # no other process was started for it
