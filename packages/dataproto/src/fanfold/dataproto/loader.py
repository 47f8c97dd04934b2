"""Mini-batches over a batch: shuffled or not, resumable, at the speed of slicing.

Letters: `B` rows, `M` rows of a mini-batch.
"""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import torch

from fanfold.dataproto import indexing
from fanfold.dataproto.errors import ColumnTypeError, SplitError
from fanfold.dataproto.shape import Shaping

P = TypeVar("P", bound=Shaping)
_CUT_AT_ONCE = 256
_SEED_LIMIT = 2**62


class MiniBatches(Iterator[P], Generic[P]):
    """An iterator over mini-batches that can say where it is and go on from there.

    Made by `DataProto.mini_batches` and `DataProto.make_iterator`. Unshuffled mini-batches are views of the batch;
    shuffled ones are copies of its rows. The process-wide random state is neither read nor changed.
    """

    def __init__(  # noqa: PLR0913 (a position and five choices)
        self,
        batch: P,
        size: int,
        *,
        epochs: int = 1,
        shuffle: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
    ) -> None:
        """Start at the first mini-batch of the first epoch; see `DataProto.mini_batches`."""
        self._batch, self._rows = batch, len(batch)
        self._size = indexing.at_least("mini_batch_size", size, 1)
        self._epochs = indexing.at_least("epochs", epochs, 0)
        self._shuffle, self._drop_last = shuffle, drop_last
        self._seed = 0 if seed is None else indexing.at_least("seed", seed, -_SEED_LIMIT)
        if shuffle and seed is None:
            self._seed = secrets.randbelow(_SEED_LIMIT)
        full, rest = divmod(self._rows, self._size)
        self._per_epoch = full + bool(rest and not drop_last)
        self._epoch = self._step = 0
        self._order: torch.Tensor | None = None
        self._cut: list[P] = []  # the next mini-batches, last one first

    def __len__(self) -> int:
        """Mini-batches of all epochs together."""
        return self._per_epoch * self._epochs

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> P:
        if not self._cut:
            self._cut_more()
        self._step += 1
        return self._cut.pop()

    def _cut_more(self) -> None:
        if self._step >= self._per_epoch or self._epoch >= self._epochs:
            self._next_epoch()
        self._cut = [self._shuffled()] if self._shuffle else self._window()

    def _next_epoch(self) -> None:
        if self._epoch + 1 >= self._epochs or not self._per_epoch:
            self._epoch, self._step = self._epochs, 0
            raise StopIteration
        self._epoch, self._step, self._order, self._cut = self._epoch + 1, 0, None, []

    def _window(self) -> list[P]:
        # Views of many mini-batches in one go cost a fraction of as many slices.
        start = self._step * self._size
        stop = min(self._rows, start + self._size * _CUT_AT_ONCE)
        window = self._batch if (start, stop) == (0, self._rows) else self._batch.slice(start, stop)
        return window.split(self._size)[: self._per_epoch - self._step][::-1]

    def _shuffled(self) -> P:
        if self._order is None:
            generator = torch.Generator().manual_seed((self._seed + self._epoch) % _SEED_LIMIT)
            self._order = torch.randperm(self._rows, generator=generator)
        start = self._step * self._size
        return self._batch.select_idxs(self._order[start : start + self._size])

    def state_dict(self) -> dict[str, int]:
        """Return the position: what `load_state_dict` needs to go on with the next mini-batch.

        >>> batches = DataProto.from_dict({"x": torch.arange(4)}).mini_batches(2, shuffle=True, seed=1)
        >>> _ = next(batches)
        >>> batches.state_dict()
        {'epoch': 0, 'step': 1, 'seed': 1, 'rows': 4, 'mini_batch_size': 2}
        """
        return {
            "epoch": self._epoch,
            "step": self._step,
            "seed": self._seed,
            "rows": self._rows,
            "mini_batch_size": self._size,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position that `state_dict` returned, of an iterator over as many rows with the same mini-batch size.

        Raises:
            SplitError: the position belongs to another iterator.

        >>> batch = DataProto.from_dict({"x": torch.arange(4)})
        >>> batches = batch.mini_batches(1, shuffle=True, seed=1)
        >>> first = next(batches)
        >>> again = batch.mini_batches(1, shuffle=True)
        >>> again.load_state_dict(batches.state_dict())
        >>> [part["x"].item() for part in batches] == [part["x"].item() for part in again]
        True
        """
        mine = self.state_dict()
        if state.keys() != mine.keys():
            raise SplitError(f"the position has the keys {sorted(state)}; expected {sorted(mine)}")
        for name in ("rows", "mini_batch_size"):
            if state[name] != mine[name]:
                raise SplitError(f"the position was saved with {name} {state[name]}; this iterator has {mine[name]}")
        if not (0 <= state["epoch"] <= self._epochs and 0 <= state["step"] <= self._per_epoch):
            raise SplitError(
                f"the position is epoch {state['epoch']}, step {state['step']}, which this iterator does not have"
            )
        self._epoch, self._step, self._seed = state["epoch"], state["step"], state["seed"]
        self._order, self._cut = None, []


class Loading(Shaping):
    """Iteration in mini-batches."""

    __slots__ = ()

    def mini_batches(
        self,
        mini_batch_size: int,
        *,
        epochs: int = 1,
        shuffle: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
    ) -> MiniBatches[Self]:
        """Return an iterator over mini-batches.

        Args:
            mini_batch_size: M
            epochs: how often the whole batch is gone through
            shuffle: in a new order in each epoch
            seed: makes the orders repeatable; None draws one (see `state_dict`)
            drop_last: leave out the last mini-batch of an epoch where it would be smaller

        >>> batch = DataProto.from_dict({"x": torch.arange(5)})
        >>> [part["x"].tolist() for part in batch.mini_batches(2)]
        [[0, 1], [2, 3], [4]]
        """
        return MiniBatches(self, mini_batch_size, epochs=epochs, shuffle=shuffle, seed=seed, drop_last=drop_last)

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> MiniBatches[Self]:
        """Return an iterator over mini-batches of equal size.

        Args:
            mini_batch_size: M, which must divide B unless `drop_last` is given
            epochs: how often the whole batch is gone through
            seed: makes a shuffled order repeatable
            dataloader_kwargs: `shuffle` and `drop_last`

        Raises:
            SplitError: M does not divide B.
            ColumnTypeError: another keyword of a data loader.

        >>> batch = DataProto.from_dict({"x": torch.arange(4)})
        >>> [part["x"].tolist() for part in batch.make_iterator(2, epochs=1)]
        [[0, 1], [2, 3]]
        """
        size, options = indexing.at_least("mini_batch_size", mini_batch_size, 1), dict(dataloader_kwargs or {})
        unknown = sorted(options.keys() - {"shuffle", "drop_last"})
        if unknown:
            raise ColumnTypeError(
                f"dataloader_kwargs has {unknown}; expected shuffle and drop_last; no workers load rows."
            )
        if len(self) % size and not options.get("drop_last"):
            raise SplitError(
                f"{len(self)} rows cannot be divided into mini-batches of {size}; pass "
                'dataloader_kwargs={"drop_last": True}, or use mini_batches, whose last one may be smaller'
            )
        return self.mini_batches(
            size,
            epochs=epochs,
            shuffle=bool(options.get("shuffle", False)),
            seed=seed,
            drop_last=bool(options.get("drop_last", False)),
        )
