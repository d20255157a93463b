"""Send images and inputs to control in pieces, of which it lacks some."""

from collections.abc import Iterable, Sequence
from typing import Literal

from gleaner.control.cli import render
from gleaner.control.cli.client import Control
from gleaner.control.cli.failures import Failure
from gleaner.control.models.images import PIECE_BYTES, PieceList


def send_missing(
    control: Control,
    pieces: Sequence[str],
    contents: Iterable[bytes],
    *,
    of: Literal["image", "input"],
    group: str | None,
    what: str,
    changed: Failure,
) -> None:
    """Send the pieces that control lacks. `contents` has all of them, in order; it is read only as far as needed.

    Raises `changed` if a piece arrives with another digest.
    """
    left = set(control.missing_pieces(PieceList(pieces=tuple(pieces), group=group), of))
    if not left:
        return
    with render.steps(f"{what} ({PIECE_BYTES // 2**20} MiB each)") as show_steps:
        show_steps(len(pieces) - len(left), len(pieces))
        for digest, piece in zip(pieces, contents, strict=False):
            if digest in left:
                if control.send_piece(piece, group, of) != digest:
                    raise changed
                left.discard(digest)
                show_steps(len(pieces) - len(left), len(pieces))
            if not left:
                return
