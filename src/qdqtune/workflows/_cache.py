"""`cache`: what runs found out, shown, put together or removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from qdqtune._command_configs import CacheConfig
from qdqtune.graph._files import check_writable
from qdqtune.records._cache import CachedPattern, CacheReport, CacheRow
from qdqtune.records._errors import UsageError
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._pattern_outcomes import PatternOutcome
from qdqtune.search.regions._canonical import shapes_in, without_attributes
from qdqtune.workflows.tuning._cache_folder import FILE, CacheContent, change_folder, read_folder
from qdqtune.workflows.tuning._folder import PATTERN_CACHE

_FILES = (".yaml", ".yml")


def show_cache(path: Path) -> CacheReport:
    """Say what is in a cache.

    Args:
        path: A pattern cache, a folder that runs share, or the folder of a run.

    Raises:
        QdqtuneError: If it is none of these, or can't be read.
    """
    return _report(path, _read(path))


def merge_caches(paths: Sequence[Path], output: Path, config: CacheConfig) -> CacheReport:
    """Put caches together; what several of them know is taken from the first one.

    Args:
        paths: See `show_cache`.
        output: A pattern cache to write if it ends in .yaml, else a folder to add to.
        config: Whether a file may be replaced.

    Raises:
        QdqtuneError: If one can't be read, or the result can't be written.
    """
    is_file = output.suffix in _FILES
    if is_file:
        check_writable(output, force=config.force)
    found = [_read(path) for path in paths]

    def change(content: CacheContent) -> None:
        for each in found:
            content.merge(each)

    if is_file:
        merged = CacheContent()
        change(merged)
        merged.patterns.save(output)
    else:
        change_folder(output, change)
    return _report(output, _read(output))


def prune_cache(path: Path, config: CacheConfig) -> CacheReport:
    """Remove damaged lines, and what the settings say.

    Args:
        path: See `show_cache`.
        config: What to remove.

    Raises:
        QdqtuneError: If it can't be read or written.
    """
    file = _source(path)
    counts: list[int] = []

    def change(content: CacheContent) -> None:
        before = _size(content) + content.damaged
        _prune(content, config)
        counts.append(before - _size(content))

    if file.is_dir():
        change_folder(file, change)
    else:
        content = _read(file)
        change(content)
        content.patterns.save(file)
    return replace(_report(path, _read(path)), removed=sum(counts))


def _prune(content: CacheContent, config: CacheConfig) -> None:
    patterns = content.patterns
    kept = [each for each in patterns.outcomes if each.conditions.engine != config.engine]
    stored = [each for each in content.subgraphs.values() if each.engine.name != config.engine]
    if config.most is not None:
        kept, stored = kept[-config.most :], stored[-config.most :]
    keys = {each.key for each in kept}
    patterns.keep_outcomes(lambda each: each.key in keys)
    content.subgraphs = {each.key: each for each in stored}


def _size(content: CacheContent) -> int:
    return len(content.patterns.outcomes) + len(content.subgraphs)


def _source(path: Path) -> Path:
    """Return the pattern cache or the shared folder that a path means.

    Raises:
        UsageError: If it is neither.
    """
    if path.is_dir() and not (path / FILE).exists():
        path = path / PATTERN_CACHE
    if not path.exists():
        raise UsageError(
            f"There is no cache {path}.",
            "Name a pattern cache, the --cache_dir of runs, or the --output_dir of one.",
        )
    return path


def _read(path: Path) -> CacheContent:
    source = _source(path)
    if source.is_dir():
        return read_folder(source)
    return CacheContent(PatternCache.load(source))


def _report(path: Path, content: CacheContent) -> CacheReport:
    rows: dict[tuple[str, ...], CacheRow] = {}

    def count(key: tuple[str, str, str, str, str], change: Callable[[CacheRow], CacheRow]) -> None:
        rows[key] = change(rows.get(key) or CacheRow(*key))

    for outcome in content.patterns.outcomes:
        where, settled = outcome.conditions, outcome.is_settled
        floats = not any(choice.is_chosen for choice in outcome.choices)
        count(
            (where.engine, where.version, where.device, where.dialect, where.quant_type),
            lambda row, settled=settled, floats=floats: replace(  # type: ignore[misc]
                row, patterns=row.patterns + 1, settled=row.settled + settled,
                kept_float=row.kept_float + floats,
            ),
        )  # fmt: skip
    for stored in content.subgraphs.values():
        info = stored.engine
        own = (str(stored.conditions.get(name, "")) for name in ("dialect", "quant_type"))
        dialect, quant_type = own
        count(
            (info.name, info.version, f"{info.device} ({info.isa})", dialect, quant_type),
            lambda row: replace(row, subgraphs=row.subgraphs + 1),
        )
    patterns = sorted(
        map(_pattern, content.patterns.outcomes), key=lambda each: -(each.gain or 0.0)
    )
    ordered = tuple(rows[key] for key in sorted(rows))
    schemes = content.patterns.total_schemes
    return CacheReport(path, ordered, tuple(patterns), schemes, content.damaged)


def _pattern(outcome: PatternOutcome) -> CachedPattern:
    chosen = [choice for choice in outcome.choices if choice.is_chosen]
    gains = [choice.gain for choice in chosen if choice.gain is not None]
    return CachedPattern(
        outcome.signature, outcome.conditions.engine, len(outcome.choices), len(chosen),
        max(gains, default=None), without_attributes(outcome.structure),
        tuple(dict.fromkeys(shapes_in(outcome.signature))),
    )  # fmt: skip
