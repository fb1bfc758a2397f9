"""The dialect of an engine on this machine; the engine need not be installed."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping

from qdqtune.engines import _registry as registry
from qdqtune.engines._entries import EngineEntry
from qdqtune.engines._hardware import Cpu, inherited_limit, limited_isa, read_cpu, saturates_u8s8
from qdqtune.engines._worker import probe_engine
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import EngineError, QdqtuneError
from qdqtune.records._measurement import EngineInfo


def native_dialect(
    engine: str,
    version: str = "",
    cpu: Cpu | None = None,
    options: Mapping[str, str] | None = None,
) -> Dialect:
    """Return the dialect in which an engine runs integer kernels with exact arithmetic.

    Args:
        engine: An engine's name.
        version: Its version; by default the installed one, or else the newest. If the package does
            not state its version, the engine is queried, provided that it can measure here.
        cpu: The CPU that will run the model; by default this machine's.
        options: The engine's options, as far as they determine the dialect.

    Raises:
        UsageError: If there is no such engine.
        EngineError: If it has no known dialect.
    """
    entry = registry.entry(engine)
    options = options or {}
    if entry.dialect_function:
        return dialect_named(_asked(entry, options))
    limit = options.get(entry.isa_option) or inherited_limit(entry.isa_variables)[1]
    saturating = saturates_u8s8(limited_isa((cpu or read_cpu()).isa, limit))
    number = re.match(r"\d+", version or _installed_version(entry, options))
    major = int(number.group()) if number is not None else None
    for dialect_choice in entry.dialects or registry.entry(registry.REFERENCE).dialects:
        if dialect_choice.fits(saturating, major):
            return dialect_named(dialect_choice.name)
    raise EngineError(
        f"The engine {engine} speaks no dialect on this CPU, in version {version or 'unknown'}.",
        "Its entry needs a dialect without conditions, as the last one.",
    )


def _installed_version(entry: EngineEntry, options: Mapping[str, str]) -> str:
    status = registry.available(entry.name, options)
    matters = any(dialect_choice.before_version is not None for dialect_choice in entry.dialects)
    if status.version or not matters or entry.program or not status.usable:
        return status.version
    answer = probe_engine(entry.name)
    return answer.version if isinstance(answer, EngineInfo) else ""


def _asked(entry: EngineEntry, options: Mapping[str, str]) -> str:
    try:
        return str(pkgutil.resolve_name(entry.dialect_function)(options))
    except QdqtuneError:
        raise
    except Exception as error:  # the function belongs to another package
        raise EngineError(
            f"The dialect of the engine {entry.name} is unknown: {type(error).__name__}: {error}",
            f"Its entry names {entry.dialect_function} to find it.",
        ) from None
