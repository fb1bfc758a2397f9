"""Which dialect to write, if nobody says."""

from __future__ import annotations

from qdqtune.autotune.errors import AutotunerError
from qdqtune.engines import registry
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records.errors import EngineError, UsageError


def target_dialect(asked: Dialect | str | None, quant_type: str) -> Dialect:
    """The dialect that was asked for, or that of the engine on this machine.

    Args:
        asked: A dialect, its name, or None. If the engine's own has no such quant type, one that
            does is taken.
        quant_type: What it must be able to write.

    Raises:
        AutotunerError: If there is no such dialect, or it has no such quant type.
    """
    if asked is None:
        native = _native()
        others = map(native_dialect, (registry.GUIDES_MODULE, registry.REFERENCE))
        return next((each for each in (native, *others) if quant_type in each.formats), native)
    try:
        found = dialect_named(asked) if isinstance(asked, str) else asked
        found.format_of(quant_type)
    except UsageError as error:
        raise AutotunerError(error.what, error.hint) from None
    return found


def _native() -> Dialect:
    try:
        return native_dialect(registry.resolve(registry.AUTO))
    except EngineError:
        return native_dialect(registry.GUIDES_MODULE)
