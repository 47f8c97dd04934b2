import io

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from fanfold.dataproto import DataProto
from fanfold.dataproto.show import size_text


def sample() -> DataProto:
    jagged = torch.nested.as_nested_tensor([torch.arange(3), torch.arange(1)], layout=torch.jagged)
    inside = TensorDict({"q": torch.zeros(2, 3), "v": NonTensorData(1, batch_size=[2])}, batch_size=[2])
    return DataProto.from_dict(
        {"x": torch.zeros(2, 2), "j": jagged, "t": inside}, {"n": np.arange(2)}, {"cfg": {"a": 1}, "l": [1, "a"]}
    )


def test_one_screen() -> None:
    assert repr(sample()).splitlines() == [
        "DataProto: 2 rows, 112 B",
        "  column  kind           dtype    row shape  device  size",
        "  x       tensor         float32  [2]        cpu     16 B",
        "  j       jagged tensor  int64    [*]        cpu     56 B",
        "  t.q     tensor         float32  [3]        cpu     24 B",
        "  t.v     objects                 []                 0 B",
        "  n       array          int64    []                 16 B",
        "  meta_info: cfg={'a': 1}, l=[1, 'a']",
    ]
    many = DataProto.from_dict({f"c{at}": torch.zeros(1) for at in range(100)})
    assert len(repr(many).splitlines()) == 26
    assert "... and 77 more columns" in repr(many)
    assert repr(DataProto()) == "DataProto: 0 rows, 0 B"


def test_html_is_escaped() -> None:
    text = DataProto.from_dict({"<b>": torch.zeros(1)}, meta_info={"<i>": "&"})._repr_html_()
    assert "<td>&lt;b&gt;</td><td>tensor</td><td>float32</td><td>[]</td><td>cpu</td><td>4 B</td>" in text
    assert "meta_info: &lt;i&gt;=&#x27;&amp;&#x27;" in text
    assert text.count("<tr>") == text.count("</tr>") == 2


def test_data_info_is_the_same_every_time() -> None:
    assert sample().get_data_info().splitlines() == [
        "x: tensor float32 [2, 2] cpu",
        "j: jagged tensor int64 [2, *] cpu",
        "t.q: tensor float32 [2, 3] cpu",
        "t.v: objects [2]",
        "n: array int64 [2]",
        "meta_info cfg: dict of a: int",
        "meta_info l: list of int, str",
    ]
    assert DataProto.from_dict(None, {"s": ["a"]}).get_data_info() == "s: objects str [1]"


def test_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    sample().print_size("before")
    assert capsys.readouterr().out == "before: 2 rows, tensors 96 B, non-tensors 16 B\n"
    elsewhere = io.StringIO()
    sample()[:1].print_size(file=elsewhere)
    assert elsewhere.getvalue() == "1 rows, tensors 60 B, non-tensors 8 B\n"
    assert DataProto.from_dict({"x": torch.zeros(1000, 2)})[:3].nbytes == 24
    objects = DataProto.from_dict(None, {"s": ["x" * 1000, np.zeros(100)]})
    assert objects.nbytes > 1800
    assert [size_text(size) for size in (0, 1023, 1024, 5 * 1024**3, 3000 * 1024**4)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "3000.0 TiB",
    ]
