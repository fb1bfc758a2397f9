"""CUDA's runtime as its Python bindings have it: every call returns an error, then results."""

from __future__ import annotations

import enum
from typing import Any

from tests.stand_ins.tensorrt_api import device
from tests.stand_ins.tensorrt_api.situation import strikes


class cudaError_t(enum.IntEnum):  # noqa: N801
    """What calls return."""

    cudaSuccess = 0  # noqa: N815
    cudaErrorInvalidValue = 1  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815
    cudaErrorInvalidDevice = 101  # noqa: N815
    cudaErrorInvalidResourceHandle = 400  # noqa: N815
    cudaErrorNotReady = 600  # noqa: N815
    cudaErrorStreamCaptureUnsupported = 900  # noqa: N815
    cudaErrorStreamCaptureInvalidated = 901  # noqa: N815


class cudaMemcpyKind(enum.IntEnum):  # noqa: N801
    """From where to where."""

    cudaMemcpyHostToHost = 0  # noqa: N815
    cudaMemcpyHostToDevice = 1  # noqa: N815
    cudaMemcpyDeviceToHost = 2  # noqa: N815
    cudaMemcpyDeviceToDevice = 3  # noqa: N815


class cudaStreamCaptureMode(enum.IntEnum):  # noqa: N801
    """Who else may not do what while a stream is captured."""

    cudaStreamCaptureModeGlobal = 0  # noqa: N815
    cudaStreamCaptureModeThreadLocal = 1  # noqa: N815
    cudaStreamCaptureModeRelaxed = 2  # noqa: N815


class _Handle:
    """What a call returns that makes something."""

    def __init__(self) -> None:
        self._number = device.new_handle()

    def __int__(self) -> int:
        return self._number


class _Properties:
    name = device.NAME.encode()
    major, minor = device.CAPABILITY


class _Event(_Handle):
    def __init__(self) -> None:
        super().__init__()
        self.stream: device.Stream | None = None
        self.at_ms = 0.0


_OK = cudaError_t.cudaSuccess
_last_error: list[cudaError_t] = [_OK]
Result = tuple[Any, ...]


def _failed(error: cudaError_t, *results: Any) -> Result:
    _last_error[0] = error
    return (error, *results)


def _stream(stream: Any) -> device.Stream:
    return device.streams[int(stream)]


def cudaGetLastError() -> Result:  # noqa: N802
    error, _last_error[0] = _last_error[0], _OK
    return (error,)


def cudaSetDevice(number: int) -> Result:  # noqa: N802
    if strikes("no_device"):
        return _failed(cudaError_t.cudaErrorNoDevice)
    if not 0 <= number < device.GPUS:
        return _failed(cudaError_t.cudaErrorInvalidDevice)
    return (_OK,)


def cudaGetDeviceProperties(number: int) -> Result:  # noqa: N802
    if not 0 <= number < device.GPUS:
        return _failed(cudaError_t.cudaErrorInvalidDevice, None)
    return _OK, _Properties()


def cudaMalloc(size: int) -> Result:  # noqa: N802
    address = device.allocate(size)
    if address is None:
        return _failed(cudaError_t.cudaErrorMemoryAllocation, None)
    return _OK, address


def cudaFree(address: int) -> Result:  # noqa: N802
    return (_OK,) if device.free(address) else _failed(cudaError_t.cudaErrorInvalidValue)


def cudaMemcpy(target: int, source: int, size: int, kind: cudaMemcpyKind) -> Result:  # noqa: N802
    to_gpu = kind in (
        cudaMemcpyKind.cudaMemcpyHostToDevice,
        cudaMemcpyKind.cudaMemcpyDeviceToDevice,
    )
    from_gpu = kind >= cudaMemcpyKind.cudaMemcpyDeviceToHost
    if device.owns(target, size) != to_gpu or device.owns(source, size) != from_gpu:
        return _failed(cudaError_t.cudaErrorInvalidValue)
    device.copy(target, source, size)
    return (_OK,)


def cudaStreamCreate() -> Result:  # noqa: N802
    stream = _Handle()
    device.streams[int(stream)] = device.Stream()
    return _OK, stream


def cudaStreamSynchronize(stream: Any) -> Result:  # noqa: N802
    found = _stream(stream)
    if found.capturing is not None:
        found.is_spoiled = True
        return _failed(cudaError_t.cudaErrorStreamCaptureUnsupported)
    found.wait()
    return (_OK,)


def cudaEventCreate() -> Result:  # noqa: N802
    return _OK, _Event()


def cudaEventRecord(event: _Event, stream: Any) -> Result:  # noqa: N802
    found = _stream(stream)
    if found.capturing is not None:
        found.is_spoiled = True
        return _failed(cudaError_t.cudaErrorStreamCaptureUnsupported)
    event.stream, event.at_ms = found, found.now_ms
    return (_OK,)


def cudaEventElapsedTime(start: _Event, end: _Event) -> Result:  # noqa: N802
    if start.stream is None or end.stream is None:
        return _failed(cudaError_t.cudaErrorInvalidResourceHandle, None)
    if max(start.at_ms, end.at_ms) > end.stream.waited_ms:
        return _failed(cudaError_t.cudaErrorNotReady, None)
    return _OK, end.at_ms - start.at_ms


def cudaStreamBeginCapture(stream: Any, _mode: cudaStreamCaptureMode) -> Result:  # noqa: N802
    found = _stream(stream)
    if found.capturing is not None:
        return _failed(cudaError_t.cudaErrorStreamCaptureUnsupported)
    found.capturing, found.is_spoiled = device.Graph(), False
    return (_OK,)


def cudaStreamEndCapture(stream: Any) -> Result:  # noqa: N802
    found = _stream(stream)
    captured, found.capturing = found.capturing, None
    if captured is None:
        return _failed(cudaError_t.cudaErrorInvalidValue, None)
    if found.is_spoiled:
        return _failed(cudaError_t.cudaErrorStreamCaptureInvalidated, None)
    return _OK, _kept(captured)


def cudaGraphInstantiateWithFlags(graph: _Handle, _flags: int) -> Result:  # noqa: N802
    if int(graph) not in device.graphs:
        return _failed(cudaError_t.cudaErrorInvalidResourceHandle, None)
    return _OK, _kept(device.Graph(list(device.graphs[int(graph)].works)))


def cudaGraphLaunch(graph: _Handle, stream: Any) -> Result:  # noqa: N802
    if int(graph) not in device.graphs:
        return _failed(cudaError_t.cudaErrorInvalidResourceHandle)
    for work in device.graphs[int(graph)].works:
        _stream(stream).put(work)
    return (_OK,)


def cudaGraphDestroy(graph: _Handle) -> Result:  # noqa: N802
    gone = device.graphs.pop(int(graph), None)
    return _failed(cudaError_t.cudaErrorInvalidResourceHandle) if gone is None else (_OK,)


cudaGraphExecDestroy = cudaGraphDestroy  # noqa: N816


def _kept(graph: device.Graph) -> _Handle:
    handle = _Handle()
    device.graphs[int(handle)] = graph
    return handle
