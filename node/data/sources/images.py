"""Pictures as rows of bytes: folders of them, a class for each folder."""

from __future__ import annotations

import io
import warnings
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from node.data.sources.source import LABELS, Chunk, Column, Piece, Source, in_chunks, read_bytes, size_of
from node.errors import DatasetError

IMAGES = "images"
PATTERN = "*.jpg|*.jpeg|*.png|*.webp|*.bmp|*.gif|*.tif|*.tiff|*.JPG|*.JPEG|*.PNG"
MAX_PIXELS = 1 << 27

Fit = Literal["crop", "stretch"]


@dataclass(frozen=True, slots=True)
class Pictures:
    """How pictures become rows: `[channels, height, width]` of bytes, turned as their EXIF data say.

    `crop`: scaled until the frame is filled, and cut at its middle; `stretch`: scaled to the frame.
    """

    height: int
    width: int
    fit: Fit = "crop"
    is_gray: bool = False

    @property
    def column(self) -> Column:
        """The column of the pictures."""
        return Column("U8", (1 if self.is_gray else 3, self.height, self.width))

    def row(self, content: bytes, where: str) -> bytes:
        """The bytes of one picture; raises `DatasetError` naming it where it is none."""
        pillow, ops = _pillow()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd metadata; what counts raises
                with pillow.open(io.BytesIO(content)) as opened:
                    if opened.width * opened.height > MAX_PIXELS:
                        raise DatasetError(f"{where}: {opened.width} x {opened.height} pixels are too many")
                    picture = ops.exif_transpose(opened).convert("L" if self.is_gray else "RGB")
        except DatasetError:
            raise
        except Exception as error:  # its readers raise whatever the bytes make them raise
            raise DatasetError(f"{where} is not a picture that can be read: {error}") from error
        frame = (self.width, self.height)
        if picture.size != frame:
            made = ops.fit if self.fit == "crop" else pillow.Image.resize
            picture = made(picture, frame, pillow.Resampling.BILINEAR)
        if self.is_gray:
            return bytes(picture.tobytes())
        return b"".join(band.tobytes() for band in picture.split())


@dataclass(frozen=True, slots=True)
class _Folder:
    pictures: Pictures
    classes: dict[Path, int]

    def read(self, chunk: Chunk) -> Iterator[bytes]:
        for piece in chunk.pieces:
            row = self.pictures.row(read_bytes(piece), str(piece.path))
            yield row + array("q", [self.classes[piece.path]]).tobytes()


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of `224` or `240x320`; raises `DatasetError`."""
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.isascii() and side.isdigit() for side in sides):
        raise DatasetError(f"--image-size {text!r} is not a size", hint="write 224, or 240x320 for height x width")
    height, width = int(sides[0]), int(sides[-1])
    if not 0 < height * width <= MAX_PIXELS:
        raise DatasetError(f"--image-size {text}: out of bounds")
    return height, width


def image_source(sources: Sequence[Path], files: Sequence[Path], size: str, fit: Fit, is_gray: bool) -> Source:
    """A source of pictures; the class is the first folder below a source. Without `size`, that of the first one."""
    named = {path: _class_of(path, sources) for path in files}
    names = sorted(set(named.values()))
    height, width = parse_size(size) if size else _size_of(files[0])
    pictures = Pictures(height, width, fit, is_gray)
    reader = _Folder(pictures, {path: names.index(name) for path, name in named.items()})
    # A chunk holds what it makes, not what it reads: pictures are small on disk.
    pieces = [(Piece(path, 0, size_of(path)), pictures.column.row_bytes, 1) for path in files]
    columns = {IMAGES: pictures.column, LABELS: Column("I64", ())}
    return Source(reader, columns, in_chunks(pieces), classes={LABELS: names})


def _class_of(path: Path, sources: Sequence[Path]) -> str:
    for source in sources:
        if source in path.parents:
            below = path.relative_to(source).parts
            if len(below) > 1:
                return below[0]
    raise DatasetError(f"{path} lies in no folder of a class", hint="name the folder above the classes' folders")


def _size_of(path: Path) -> tuple[int, int]:
    pillow, ops = _pillow()
    try:
        with pillow.open(path) as opened:
            picture = ops.exif_transpose(opened)
            return picture.height, picture.width
    except Exception as error:
        raise DatasetError(f"{path} is not a picture that can be read: {error}") from error


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DatasetError("pictures need Pillow", hint="pip install 'hypha-tui[datasets]'") from error
    return Image, ImageOps
