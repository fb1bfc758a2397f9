"""What TensorRT learned about kernels and what it built are kept and shared, on the stand-in."""

from __future__ import annotations

import fcntl
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text
from tests.stand_ins.tensorrt_api.fixtures import StandInWorkers
from tests.stand_ins.tensorrt_api.timing_cache import cache_bytes

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import Worker

VERSION = "10.16.1"
WEIGHTS = itertools.count(1)
FEEDS = {"x": np.ones((4, 8), np.float32)}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInWorkers]:
    workers = StandInWorkers(tmp_path_factory.mktemp("caches"))
    yield workers
    workers.close()


def model(folder: Path, name: str) -> Path:
    """A new model: equal ones would be built once."""
    path = folder / f"{name}.onnx"
    weight = np.full((8, 8), next(WEIGHTS), np.float32)
    text = "g (float[4,8] x) => (float[4,8] y) { h = MatMul(x, w) y = Relu(h) }"
    onnx.save(model_from_text(text, w=weight), path)
    return path


def options_of(**given: object) -> SessionOptions:
    return SessionOptions(engine_options={name: str(value) for name, value in given.items()})


def use(worker: Worker, path: Path, options: SessionOptions) -> None:
    measured = worker.measure(path, FEEDS, blocks=1, runs=2, options=options)
    assert measured.ok, measured.error


def built_in(path: Path) -> set[str]:
    """The models of which a timing cache knows kernels."""
    told = json.loads(path.read_bytes())
    return {entry.partition(":")[0] for entry in told["entries"]}


class TestTimingCache:
    def test_is_the_users_own_unless_said(self, workers: StandInWorkers, tmp_path: Path) -> None:
        use(workers.worker(VERSION), model(tmp_path, "usual"), SessionOptions())
        (path,) = (workers.folder / "caches" / "qdqtune" / "timing").glob(f"*{VERSION}*.cache")
        assert "usual.onnx" in built_in(path)

    def test_grows(self, workers: StandInWorkers, tmp_path: Path) -> None:
        options = options_of(timing_cache=tmp_path / "kernels.cache")
        for name in ("one", "two"):
            use(workers.worker(VERSION), model(tmp_path, name), options)
        assert built_in(tmp_path / "kernels.cache") == {"one.onnx", "two.onnx"}
        left = {path.name for path in tmp_path.iterdir() if path.suffix != ".onnx"}
        assert left == {"kernels.cache", "kernels.cache.lock"}

    def test_what_a_process_learned_does_not_depend_on_the_file(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        """Version 8.6 may write what it can't read back."""
        path = tmp_path / "kernels.cache"
        use(workers.worker(VERSION), model(tmp_path, "one"), options_of(timing_cache=path))
        path.write_bytes(b"Myelin error from unknown graph")
        use(workers.worker(VERSION), model(tmp_path, "two"), options_of(timing_cache=path))
        assert built_in(path) == {"one.onnx", "two.onnx"}

    def test_none_leaves_no_file(self, workers: StandInWorkers, tmp_path: Path) -> None:
        before = sorted((workers.folder / "caches").rglob("*.cache"))
        use(workers.worker(VERSION), model(tmp_path, "alone"), options_of(timing_cache="none"))
        assert sorted((workers.folder / "caches").rglob("*.cache")) == before

    def test_processes_add_to_one_file(self, workers: StandInWorkers, tmp_path: Path) -> None:
        options = options_of(timing_cache=tmp_path / "kernels.cache")
        names = {side: [f"{side}{number}" for number in range(8)] for side in ("left", "right")}

        def build(side: str, worker: Worker) -> None:
            for name in names[side]:
                use(worker, model(tmp_path, name), options)

        with workers.new_worker(VERSION) as other, ThreadPoolExecutor(2) as pool:
            mine = workers.worker(VERSION)
            for done in [pool.submit(build, "left", mine), pool.submit(build, "right", other)]:
                done.result()
        wanted = {f"{name}.onnx" for side in names.values() for name in side}
        assert built_in(tmp_path / "kernels.cache") == wanted

    def test_is_written_by_one_at_a_time(self, workers: StandInWorkers, tmp_path: Path) -> None:
        path, built = tmp_path / "kernels.cache", model(tmp_path, "waits")
        worker = workers.worker(VERSION)
        with Path(f"{path}.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = pool.submit(use, worker, built, options_of(timing_cache=path))
            time.sleep(0.3)
            assert not path.exists()
            path.write_bytes(cache_bytes(VERSION, entries=["other.onnx: n0"]))  # meanwhile
            fcntl.flock(lock, fcntl.LOCK_UN)
            done.result()
        assert built_in(path) == {"other.onnx", "waits.onnx"}

    @pytest.mark.parametrize(
        "content",
        [cache_bytes("9.3.0"), cache_bytes(VERSION, "Another GPU"), b"no cache at all"],
        ids=["other version", "other gpu", "garbage"],
    )
    def test_a_foreign_file_is_left_alone(
        self, workers: StandInWorkers, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "kernels.cache"
        path.write_bytes(content)
        options = options_of(timing_cache=path)
        for name in ("one", "two"):
            use(workers.worker(VERSION), model(tmp_path, name), options)
        assert path.read_bytes() == content
        (sibling,) = (p for p in tmp_path.glob("kernels.*.cache"))
        assert VERSION in sibling.name
        assert built_in(sibling) == {"one.onnx", "two.onnx"}

    def test_a_foreign_file_beside_a_broken_sibling_is_left_alone(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        path, content = tmp_path / "kernels.cache", cache_bytes("9.3.0")
        path.write_bytes(content)
        use(workers.worker(VERSION), model(tmp_path, "one"), options_of(timing_cache=path))
        (sibling,) = tmp_path.glob("kernels.*.cache")
        sibling.write_bytes(b"broken")
        options = options_of(timing_cache=path, level=4)  # read anew
        use(workers.worker(VERSION), model(tmp_path, "two"), options)
        assert path.read_bytes() == content
        assert built_in(sibling) == {"two.onnx"}

    def test_one_that_spoils_a_build_is_not_used(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        path = tmp_path / "kernels.cache"
        options = options_of(timing_cache=path)
        worker = workers.worker(VERSION)
        use(worker, model(tmp_path, "first"), options)
        workers.set_fault("build_fails_with_cache")
        use(worker, model(tmp_path, "second"), options)
        use(worker, model(tmp_path, "third"), options)
        assert workers.builds(VERSION, tmp_path / "second.onnx") == 2
        assert workers.builds(VERSION, tmp_path / "third.onnx") == 1
        assert built_in(path) == {"first.onnx"}

    def test_is_used_on_after_a_model_that_cannot_be_built(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        path = tmp_path / "kernels.cache"
        options = options_of(timing_cache=path)
        worker = workers.worker(VERSION)
        use(worker, model(tmp_path, "before"), options)
        workers.set_fault("build_fails@impossible")
        bad = worker.measure(model(tmp_path, "impossible"), FEEDS, options=options)
        assert "Could not find any implementation" in str(bad.error)
        use(worker, model(tmp_path, "after"), options)
        assert built_in(path) == {"before.onnx", "after.onnx"}

    def test_one_that_cannot_be_written_spoils_nothing(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        options = options_of(timing_cache=tmp_path / "file" / "kernels.cache")
        use(workers.worker(VERSION), model(tmp_path, "unwritten"), options)


class TestPlanCache:
    def test_a_second_open_builds_nothing(self, workers: StandInWorkers, tmp_path: Path) -> None:
        path = model(tmp_path, "twice")
        for _ in range(2):
            use(workers.worker(VERSION), path, SessionOptions())
        assert workers.builds(VERSION, path) == 1

    def test_a_plan_that_was_kept_needs_no_builder(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        """To create one takes seconds."""
        path, options = model(tmp_path, "kept"), options_of(plan_cache=tmp_path / "plans")
        use(workers.worker(VERSION), path, options)
        with workers.new_worker(VERSION) as other:
            workers.set_fault("builder_none")
            use(other, path, options)
            new = model(tmp_path, "new")
            failed = other.measure(new, FEEDS, blocks=1, runs=2, options=options)
        workers.set_fault("")
        assert "can't build here" in (failed.error or "")

    @pytest.mark.parametrize("given", [{"level": "1"}, {"precision": "bf16"}, {"device": "1"}])
    def test_other_options_build_anew(
        self, workers: StandInWorkers, tmp_path: Path, given: dict[str, str]
    ) -> None:
        path = model(tmp_path, f"other{next(iter(given))}")
        for options in (SessionOptions(), SessionOptions(engine_options=given)):
            use(workers.worker(VERSION), path, options)
        assert workers.builds(VERSION, path) == 2

    @pytest.mark.parametrize("given", [{"cuda_graph": "1"}, {"timing_cache": "none"}])
    def test_what_is_built_does_not_depend_on_how_it_is_run(
        self, workers: StandInWorkers, tmp_path: Path, given: dict[str, str]
    ) -> None:
        path = model(tmp_path, f"same{next(iter(given))}")
        for options in (SessionOptions(), SessionOptions(engine_options=given)):
            use(workers.worker(VERSION), path, options)
        assert workers.builds(VERSION, path) == 1

    def test_those_of_a_run_are_shared_by_its_processes_only(
        self, workers: StandInWorkers, tmp_path: Path
    ) -> None:
        path, plans = model(tmp_path, "of_a_run"), tmp_path / "plans"
        for _ in range(2):
            with workers.new_worker(VERSION, plans=plans) as worker:
                use(worker, path, SessionOptions())
        assert workers.builds(VERSION, path) == 1
        (plan,) = plans.glob("*.plan")
        content = plan.read_bytes()
        # A stranger may replace its content, or add one that they have built.
        planted = plan.with_name(f"{plan.name.partition('.')[0]}.{'0' * 32}.plan")
        for file in (plan, planted):
            for kept in plans.glob("*.plan"):
                kept.unlink()
            file.write_bytes(content if file == planted else content[:-1] + b"!")
            with workers.new_worker(VERSION, plans=plans) as worker:
                use(worker, path, SessionOptions())
        assert workers.builds(VERSION, path) == 3

    def test_a_folder_is_shared_by_processes(self, workers: StandInWorkers, tmp_path: Path) -> None:
        path = model(tmp_path, "shared")
        options = options_of(plan_cache=tmp_path / "plans")
        use(workers.worker(VERSION), path, options)
        (plan,) = (tmp_path / "plans").glob("*.plan")
        with workers.new_worker(VERSION) as other:
            use(other, path, options)
            assert workers.builds(VERSION, path) == 1
            plan.write_bytes(b"cut off")
            use(other, path, options)
        assert workers.builds(VERSION, path) == 2
        assert plan.stat().st_size > 1000
