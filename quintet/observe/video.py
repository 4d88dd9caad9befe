"""Writes pictures, each with a caption in its corner, to an MP4 file (H.264)."""

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from quintet.errors import QuintetError

Picture = NDArray[np.uint8]
"""Red, green and blue, ``[H, W, 3]``."""

_SMALLEST = 400  # least pixels of the longer side
_CANVAS = (64, 192)  # least height and width, for the caption
_LAST_S = 1.0  # seconds that the last picture stays


def check_video(path: Path) -> None:
    """Raises QuintetError if no video can be written to `path`: the name does not end in .mp4, it
    is a folder, or a package is missing.
    """
    if path.suffix.lower() != ".mp4":
        raise QuintetError(f"a video's name must end in .mp4, got {path}: give it another name")
    if path.is_dir():
        raise QuintetError(f"a video must be a file, got the folder {path}; name a file")
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
        from PIL import ImageFont

        get_ffmpeg_exe()
        ImageFont.load_default(16)
    except ImportError as error:
        package = "Pillow" if "PIL" in str(error) else "imageio-ffmpeg"
        raise QuintetError(
            f'a video needs {package}, which is not installed: pip install "quintet-rl[video]"'
        ) from error
    except RuntimeError as error:
        raise QuintetError(
            f"a video needs ffmpeg, and imageio-ffmpeg has none for this machine ({error}): "
            "install ffmpeg, and name it in the environment variable IMAGEIO_FFMPEG_EXE"
        ) from error


@final
class VideoWriter:
    """Passes pictures to ffmpeg at once, so memory does not grow with the video.

    The video is written under another name, and renamed when the ``with`` block ends.  An exception
    in the block (also Ctrl-C) leaves no file, and an older file unchanged.  The folder is made if
    it is missing.

    Pictures whose longer side is below 400 pixels are enlarged by a whole factor; pictures of odd
    size repeat their last row or column, since H.264 players require even sizes.

    Raises:
        QuintetError: the file can't be written, or a picture has another size than the first.
    """

    def __init__(self, path: Path, fps: float) -> None:
        check_video(path)
        self._path = path
        self._fps = Fraction(fps).limit_denominator(1000)
        self._partial_file = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._ffmpeg: Generator[None, bytes, None] | None = None
        self._size: tuple[int, ...] = ()
        self._last: bytes = b""
        self._count = 0
        self._unwanted = False

    def __enter__(self) -> Self:
        with self._writing():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._partial_file.touch()
        return self

    def add(self, picture: Picture, caption: str) -> None:
        """Appends one picture; `caption` may have several lines."""
        size = picture.shape[:2]
        if size != (self._size or size):
            raise QuintetError(
                f"pictures of a video must have one size, got {self._size[1]} x {self._size[0]}, "
                f"then {size[1]} x {size[0]}; let the environment draw itself in one size"
            )
        self._size = size
        frame = _captioned(_enlarged(picture), caption)
        if self._ffmpeg is None:
            self._ffmpeg = self._ffmpeg_writer(*frame.shape[:2])
        self._last = frame.tobytes()
        self._send(self._ffmpeg)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._unwanted and self._ffmpeg is not None:
                for _ in range(round(_LAST_S * self._fps)):
                    self._send(self._ffmpeg)
                self._ffmpeg.close()
                with self._writing():
                    self._require_whole()
                    os.replace(self._partial_file, self._path)
        finally:
            if self._ffmpeg is not None:
                self._ffmpeg.close()
            with suppress(OSError):  # the folder is missing: nothing was written
                self._partial_file.unlink(missing_ok=True)

    def discard(self) -> None:
        """Makes the block leave no file, as after an exception."""
        self._unwanted = True

    def _ffmpeg_writer(self, height: int, width: int) -> Generator[None, bytes, None]:
        """A generator that writes the frames sent to it by ffmpeg."""
        from imageio_ffmpeg import write_frames

        ffmpeg: Generator[None, bytes, None] = write_frames(
            str(
                self._partial_file.absolute()
            ),  # ffmpeg takes "name:" in a relative path for a protocol
            (width, height),
            fps=self._fps,
            quality=None,
            codec="libx264",
            macro_block_size=1,
            ffmpeg_log_level="error",
            # The index at the front lets browsers play before they have the whole file.
            output_params=["-preset", "fast", "-crf", "20", "-movflags", "+faststart", "-f", "mp4"],
        )
        next(ffmpeg)
        return ffmpeg

    def _send(self, ffmpeg: Generator[None, bytes, None]) -> None:
        """Appends the last frame."""
        with self._writing():
            ffmpeg.send(self._last)
            self._count += 1

    def _require_whole(self) -> None:
        """Raises OSError unless the file holds all frames, since ffmpeg's exit status is not
        available."""
        from imageio_ffmpeg import read_frames

        with closing(read_frames(str(self._partial_file.absolute()))) as frames:
            missing = self._count / self._fps - next(frames)["duration"]
        if missing > 0.5 / self._fps + 0.01:  # ffmpeg rounds to 0.01 s
            raise OSError(f"its last {missing:.1f} s are missing")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns a failure within the block into one sentence for the user."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error).partition("\n")[0]
            raise QuintetError(
                f"the file of a video must be writable, got {self._path} ({why}); free space, or "
                "give another folder"
            ) from error


def _enlarged(picture: Picture) -> Picture:
    """The picture enlarged by a whole factor, and padded to even sizes with room for a caption."""
    factor = max(1, -(-_SMALLEST // max(picture.shape[:2])))
    large = picture.repeat(factor, 0).repeat(factor, 1)
    height, width = large.shape[:2]
    even = ((0, height % 2), (0, width % 2), (0, 0))
    large = np.pad(large, even, mode="edge")
    missing = [max(0, least - size) for least, size in zip(_CANVAS, large.shape[:2], strict=True)]
    return np.pad(large, ((0, missing[0]), (0, missing[1]), (0, 0)))


def _captioned(picture: Picture, caption: str) -> Picture:
    """The picture with a caption in white letters with a black edge."""
    from PIL import Image, ImageDraw, ImageFont

    size = max(16, min(picture.shape[0] // 18, picture.shape[1] // 16))
    image = Image.fromarray(picture)
    ImageDraw.Draw(image).multiline_text(
        (size // 2, size // 3),
        caption,
        fill="white",
        font=ImageFont.load_default(size),  # Pillow's own: the machine may have none
        spacing=size // 4,
        stroke_width=max(2, size // 10),
        stroke_fill="black",
    )
    return np.asarray(image)
