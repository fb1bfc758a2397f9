"""The runtime: loaded engines, and inspectors that tell their layers."""

from __future__ import annotations

import json
import weakref
from typing import Any

from tests.stand_ins.tensorrt_api.bindings import Dims
from tests.stand_ins.tensorrt_api.computing import Computation
from tests.stand_ins.tensorrt_api.contexts import ExecutionContext
from tests.stand_ins.tensorrt_api.enums import (
    TYPE_OF_KIND,
    DataType,
    LayerInformationFormat,
    Severity,
    TensorIOMode,
)
from tests.stand_ins.tensorrt_api.situation import VERSION, strikes
from tests.stand_ins.trtexec_layers import layer_info


class Runtime:
    """Loads engines."""

    __slots__ = ("_log",)

    def __init__(self, logger: Any) -> None:
        self._log = logger

    def deserialize_cuda_engine(self, content: bytes) -> CudaEngine | None:
        """An engine from its bytes; None if they are none, or of another version."""
        header, _, model = content.partition(b"\n")
        wrong = ""
        try:
            told = json.loads(header)
            if tuple(told["version"]) != VERSION:
                wrong = "stdVersionRead == serializationVersion failed. Version tag does not match."
        except (ValueError, KeyError, TypeError):
            wrong = "plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed."
        if not wrong and strikes("deserialize_none", told["model"]):
            wrong = "stdCheckSumRead == checksum failed."
        if wrong:
            text = f"Error Code 1: Serialization (Serialization assertion {wrong})"
            self._log.log(Severity.ERROR, f"IRuntime::deserializeCudaEngine: {text}")
            return None
        return CudaEngine(told, model, self._log)


class CudaEngine:
    """A loaded engine; what begins with `stand_in` is for the stand-in alone."""

    __slots__ = (
        "__weakref__", "_contexts", "stand_in_computation", "stand_in_log", "stand_in_told",
    )  # fmt: skip

    def __init__(self, told: dict[str, Any], model: bytes, log: Any) -> None:
        self.stand_in_told = told
        self.stand_in_log = log
        self.stand_in_computation = Computation(model)
        self._contexts: weakref.WeakSet[ExecutionContext] = weakref.WeakSet()

    @property
    def _tensors(self) -> dict[str, dict[str, Any]]:
        told = self.stand_in_told
        return {value["name"]: value for value in (*told["inputs"], *told["outputs"])}

    @property
    def num_io_tensors(self) -> int:
        """How many inputs and outputs there are."""
        return len(self._tensors)

    def get_tensor_name(self, place: int) -> str:
        """The name of one."""
        return list(self._tensors)[place]

    def get_tensor_mode(self, name: str) -> Any:
        """Whether it is an input."""
        is_input = any(value["name"] == name for value in self.stand_in_told["inputs"])
        return TensorIOMode.INPUT if is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        """Its type."""
        return DataType[TYPE_OF_KIND[self._tensors[name]["kind"]]]

    def get_tensor_shape(self, name: str) -> Dims:
        """Its dims, -1 where open."""
        return Dims(self._tensors[name]["dims"])

    def is_shape_inference_io(self, name: str) -> bool:
        """Whether its values decide shapes, and have to lie in the host's memory."""
        return name in self.stand_in_told["values"]

    def create_execution_context(self) -> ExecutionContext | None:
        """Something that runs it."""
        if strikes("context_none", self.stand_in_told["model"]):
            text = "Error Code 2: OutOfMemory (Requested size was 34359738368 bytes.)"
            self.stand_in_log.log(Severity.ERROR, f"IExecutionContext::IExecutionContext: {text}")
            return None
        if self.stand_in_told["contexts"] == "one" and len(self._contexts):
            text = "Profile 0 has been chosen by another IExecutionContext."
            self.stand_in_log.log(Severity.ERROR, f"Error Code 3: API Usage Error ({text})")
            return None
        context = ExecutionContext(self)
        self._contexts.add(context)
        return context

    def create_engine_inspector(self) -> EngineInspector:
        """Something that tells its layers."""
        return EngineInspector(self)


class EngineInspector:
    """Tells layers."""

    __slots__ = ("_engine", "execution_context")

    def __init__(self, engine: CudaEngine) -> None:
        self._engine = engine
        self.execution_context: ExecutionContext | None = None

    def get_engine_information(self, form: Any) -> str:
        """All layers, as JSON."""
        assert form == LayerInformationFormat.JSON
        told = self._engine.stand_in_told
        detailed = told["verbosity"] == "detailed"
        return layer_info(told, VERSION, detailed=detailed, run=self.execution_context is not None)
