"""Write a count with its noun.

Room: cli. Takes: a number, a noun in the singular. Gives: text. Next: explain, bench.
"""


def counted(count: int, noun: str) -> str:
    """Return ``1 rule`` or ``2 rules``; a noun that ends in y gets ``ies``."""
    if count == 1:
        return f"1 {noun}"
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {many}"
