"""Arrays of records, in which replays keep their state, because compiled functions take each array as several separate
arguments."""

from typing import Any, Protocol

import numpy as np


class RecordArray(Protocol):
    """An array of records, whose fields NumPy and the compiler know, but a type checker does not."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, at: Any, /) -> Any: ...

    def __setitem__(self, at: Any, what: Any, /) -> None: ...


def record_type(*, integers: str = "", floats: str = "", flags: str = "", **inner: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a record. Names of fields are separated by blanks, and `inner` fields are records
    themselves."""
    kinds = ((integers, "i8"), (floats, "f8"), (flags, "?"))
    fields: list[tuple[str, Any]] = [(name, kind) for names, kind in kinds for name in names.split()]
    return np.dtype([*fields, *inner.items()])
