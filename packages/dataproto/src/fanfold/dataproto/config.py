"""The process-wide switch for batches that divide unevenly."""

import os
from typing import ClassVar

from fanfold.dataproto.errors import ColumnTypeError

AUTO_PADDING_ENVIRONMENT = "FANFOLD_AUTO_PADDING"


class _Switch(type):
    _explicit: ClassVar[bool | None] = None

    @property
    def auto_padding(cls) -> bool:
        """Whether every batch of this process may be divided unevenly by `chunk`.

        What was set here counts; while nothing was set, the environment variable FANFOLD_AUTO_PADDING (1 or true).
        """
        if _Switch._explicit is not None:
            return _Switch._explicit
        return os.environ.get(AUTO_PADDING_ENVIRONMENT, "").strip().lower() in {"1", "true"}

    @auto_padding.setter
    def auto_padding(cls, enabled: bool | None) -> None:
        if not isinstance(enabled, bool | None):
            raise ColumnTypeError(f"auto_padding is {enabled!r}; expected True, False, or None for the environment")
        _Switch._explicit = enabled


class DataProtoConfig(metaclass=_Switch):
    """Settings of this process for all batches.

    `auto_padding` (read and write): whether `chunk` may divide unevenly. `auto_padding_key`: the `meta_info` key that
    says so for one batch; `DataProto.from_dict(..., auto_padding=True)` says it without a key.

    >>> DataProtoConfig.auto_padding
    False
    """

    auto_padding_key: ClassVar[str] = "_auto_padding"
