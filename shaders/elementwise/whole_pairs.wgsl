// Functions of two integers; T is i32 or u32, as SIGNED says: divisions that never fail, and powers.

/// Returns x / y without its fraction. x / 0 is x; the most negative number over −1 wraps around to itself.
fn quotient(x: T, y: T) -> T {
    if y == T(0) {
        return x;
    }
    if SIGNED && y == ~T(0) {
        return T(0) - x;
    }
    return x / y;
}

/// Returns the remainder of x / y, with the sign of x; 0 for y = 0.
fn fmod(x: T, y: T) -> T {
    return select(x - quotient(x, y) * y, T(0), y == T(0));
}

/// Returns whether ⌊x / y⌋ is one less than the quotient.
fn below(x: T, y: T) -> bool {
    let rest = fmod(x, y);
    return rest != T(0) && (rest < T(0)) != (y < T(0));
}

fn rem(x: T, y: T) -> T {
    return fmod(x, y) + select(T(0), y, below(x, y));
}

fn div_floor(x: T, y: T) -> T {
    return quotient(x, y) - select(T(0), T(1), below(x, y));
}

/// Returns x^y, wrapping around; for negative y, 1 / x^|y| without its fraction (0 for x = 0).
fn whole_power(x: T, y: T) -> T {
    if y < T(0) {
        let sign = select(T(1), x, (y & T(1)) == T(1));
        return select(T(0), select(sign, T(1), x == T(1)), x == T(1) || x == ~T(0));
    }
    var power = T(1);
    var base = x;
    for (var left = u32(y); left > 0u; left >>= 1u) {
        power *= select(T(1), base, (left & 1u) == 1u);
        base *= base;
    }
    return power;
}
