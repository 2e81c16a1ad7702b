"""Integer arithmetic that grids and sizes need."""

__all__ = ["ceil_div", "next_power_of_two"]


def ceil_div(a: int, b: int) -> int:
    """The quotient of two integers, rounded up: how many blocks of ``b`` cover ``a``."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is not less than ``n``, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()
