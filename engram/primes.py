"""The prime size of every hash column, drawn as the model was trained."""

# With these witnesses Miller-Rabin is exact below 3.3e24, far past any int64.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(number: int) -> bool:
    """Exact for every int64."""
    if number < 2:
        return False
    for witness in _WITNESSES:
        if number % witness == 0:
            return number == witness
    odd = number - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    return all(_passes(number, witness, odd, twos) for witness in _WITNESSES)


def draw_column_primes(
    *, num_layers: int, num_orders: int, num_heads: int, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Per layer, its num_orders * num_heads column sizes in (n-gram order, head) order.

    Each is the smallest prime above vocab_size - 1 that no earlier column of any layer took, so all layers
    share one ascending sequence.
    """
    sequence = _primes_from(vocab_size, num_layers * num_orders * num_heads)
    per_layer = num_orders * num_heads
    return tuple(sequence[idx * per_layer : (idx + 1) * per_layer] for idx in range(num_layers))


def _primes_from(lowest: int, count: int) -> tuple[int, ...]:
    found: list[int] = []
    candidate = lowest
    while len(found) < count:
        if is_prime(candidate):
            found.append(candidate)
        candidate += 1
    return tuple(found)


def _passes(number: int, witness: int, odd: int, twos: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
