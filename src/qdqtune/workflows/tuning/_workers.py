"""The workers of a run: how many there may be, whether they are alike, and how much they disturb.

Candidates are compared on one worker each, beside their reference. That is only fair if all workers
are the same, and if none of them is slowed down by what the others do.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence

from qdqtune.config import TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._hardware import find_gpus
from qdqtune.engines._hosts import Host, LocalHost, usable_cores
from qdqtune.engines._pool import Job, WorkerPool
from qdqtune.engines._worker import Worker
from qdqtune.records._errors import UsageError
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._tuning import Noise, WorkerFigures
from qdqtune.resources import current_limits
from qdqtune.workflows._bench import engine_info

Tell = Callable[[str, str], None]
"""Called with a stage and a message about it."""

STAGE = "workers"
# What has to be equal for workers to be alike.
_FIELDS = ("name", "version", "device", "isa", "threads", "options", "float_type")
# How much slower the model may be while all workers run it.
_MOST_SLOWDOWN = 1.1
# A worker that is so much noisier than the typical one, and than can be tolerated, is left out.
_MUCH_NOISIER, _TOLERABLE = 3.0, 0.05
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def open_hosts(config: TuneConfig, engine: str, tell: Tell) -> Iterator[Sequence[Host]]:
    """Find a place for each worker, for the duration of a run.

    Args:
        config: The number of workers, their threads, and the cluster.
        engine: The engine.
        tell: Called when something takes a while.

    Raises:
        UsageError: If there is no room for so many, or the cluster can't be reached.
    """
    if config.cluster is not None:
        from qdqtune.engines._ray_cluster import connected  # an extra

        tell(STAGE, f"connecting to the Ray cluster {config.cluster}")
        with connected(config.cluster) as cluster:
            hosts = cluster.hosts(engine, config.workers, config.threads)
            tell(STAGE, _places(hosts))
            yield hosts
    elif config.workers == 1:
        yield [LocalHost()]
    else:
        hosts_here = local_hosts(engine, config.workers, config.threads)
        tell(STAGE, _places(hosts_here))
        yield hosts_here


def local_hosts(engine: str, workers: int, threads: int | None) -> list[LocalHost]:
    """Divide this machine among workers.

    Args:
        engine: The engine.
        workers: Their number.
        threads: Threads per worker.

    Raises:
        UsageError: If they would disturb each other.
    """
    entry, memory = registry.entry(engine), current_limits().memory_bytes
    each_memory = None if memory is None else memory // workers
    if not entry.measures:  # its times do not depend on this machine
        return [LocalHost(memory_bytes=each_memory) for _ in range(workers)]
    if entry.needs_gpu:
        gpus = [str(number) for number, _ in enumerate(find_gpus().gpus)]
        if workers > len(gpus):
            raise UsageError(
                f"--workers {workers} needs a GPU for each, and this machine has {len(gpus)}.",
                f"Use --workers {max(1, len(gpus))}, or the GPUs of a cluster (--cluster).",
            )
        return [
            LocalHost((), {_VISIBLE_DEVICES: gpu}, each_memory, f"GPU {gpu}")
            for gpu in gpus[:workers]
        ]
    cores = usable_cores()
    if threads is None:
        raise UsageError(
            f"--workers {workers} requires --threads: by default {registry.title(engine)} takes "
            f"all {len(cores)} cores for one worker.",
            f"With --threads 1, up to {len(cores)} workers have a core of their own.",
        )
    most = len(cores) // threads
    if workers > most:
        raise UsageError(
            f"--workers {workers} with --threads {threads} needs {workers * threads} cores, and "
            f"this process may use {len(cores)}.",
            f"Use --workers {most}." if most else f"Use at most --threads {len(cores)}.",
        )
    return [
        LocalHost(own, {}, each_memory, f"core{'s' * (threads > 1)} {','.join(map(str, own))}")
        for own in (cores[n * threads : (n + 1) * threads] for n in range(workers))
    ]


def check_alike(pool: WorkerPool, engine: str, info: EngineInfo) -> None:
    """Let all workers have the options of the first, and refuse those that are not like it.

    Args:
        pool: The workers.
        engine: Their engine.
        info: What the first one says of itself.

    Raises:
        UsageError: If another one says something else.
        EngineError: If another one does not start.
    """
    first = pool.members[0]
    for member in pool.members[1:]:
        member.worker.options = first.worker.options
        other = engine_info(member.worker, engine)
        for name in _FIELDS:
            own, its = getattr(info, name), getattr(other, name)
            if own != its:
                raise UsageError(
                    f"The workers differ in {name}: {first.name} has {own}, {member.name} has "
                    f"{its}.",
                    "Their times can't be compared with each other: use workers that are alike.",
                )


def check_together(
    pool: WorkerPool, alone_ms: float, check: Callable[[Worker], tuple[Noise, float]], tell: Tell
) -> None:
    """Time the model against itself on all workers at once, and leave out those that can't be used.

    A worker that is much noisier than the others is left out. If all slow each other down, only the
    first one stays.

    Args:
        pool: The workers.
        alone_ms: Latency of the model on the first one while the others rest.
        check: Times it on a worker; returns the noise and the latency in milliseconds.
        tell: Called with the result.

    Raises:
        EngineError: If a worker does not run it.
    """
    members = pool.active
    if len(members) < 2:
        return
    tell(STAGE, "timing the model against itself on all of them at once")
    # A free worker takes the next job, so each of them has one; more if another one was lost.
    job = Job("noise check", lambda worker: (worker, check(worker)))
    found = dict(pool.run([job] * len(members)))
    members = [member for member in pool.active if member.worker in found]
    slowdown = statistics.median(ms for _, ms in found.values()) / alone_ms
    tell(STAGE, f"the model takes {slowdown:.2f} times as long as on one worker alone")
    if slowdown > _MOST_SLOWDOWN:
        for member in members[1:]:
            pool.leave_out(
                member,
                f"side by side, the model takes {slowdown:.2f} times as long, which would falsify "
                f"what is measured (limit {_MOST_SLOWDOWN:g})",
            )
        return
    typical = statistics.median_low(noise.detectable for noise, _ in found.values())
    for member in reversed(members):  # the first one would take the place of the last
        seen = found[member.worker][0].detectable
        if seen > max(_TOLERABLE, _MUCH_NOISIER * typical):
            pool.leave_out(
                member,
                f"it sees differences from {100 * seen:.1f} % on, the others from "
                f"{100 * typical:.1f} % on",
            )


def figures_of(pool: WorkerPool) -> tuple[WorkerFigures, ...]:
    """Return what the summary says of the workers, if there are several."""
    if len(pool.members) < 2:
        return ()
    return tuple(
        WorkerFigures(member.name, member.jobs, member.left_out) for member in pool.members
    )


def _places(hosts: Sequence[Host]) -> str:
    names = dict.fromkeys(host.name for host in hosts)  # some are not told apart
    return f"{len(hosts)} worker{'s' * (len(hosts) != 1)} on {', '.join(names)}"
