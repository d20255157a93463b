"""What saves and restores take. One plain function, which the settings call and the engines compile."""


def seconds(constant_s: float, node_mib_s: float, shared_mib_s: float, memory_mib: float, at_once: float) -> float:
    """How long each takes when so many of this size are saved, or restored, at the same time.

    Each moves its memory at the node's bandwidth or at its share of the storage's, whichever is slower. A bandwidth of
    0 has no end.
    """
    slowest_s = 0.0
    if node_mib_s > 0:
        slowest_s = memory_mib / node_mib_s
    if shared_mib_s > 0:
        slowest_s = max(slowest_s, at_once * memory_mib / shared_mib_s)
    return constant_s + slowest_s
