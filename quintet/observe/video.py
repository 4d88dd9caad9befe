"""Writes pictures, each with a caption in its corner, to an MP4 file (H.264)."""

import contextlib
import os
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from quintet.errors import QuintetError

Picture = NDArray[np.uint8]
"""Red, green and blue, ``[H, W, 3]``."""

_SMALLEST = 400  # least pixels of the longer side
_CANVAS = (64, 192)  # least height and width, for the caption
_LAST_S = 1.0  # seconds that the last picture stays


def check_video(path: Path) -> None:
    """Raises QuintetError if no video can be written to `path`: another ending than .mp4, a folder,
    or a missing package.
    """
    if path.suffix.lower() != ".mp4":
        raise QuintetError(
            f"a video is written as .mp4, not {path.suffix or 'without ending'!r} ({path}): give "
            "it a name with that ending"
        )
    if path.is_dir():
        raise QuintetError(f"a file is required for the video, {path} is a folder: name a file")
    _ffmpeg()
    _font(16)


@final
class VideoWriter:
    """Passes pictures on to ffmpeg as they come, so memory does not grow with the video.

    The video is written under another name, and renamed when the ``with`` block ends.  An exception
    in the block (Ctrl-C too) leaves no file, and an older one as it was.  The folder is made if it
    is missing.

    Pictures whose longer side is below 400 pixels are enlarged by a whole factor; odd sizes repeat
    their last row or column, since H.264 players require even ones.

    Raises:
        QuintetError: the file can't be written, or a picture has another size than the first.
    """

    def __init__(self, path: Path, fps: float) -> None:
        check_video(path)
        self._path = path
        self._fps = Fraction(fps).limit_denominator(1000)
        self._beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        self._size: tuple[int, int] = (0, 0)
        self._last: bytes = b""
        self._unwanted = False

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._beside.touch()
        except OSError as error:
            self._clean_up()
            raise self._unwritable(error.strerror or str(error)) from error
        self._said = tempfile.TemporaryFile()  # a pipe could fill up and block
        return self

    def add(self, picture: Picture, caption: str) -> None:
        """Appends one picture; `caption` may have several lines."""
        height, width = picture.shape[:2]
        if self._ffmpeg is None:
            self._size = (height, width)
        if (height, width) != self._size:
            raise QuintetError(
                f"a video requires pictures of one size; the first was {self._size[1]} x "
                f"{self._size[0]}, then came {width} x {height}: let the environment draw itself "
                "in one size"
            )
        frame = _captioned(_enlarged(picture), caption)
        if self._ffmpeg is None:
            self._ffmpeg = self._start(*frame.shape[:2])
        self._last = frame.tobytes()
        self._write(self._last)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._unwanted and self._ffmpeg is not None:
                for _ in range(round(_LAST_S * self._fps)):
                    self._write(self._last)
                self._finish(self._ffmpeg)
        finally:
            self._clean_up()
            self._said.close()

    def discard(self) -> None:
        """Makes the block leave no file, as after an exception."""
        self._unwanted = True

    def _start(self, height: int, width: int) -> "subprocess.Popen[bytes]":
        asked = [
            *(_ffmpeg(), "-y", "-v", "error"),
            *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"),
            *("-framerate", str(self._fps), "-i", "-", "-an"),
            *("-c:v", "libx264", "-preset", "fast", "-crf", "20", "-pix_fmt", "yuv420p"),
            # The index at the front lets browsers play before they have the whole file.
            *("-movflags", "+faststart", "-f", "mp4"),
            str(self._beside.absolute()),  # ffmpeg takes "name:" in a relative path for a protocol
        ]
        # In a session of its own, so that Ctrl-C reaches only this process, which then ends it.
        return subprocess.Popen(
            asked, stdin=subprocess.PIPE, stderr=self._said, start_new_session=True
        )

    def _write(self, frame: bytes) -> None:
        assert self._ffmpeg is not None
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(frame)
        except OSError as error:  # ffmpeg has ended
            self._ffmpeg.wait()
            raise self._unwritable(self._why()) from error

    def _finish(self, ffmpeg: "subprocess.Popen[bytes]") -> None:
        assert ffmpeg.stdin is not None
        with contextlib.suppress(OSError):  # ffmpeg has ended; its status follows
            ffmpeg.stdin.close()
        if ffmpeg.wait() != 0:
            raise self._unwritable(self._why())
        try:
            os.replace(self._beside, self._path)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error

    def _clean_up(self) -> None:
        """Ends ffmpeg if it still runs, and removes its file unless that was renamed."""
        if self._ffmpeg is not None:
            self._ffmpeg.kill()
            self._ffmpeg.wait()
            if self._ffmpeg.stdin is not None:
                with contextlib.suppress(OSError):  # the buffer can't be written
                    self._ffmpeg.stdin.close()
        with contextlib.suppress(OSError):  # the folder is missing: nothing was written
            self._beside.unlink(missing_ok=True)

    def _why(self) -> str:
        """The last line of ffmpeg's output."""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "ffmpeg ended without a word"

    def _unwritable(self, why: str) -> QuintetError:
        return QuintetError(
            f"a video requires a file that can be written; {self._path}: {why}; free space, or "
            "give another folder"
        )


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
    from PIL import Image, ImageDraw

    size = max(16, min(picture.shape[0] // 18, picture.shape[1] // 16))
    image = Image.fromarray(picture)
    ImageDraw.Draw(image).multiline_text(
        (size // 2, size // 3),
        caption,
        fill="white",
        font=_font(size),
        spacing=size // 4,
        stroke_width=max(2, size // 10),
        stroke_fill="black",
    )
    return np.asarray(image)


def _ffmpeg() -> str:
    """The program that imageio-ffmpeg brings."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError as error:
        raise _missing("imageio-ffmpeg") from error
    try:
        return str(get_ffmpeg_exe())
    except RuntimeError as error:
        raise QuintetError(
            f"a video needs ffmpeg, imageio-ffmpeg has none for this machine ({error}): install "
            "ffmpeg, and name it in the environment variable IMAGEIO_FFMPEG_EXE"
        ) from error


def _font(size: int) -> Any:
    """Pillow's own font, since the machine may have none."""
    try:
        from PIL import ImageFont
    except ImportError as error:
        raise _missing("Pillow") from error
    return ImageFont.load_default(size)


def _missing(package: str) -> QuintetError:
    return QuintetError(
        f'a video needs {package}, which is not installed: pip install "quintet[video]"'
    )
