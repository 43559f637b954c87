"""Block sizes for a shape of heads, searched against the compiler's own schedule."""
