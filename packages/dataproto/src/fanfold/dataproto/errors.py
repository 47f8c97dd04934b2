"""What this package raises: every class is a `DataProtoError` and the built-in that fits."""


class FanfoldError(Exception):
    """Root of every error that a fanfold package raises on purpose."""


class DataProtoError(FanfoldError):
    """Root of every error that this package raises on purpose."""


class ColumnError(DataProtoError, ValueError):
    """A column (or a set of columns) cannot be part of a batch: wrong rows, wrong shape, wrong dtype, wrong layout."""


class ColumnTypeError(DataProtoError, TypeError):
    """A value of this type cannot be a column, an index or an argument here."""


class MissingKeyError(DataProtoError, KeyError):
    """A name that is in none of the parts it was looked for in."""

    def __str__(self) -> str:
        """Return the sentence itself; `KeyError` would show it quoted."""
        return str(self.args[0]) if self.args else ""


class RowIndexError(DataProtoError, IndexError):
    """A row number, mask or range that does not fit the rows of the batch."""


class SplitError(DataProtoError, ValueError):
    """A batch cannot be divided (or padded, folded, repeated) in the way that was asked for."""


class MergeError(DataProtoError, ValueError):
    """Batches cannot become one: columns, rows or metadata contradict each other."""


class WireError(DataProtoError, ValueError):
    """Bytes that are no batch, or a batch that cannot become bytes."""


class FileFormatError(WireError):
    """A file that is truncated, foreign, of a newer version, or needs a permission that was not given."""


class SchemaError(DataProtoError, ValueError):
    """A batch is not what a schema says; names the first offending column and row."""


class NotEqualError(DataProtoError, AssertionError):
    """Two values that a check expected to be equal are not; names where."""


class RemoteError(DataProtoError, RuntimeError):
    """A part of a batch that is elsewhere could not be had."""


class RemoteTimeoutError(RemoteError, TimeoutError):
    """A part of a batch that is elsewhere did not arrive within the limit."""
