"""One-shot quantization: rules place Q/DQ, data scales it, and it ships if it is faster."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from qdqtune.config import Callback, NameFilters
from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.graph.external_data import external_files, model_bytes
from qdqtune.graph.files import check_targets, load_model, save_model, write_bytes, write_text
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records.accuracy import DEFAULT_MIN_SQNR_DB
from qdqtune.records.inputs import InputRequest
from qdqtune.records.placement import Placement
from qdqtune.records.precision import Precision, precision_named
from qdqtune.records.quantization import QuantizeResult
from qdqtune.records.ranges import RangeMethod, method_named
from qdqtune.records.tuning import DEFAULT_THRESHOLD
from qdqtune.records.untrusted_files import real_path
from qdqtune.report.quantization import quantize_text
from qdqtune.workflows.autotuned_quantization import AutotunedQuantization
from qdqtune.workflows.model_argument import AnyModel, as_file, in_form_of
from qdqtune.workflows.quantize_steps import OneShotQuantization, QuantizeRequest
from qdqtune.workflows.sample_provider import Progress, check_method

_NOTHING_SAID = InputRequest()
_SUFFIX = ".quant.onnx"


def quantize(
    model: AnyModel,
    output: str | os.PathLike[str] | None = None,
    *,
    engine: str = registry.AUTO,
    engine_options: Mapping[str, str] | None = None,
    threads: int | None = None,
    dialect: str | None = None,
    quantize_mode: str = "int8",
    calibration_data: Any = None,
    calibration_samples: int | None = None,
    calibration_method: RangeMethod | str | None = None,
    inputs: InputRequest = _NOTHING_SAID,
    nodes_to_quantize: Sequence[str] = (),
    nodes_to_exclude: Sequence[str] = (),
    op_types_to_quantize: Sequence[str] = (),
    op_types_to_exclude: Sequence[str] = (),
    per_channel: bool = True,
    high_precision_dtype: Precision | str | None = None,
    min_sqnr_db: float | None = DEFAULT_MIN_SQNR_DB,
    performance_threshold: float | None = DEFAULT_THRESHOLD,
    optimize: bool = True,
    autotune: str | bool | None = None,
    autotune_output_dir: str | os.PathLike[str] | None = None,
    save_placement: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
) -> QuantizeResult:
    """Quantize a model by rules: calibrate, place, insert, verify, save.

    Where the engine runs here, the result is timed against the model as given, and shipped only if
    it is faster; otherwise the model comes back as it was, and the report says so.

    Args:
        model: A path, a proto or an `onnx_ir.Model`. One with Q/DQ is taken apart first; its
            scales are kept.
        output: Where to write; for a path, ``MODEL.quant.onnx`` beside it if nothing is said.
        engine: Whose dialect and rules; it need not be installed. A name may end in the version
            that is meant.
        engine_options: The engine's own options, for timing.
        threads: Threads per run, for timing; None is the engine's default.
        dialect: A dialect by name, instead of the engine's own on this machine.
        quantize_mode: One of the dialect's quant types: ``int8``, ``fp8``, …
        calibration_data: As `qdqtune.calibration.sample_set.open_samples` takes it; None is random.
        calibration_samples: Use at most this many samples of it.
        calibration_method: ``max``, ``entropy``, ``percentile`` or ``mse``; None tries all and
            takes what is closest to the float model.
        inputs: Shapes to run at; ranges and seed of random inputs.
        nodes_to_quantize: Regular expressions of node names: only these, and what is between.
        nodes_to_exclude: Regular expressions of node names that stay float.
        op_types_to_quantize: Regular expressions of op types: only these.
        op_types_to_exclude: Regular expressions of op types that stay float.
        per_channel: Whether weights have one scale per channel, or one in all.
        high_precision_dtype: The float type of what isn't quantized; None is the model's own.
        min_sqnr_db: How near to the float model every op and every output must be; ops that are
            not stay float. None asks for nothing.
        performance_threshold: The speedup below which the model is handed back as it was; None
            doesn't time it.
        optimize: Whether to fold and clean the graph first.
        autotune: Search for the placement by measuring, instead of by rules: ``quick``,
            ``default`` (or True) or ``extensive``. What was measured is what is written.
        autotune_output_dir: The run's folder, see `qdqtune.tune`; ``OUT_autotune`` beside the
            output if nothing is said.
        save_placement: Where to write the placement, too.
        force: Whether files may be replaced.
        progress: Called with the samples calibrated and their number, if known.
        callbacks: Called with how far steps are that take long.

    Raises:
        QdqtuneError: Whatever the user can act on.
    """
    name, dialect_choice = _target(engine, dialect, engine_options)
    request = QuantizeRequest(
        engine=name,
        dialect=dialect_choice if per_channel else replace(dialect_choice, per_channel=False),
        quant_type=quantize_mode,
        options=SessionOptions(threads=threads, engine_options=dict(engine_options or {})),
        inputs=inputs,
        data=calibration_data,
        samples=calibration_samples,
        method=_method(calibration_method, calibration_data),
        filters=NameFilters(
            nodes_to_quantize=nodes_to_quantize,
            nodes_to_exclude=nodes_to_exclude,
            op_types_to_quantize=op_types_to_quantize,
            op_types_to_exclude=op_types_to_exclude,
        ),
        precision=precision_named(high_precision_dtype),
        min_sqnr_db=min_sqnr_db,
        threshold=performance_threshold,
        optimize=optimize,
        progress=progress,
        callbacks=tuple(callbacks),
    )  # fmt: skip
    began = time.monotonic()
    with as_file(model) as path, _target_file(model, path, output) as target:
        check_targets(target, save_placement, path, force=force)
        bytes_before = model_bytes(path)
        run_folder = Path(autotune_output_dir or target.with_name(f"{target.stem}_autotune"))
        with TemporaryFolder(target.parent) as room:
            if autotune:
                made = AutotunedQuantization(request, path, _preset(autotune), run_folder).run()
            else:
                made = OneShotQuantization(request, path, room).run()
            if made.quantized is None:
                _hand_back(path, target, force=force)
            else:
                save_model(made.quantized, target, force=force)
        placement = Placement() if made.quantized is None else made.report.placement
        if save_placement is not None:
            text = placement.to_json(made.fingerprint)
            write_text(save_placement, text, force=force)
        result = in_form_of(model, target)
        report = replace(
            made.report,
            placement=placement,
            output=target if output is not None or result is target else None,
            bytes_before=bytes_before,
            bytes_after=model_bytes(target),
            seconds={**made.report.seconds, "total": time.monotonic() - began},
        )
    return QuantizeResult(result, report, quantize_text(report))


def _target(
    engine: str, dialect: str | None, options: Mapping[str, str] | None
) -> tuple[str, Dialect]:
    """The engine, and the dialect that is written for it."""
    name, version = registry.versioned(engine)
    if dialect is not None:
        family = dialect_named(dialect).name.partition("-")[0]
        return family if name == registry.AUTO else name, dialect_named(dialect)
    if name == registry.AUTO:
        name = registry.resolve(name)
    return name, native_dialect(name, version, options=options)


def _preset(autotune: str | bool) -> str:
    return "default" if autotune is True else str(autotune)


def _method(method: RangeMethod | str | None, data: Any) -> RangeMethod | None:
    chosen = method_named(method)
    check_method(chosen, data)
    return chosen


@contextmanager
def _target_file(
    model: AnyModel, path: Path, output: str | os.PathLike[str] | None
) -> Iterator[Path]:
    """Where the result is written; beside a model in memory only for a while."""
    if output is not None:
        yield Path(output)
    elif isinstance(model, str | os.PathLike):
        yield path.with_name(path.stem + _SUFFIX)
    else:
        with TemporaryFolder() as folder:
            yield folder / "quantized.onnx"


def _hand_back(path: Path, target: Path, *, force: bool) -> None:
    """Write the model as it was given: byte for byte if it is one file."""
    if real_path(target) == real_path(path):
        return
    if external_files(path):
        save_model(load_model(path), target, force=force)
    else:
        write_bytes(target, path.read_bytes(), force=force)
