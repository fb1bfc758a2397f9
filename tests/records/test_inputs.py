"""What users type about inputs: names may hold every separator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest, shape_text


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        (["x:1x3x224x224"], {"x": (1, 3, 224, 224)}),
        (["x:1x3,y:4"], {"x": (1, 3), "y": (4,)}),
        (["x:1x3", "y:4"], {"x": (1, 3), "y": (4,)}),
        (["x:[1,3,224,224]"], {"x": (1, 3, 224, 224)}),
        (["x:[1, 3],y:[2]"], {"x": (1, 3), "y": (2,)}),
        (["x:1x3, y:4"], {"x": (1, 3), "y": (4,)}),
        (["1x3x224x224"], {"": (1, 3, 224, 224)}),
        (["[1,3]"], {"": (1, 3)}),
        (["sr:[]"], {"sr": ()}),
        (["serving_default_x:0:1x3"], {"serving_default_x:0": (1, 3)}),
        (["a:0:1x3,b:1:4X5"], {"a:0": (1, 3), "b:1": (4, 5)}),
        (["gpu_0/data_0:1x3"], {"gpu_0/data_0": (1, 3)}),
        (["a,b:1x3,xx:2x2"], {"a,b": (1, 3), "xx": (2, 2)}),
        (["2x2:3x3"], {"2x2": (3, 3)}),
        (["x:?x3x?"], {"x": (None, 3, None)}),
        (["x:2", "x:2"], {"x": (2,)}),
        (["image:1,3,64,64"], {"image": (1, 3, 64, 64)}),
        (["1, 3,64,64"], {"": (1, 3, 64, 64)}),
        (["a:1,2,b:3,?,c:4"], {"a": (1, 2), "b": (3, None), "c": (4,)}),
        (["a:1,2:3x4"], {"a": (1,), "2": (3, 4)}),
        (["a:1x2 b:1x3"], {"a": (1, 2), "b": (1, 3)}),
        (["a:1x2  b:[1, 3] , c d:4"], {"a": (1, 2), "b": (1, 3), "c d": (4,)}),
    ],
)
def test_shapes(texts: list[str], shapes: dict[str, tuple[int | None, ...]]) -> None:
    assert InputRequest.from_text(shapes=texts).shapes == shapes


def test_dims_and_ranges() -> None:
    request = InputRequest.from_text(
        dims=["N=8,batch size=2", "a=b=3"],
        ranges=["ids:0:999,x:-1.5:1e3", "s:0:0:5", "-.5:+.5"],
        seed=4,
    )
    assert request.dims == {"N": 8, "batch size": 2, "a=b": 3}
    assert request.ranges == {"ids": (0, 999), "x": (-1.5, 1000.0), "s:0": (0, 5), "": (-0.5, 0.5)}
    assert request.seed == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shapes": ["x"]}, "can't be read as a shape"),
        ({"shapes": ["x:"]}, "can't be read as a shape"),
        ({"shapes": ["x:1x3x"]}, "can't be read as a shape"),
        ({"shapes": ["x:axb"]}, "can't be read as a shape"),
        ({"shapes": ["x:[1,b]"]}, "can't be read as a shape"),
        ({"shapes": ["x:[1x3]"]}, "can't be read as a shape"),
        ({"shapes": [""]}, "shape is missing"),
        ({"shapes": ["x:0x3"]}, "0x3 of the input 'x' has a size below 1"),
        ({"shapes": ["-1x3"]}, "-1x3 given has a size below 1"),
        ({"shapes": ["x:1", "x:2"]}, "'x' is given twice"),
        ({"dims": ["N"]}, "can't be read as a dim"),
        ({"dims": ["N=x"]}, "can't be read as a dim"),
        ({"dims": ["N=0"]}, "'N' can't be 0"),
        ({"dims": ["N=-3"]}, "'N' can't be -3"),
        ({"dims": ["N=2", "N=3"]}, "'N' is given twice"),
        ({"ranges": ["x:1"]}, "can't be read as a range"),
        ({"ranges": ["x:a:b"]}, "can't be read as a range"),
        ({"ranges": ["x:5:1"]}, "no numbers from 5 to 1"),
        ({"ranges": ["x:0:1e999"]}, "no numbers from 0 to inf"),
        ({"ranges": ["x:0:1", "x:0:2"]}, "'x' is given twice"),
    ],
)
def test_mistakes(given: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        InputRequest.from_text(**given)  # type: ignore[arg-type]


NAMES = st.text("ax0:/,=[]._", min_size=1, max_size=8).filter(
    lambda name: name[0] in "ax" and name[-1] in "ax"
)
SHAPES = st.lists(st.integers(1, 999), min_size=1, max_size=5).map(tuple)


@given(st.dictionaries(NAMES, SHAPES, min_size=1, max_size=1), st.booleans())
def test_a_name_of_separators_is_read_back(
    shapes: dict[str, tuple[int, ...]], listed: bool
) -> None:
    ((name, shape),) = shapes.items()
    if any(part.isdigit() for part in name.replace("x", ",").split(",") if part):
        return  # such as `a:0,x`: it ends in what is a shape itself
    text = f"[{','.join(map(str, shape))}]" if listed else shape_text(shape)
    assert InputRequest.from_text(shapes=[f"{name}:{text}"]).shapes == shapes
