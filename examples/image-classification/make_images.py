"""Draws squares, crosses and stripes with noise: `python make_images.py OUT.npz [COUNT]`."""

from __future__ import annotations

import sys

import numpy as np

SIZE = 16


def main() -> None:
    """Write the arrays."""
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    images = random.normal(0.0, 0.3, (count, 1, SIZE, SIZE)).astype(np.float32)
    for image, label in zip(images[:, 0], labels, strict=True):
        x, y = random.integers(2, SIZE - 8, 2)
        if label == 0:
            image[x : x + 6, y : y + 6] += 1.0
        elif label == 1:
            image[x + 2 : x + 4, y : y + 6] += 1.0
            image[x : x + 6, y + 2 : y + 4] += 1.0
        else:
            image[x : x + 6 : 2, y : y + 6] += 1.0
    np.savez(sys.argv[1], pixel_values=images, labels=labels.astype(np.int64))


if __name__ == "__main__":
    main()
