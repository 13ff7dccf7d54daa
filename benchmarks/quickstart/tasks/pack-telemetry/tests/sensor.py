"""Readings of a made-up sensor, the same for the same seed."""

import random


def readings(seed, count):
    rng = random.Random(seed)
    time = 1_700_000_000 + rng.randrange(10_000_000)
    temp, humidity, pulses = rng.randint(120, 260), rng.randint(300, 700), rng.randrange(10**6)
    state, spell = "ok", 0
    lines = ["time,temp,humidity,pulses,state"]
    for _ in range(count):
        time += 10 if rng.random() < 0.97 else rng.randint(11, 90)
        temp += rng.choice((-1, 0, 0, 0, 0, 1))
        humidity += rng.choice((-2, -1, 0, 0, 0, 0, 1, 2))
        pulses += rng.choice((3, 4, 4, 4, 5))
        spell -= 1
        if spell <= 0:
            state, spell = (
                ("ok", 60 + rng.randrange(400)) if state != "ok" else (rng.choice(("low", "err")), rng.randint(1, 9))
            )
        lines.append(f"{time},{temp / 10:.1f},{humidity / 10:.1f},{pulses},{state}")
    return ("\n".join(lines) + "\n").encode()
