"""Writes a policy as ONNX, as a torch.export program or as a numpy file, and reads it back to be compared."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from ganglion.errors import UserError
from ganglion.export import reader
from ganglion.export.policy import PolicyModule, Port
from ganglion.export.program import program

Array = NDArray[Any]
Runner = Callable[[Sequence[Array]], Sequence[Array]]
READER = "ganglion_policy.py"  # what reads a numpy file, put beside it


def write_torch(policy: PolicyModule, exported: ExportedProgram, rows: int, out: Path) -> list[Path]:
    torch.export.save(exported, out)
    return [out]


def read_torch(policy: PolicyModule, rows: int, out: Path) -> Runner:
    loaded = torch.export.load(out).module()

    def run(given: Sequence[Array]) -> Sequence[Array]:
        with torch.no_grad():
            return [x.numpy() for x in loaded(*(torch.from_numpy(x) for x in given))]

    return run


def write_onnx(policy: PolicyModule, exported: ExportedProgram, rows: int, out: Path) -> list[Path]:
    onnx_package("onnx", "onnxscript")
    names = {"input_names": [p.name for p in policy.inputs], "output_names": [p.name for p in policy.outputs]}
    level = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(exported, (), dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
            assert made is not None
            made.save(str(out), external_data=False)
    except Exception as error:
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise UserError(f"--to onnx: {type(policy.algo).__name__} cannot be written as ONNX: {why}.") from error
    finally:
        logging.disable(level)
    return [out]


def read_onnx(policy: PolicyModule, rows: int, out: Path) -> Runner:
    onnxruntime = onnx_package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}

    def run(given: Sequence[Array]) -> Sequence[Array]:
        named = {port.name: x for port, x in zip(policy.inputs, given, strict=True) if port.name in taken}
        said: Sequence[Array] = session.run(None, named)
        return said

    return run


def onnx_package(*names: str) -> Any:
    try:
        return [__import__(name) for name in names][-1]
    except ImportError as error:
        raise UserError('--to onnx needs packages. Try pip install "ganglion[onnx]"') from error


def write_numpy(policy: PolicyModule, exported: ExportedProgram, rows: int, out: Path) -> list[Path]:
    made = program(exported)
    unknown = sorted({op.name for op in made.ops} - reader.OPS.keys())
    if unknown:
        raise UserError(f"--to numpy: its reader does not know {', '.join(unknown)}. Accepted: --to torch, --to onnx.")
    about = {
        "batch": rows,
        "inputs": [described(port) for port in policy.inputs],
        "outputs": [described(port) for port in policy.outputs],
        "places": made.inputs,
        "results": made.outputs,
        "ops": [(op.name, op.args, op.named, op.out, op.dtype) for op in made.ops],
    }
    arrays = {f"c{place}": x for place, x in made.constants.items()}
    with open(out, "wb") as file:
        np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    beside = out.with_name(READER)
    shutil.copyfile(Path(reader.__file__), beside)
    return [out, beside]


def read_numpy(policy: PolicyModule, rows: int, out: Path) -> Runner:
    loaded: Any = reader.NumpyPolicy(out)  # type: ignore[no-untyped-call]
    seen = len(policy.inputs) - (len(policy.memory) + 1 if policy.memory else 0)

    def run(given: Sequence[Array]) -> Sequence[Array]:
        if policy.memory:
            loaded.memory, loaded.first = list(given[seen:-1]), given[-1]
        said: Sequence[Array] = loaded.all(*given[:seen])
        return said

    return run


def described(port: Port) -> dict[str, Any]:
    return {**port._asdict(), "shape": list(port.shape)}


KINDS = {
    "onnx": (".onnx", write_onnx, read_onnx),
    "torch": (".pt2", write_torch, read_torch),
    "numpy": (".npz", write_numpy, read_numpy),
}
