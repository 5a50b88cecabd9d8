"""A loader as what `torch.utils.data` knows: an iterable data set of whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from .engine.errors import missing_dependency

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError:
    raise missing_dependency("torch", "torch", "as_iterable_dataset()") from None

if TYPE_CHECKING:
    from .loader import DataLoader


class LoaderDataset(IterableDataset):  # type: ignore[misc]
    """The batches of a loader, for `torch.utils.data.DataLoader(dataset, batch_size=None)`.

    Its state is the loader's, so that `torchdata.stateful_dataloader.StatefulDataLoader` saves and resumes it.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """An epoch; it begins with the first batch that is asked for.

        Raises:
            RuntimeError: in a worker process of `torch.utils.data.DataLoader`.
        """
        if get_worker_info() is not None:
            _refuse_workers()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        yield from self.loader

    def __len__(self) -> int:
        """Number of batches of an epoch.

        Raises:
            TypeError: the length is not known before iterating.
        """
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """See `DataLoader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state)

    def __reduce__(self) -> NoReturn:
        _refuse_workers()


def _refuse_workers() -> NoReturn:
    raise RuntimeError(
        "a dataio loader cannot run inside a worker process of torch.utils.data.DataLoader: it has workers of its own, and each "
        "copy of it would deliver all the data again. Use num_workers=0, and set the number of workers with "
        "DATAIO_CPU_WORKERS and their kind with run(workers=...)"
    )
