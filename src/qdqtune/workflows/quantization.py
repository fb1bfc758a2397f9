"""One-shot quantization: rules place Q/DQ, data scales it, and it ships if it is faster."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from qdqtune.config import QuantizeConfig
from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.graph.external_data import external_files, model_bytes
from qdqtune.graph.files import check_targets, load_model, save_model, write_bytes, write_text
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.options import configured_to_file
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records.placement import Placement
from qdqtune.records.quantization import QuantizeResult
from qdqtune.records.untrusted_files import real_path
from qdqtune.report.quantization import quantize_text
from qdqtune.workflows.autotuned_quantization import AutotunedQuantization
from qdqtune.workflows.model_argument import AnyModel, as_file, in_form_of
from qdqtune.workflows.quantize_steps import OneShotQuantization, QuantizeRequest
from qdqtune.workflows.sample_provider import check_method

_SUFFIX = ".quant.onnx"


@configured_to_file(QuantizeConfig)
def quantize(
    model: AnyModel, output: str | os.PathLike[str] | None, config: QuantizeConfig
) -> QuantizeResult:
    """Quantize a model by rules: calibrate, place, insert, verify, save.

    Where the engine runs here, the result is timed against the model as given, and shipped only if
    it is faster; otherwise the model comes back as it was, and the report says so.

    Args:
        model: A path, a proto or an `onnx_ir.Model`. One with Q/DQ is taken apart first; its
            scales are kept.
        output: Where to write; for a path, ``MODEL.quant.onnx`` beside it if nothing is said.
        config: What is asked for; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    request = _request(config)
    began = time.monotonic()
    with as_file(model) as path, _target_file(model, path, output) as target:
        save_placement, force = config.save_placement, config.force
        check_targets(target, save_placement, path, force=force)
        bytes_before = model_bytes(path)
        with TemporaryFolder(target.parent) as room:
            if config.autotune:
                preset = "default" if config.autotune is True else str(config.autotune)
                run = config.autotune_output_dir or target.with_name(f"{target.stem}_autotune")
                made = AutotunedQuantization(request, path, preset, Path(run)).run()
            else:
                made = OneShotQuantization(request, path, room).run()
            if made.quantized is None:
                _hand_back(path, target, force=force)
            else:
                save_model(made.quantized, target, force=force)
        placement = Placement() if made.quantized is None else made.report.placement
        if save_placement is not None:
            write_text(save_placement, placement.to_json(made.fingerprint), force=force)
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


def _request(config: QuantizeConfig) -> QuantizeRequest:
    """Look up what a config refers to."""
    name, dialect = _target(config.engine, config.dialect, config.engine_options)
    if config.range_method is not None:
        check_method(config.range_method, config.calibration_data)
    return QuantizeRequest(
        config,
        name,
        dialect if config.per_channel else replace(dialect, per_channel=False),
        SessionOptions(config.threads, dict(config.engine_options or {})),
    )


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
