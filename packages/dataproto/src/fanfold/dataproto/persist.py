"""A batch to a file and back."""

from collections.abc import Iterable
from typing import Any, Self

from fanfold.dataproto import files
from fanfold.dataproto.errors import FileFormatError
from fanfold.dataproto.files import StrPath
from fanfold.dataproto.state import BatchState


class Persisting(BatchState):
    """Saving and loading."""

    __slots__ = ()

    def save(self, path: StrPath, *, allow_pickle: bool = False) -> None:
        """Write this batch to a file, atomically: readers see the old file or the whole new one.

        Tensors, arrays, and object cells or metadata made of numbers, strings, bytes, None, lists, tuples, dicts, sets,
        arrays and tensors need no pickle and come back exactly. Tensors are saved from and loaded to the CPU.

        Args:
            path: where to; its directory must exist
            allow_pickle: pickle other objects

        Raises:
            WireError: an object that needs pickle, or cannot be pickled; names column and row.
            OSError: the file cannot be written.

        >>> path = Path(tempfile.mkdtemp()) / "batch.safetensors"
        >>> DataProto.from_dict({"x": torch.arange(3)}, {"s": ["a", ("b", 1), None]}).save(path)
        >>> list(DataProto.load(path).non_tensor_batch["s"])
        ['a', ('b', 1), None]
        """
        self._rows()
        extra: dict[str, Any] = {}
        if self._merge:
            extra["merge"] = self._merge
        if self._auto_padding:
            extra["auto_padding"] = True
        if self.__dict__:
            extra["attributes"] = dict(self.__dict__)
        content = (self._tensors(), self.non_tensor_batch, self.meta_info, extra)
        files.save(path, content, allow_pickle=allow_pickle)

    @classmethod
    def load(cls, path: StrPath, *, columns: Iterable[str] | None = None, allow_pickle: bool = False) -> Self:
        """Return the batch in a file; tensors are mapped and read when they are used.

        What is written to them stays in this process. The file must not be cut off while it is in use; replacing it, as
        `save` does, is safe.

        Args:
            path: where from
            columns: read only these columns, of either kind
            allow_pickle: load objects that were pickled, which executes code from the file

        Raises:
            FileFormatError: truncated, foreign, of a newer version, or with pickled objects that are not allowed.
            MissingKeyError: a column that the file does not have.
            OSError: the file cannot be opened.

        >>> path = Path(tempfile.mkdtemp()) / "batch.safetensors"
        >>> DataProto.from_dict({"x": torch.arange(3), "y": torch.zeros(3)}).save(path)
        >>> list(DataProto.load(path, columns=["y"]).batch.keys())
        ['y']
        """
        tensors, arrays, meta, extra = files.Reader(path, allow_pickle=allow_pickle).parts(columns)
        made = cls._of_parts(tensors, arrays, meta)
        made._merge, made._auto_padding = dict(extra.get("merge", {})), bool(extra.get("auto_padding"))
        made.__dict__.update(extra.get("attributes", {}))
        try:
            made.check_consistency()
        except ValueError as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None
        return made

    def save_to_disk(self, filepath: StrPath, *, allow_pickle: bool = False) -> None:
        """Do the same as `save`.

        >>> DataProto.from_dict({"x": torch.arange(3)}).save_to_disk(Path(tempfile.mkdtemp()) / "batch")
        """
        self.save(filepath, allow_pickle=allow_pickle)

    @classmethod
    def load_from_disk(cls, filepath: StrPath, *, allow_pickle: bool = False) -> Self:
        """Do the same as `load` with all columns.

        >>> path = Path(tempfile.mkdtemp()) / "batch"
        >>> DataProto.from_dict({"x": torch.arange(3)}).save(path)
        >>> DataProto.load_from_disk(path)["x"]
        tensor([0, 1, 2])
        """
        return cls.load(filepath, allow_pickle=allow_pickle)
