"""Write a model whose batch size is fixed, so that measurements can be repeated.

    python set_batch_size.py resnet50.onnx --batch-size 128 --output resnet50.bs128.onnx

`qdqtune shapes` does the same, and sets other sizes, too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import qdqtune


def main() -> int:
    """Read the command line, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="an ONNX model")
    parser.add_argument("--batch-size", type=int, default=128, help="default: 128")
    parser.add_argument("--output", type=Path, help="default: MODEL.bs128.onnx, next to MODEL")
    options = parser.parse_args()
    output = options.output or options.model.with_suffix(f".bs{options.batch_size}.onnx")
    try:
        report = qdqtune.fix_shapes(options.model, output, batch_size=options.batch_size)
    except qdqtune.QdqtuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
