"""The time for which a job has computed without writing anything, summed over its slices."""

from dataclasses import dataclass


@dataclass(slots=True)
class Silence:
    """One job's silence. Instants are computing times in this slice, in seconds."""

    before_s: float = 0.0
    """The silence at the end of the previous slice."""
    _since_s: float = 0.0
    _written_bytes: int | None = None

    def record_look(self, written_bytes: int | None, computed_s: float) -> None:
        """Record how much the job's processes have written so far. An unknown number (None) counts as a write.

        The first call reveals nothing, because there is no earlier count to compare with.

        >>> silence = Silence(before_s=100.0)
        >>> for computed_s, written_bytes in ((2.0, 5), (4.0, 5), (6.0, 5)):
        ...     silence.record_look(written_bytes, computed_s)
        >>> silence.length_s(8.0)
        108.0
        >>> silence.record_look(6, 10.0)
        >>> silence.length_s(13.0)
        3.0
        """
        if written_bytes is None or self._written_bytes not in (None, written_bytes):
            self.before_s, self._since_s = 0.0, computed_s
        self._written_bytes = written_bytes

    def forget_count(self) -> None:
        """Treat the next count as the first, because CRIU's writes (some 2 KB) are counted as those of the job."""
        self._written_bytes = None

    def length_s(self, computed_s: float) -> float:
        """Return the length of the silence."""
        return self.before_s + computed_s - self._since_s
