#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on image files that the workers of a DataLoader read. One line puts the batches into memory of
the broker. Run `shmbroker list` meanwhile: the batches are in the group that is named after this script.

usage: dataloader_training.py [--stock] [--images N] [--epochs N] [--workers N]
"""
import argparse
import os
import random
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset

SIDE = 64


def draw(path: str, kind: int, dice: random.Random) -> None:
    """A PGM file with a bright disc (0) or a bright bar (1) on noise."""
    x, y, size = dice.randrange(16, 48), dice.randrange(16, 48), dice.randrange(6, 14)
    pixels = bytearray(dice.randbytes(SIDE * SIDE))
    for row in range(SIDE):
        for column in range(SIDE):
            if kind == 0:
                inside = (column - x) ** 2 + (row - y) ** 2 < size ** 2
            else:
                inside = abs(row - y) < 3 and abs(column - x) < 2 * size
            number = row * SIDE + column
            pixels[number] = 255 if inside else pixels[number] // 3
    with open(path, "wb") as file:
        file.write(b"P5 %d %d 255\n" % (SIDE, SIDE) + pixels)


class Images(Dataset):
    """The image files of a folder. The first letter of a name is the class."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        with open(path, "rb") as file:
            pixels = bytearray(file.read()[-SIDE * SIDE:])
        image = torch.frombuffer(pixels, dtype=torch.uint8).view(1, SIDE, SIDE).float() / 255
        return image, int(os.path.basename(path)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stock", action="store_true", help="without shmbroker")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if not options.stock:
        import shmbroker.torch
        shmbroker.torch.install()
    torch.manual_seed(1)
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.images):
            draw(os.path.join(folder, f"{number % 2}-{number:05}.pgm"), number % 2, dice)
        loader = DataLoader(Images(folder), batch_size=32, shuffle=True, num_workers=options.workers,
                            persistent_workers=options.workers > 0)
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 5, stride=2),
                                    torch.nn.ReLU(), torch.nn.AdaptiveMaxPool2d(4), torch.nn.Flatten(),
                                    torch.nn.Linear(256, 2))
        optimizer = torch.optim.Adam(model.parameters(), 0.003)
        for epoch in range(options.epochs):
            right = 0
            for images, kinds in loader:
                guesses = model(images)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(guesses, kinds).backward()
                optimizer.step()
                right += int((guesses.argmax(1) == kinds).sum())
            print(f"epoch {epoch}: {right} of {options.images} right, batches shared: {images.is_shared()}", flush=True)


if __name__ == "__main__":
    main()
