"""Videos: what is written can be read again, and nothing torn is ever left."""

import os
import resource
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import read_frames

from quintet.errors import QuintetError
from quintet.observe import video
from quintet.observe.video import VideoWriter, check_video


def plain(height=8, width=12, value=0):
    return np.full((height, width, 3), value, np.uint8)


def write(path, pictures, fps=10.0, caption=""):
    with VideoWriter(path, fps) as writer:
        for picture in pictures:
            writer.add(picture, caption)


def read(path):
    """What the file says of itself, and its frames ``[N, H, W, 3]``."""
    frames = read_frames(str(path))
    about = next(frames)
    width, height = about["size"]
    return about, np.stack([np.frombuffer(x, np.uint8).reshape(height, width, 3) for x in frames])


def test_pictures_in_their_order_and_at_their_rate(tmp_path):
    levels = [0, 60, 120, 180, 240]
    write(tmp_path / "new" / "v.mp4", [plain(400, 400, x) for x in levels], fps=12.5)
    about, frames = read(tmp_path / "new" / "v.mp4")
    assert about["fps"] == 12.5
    assert about["codec"] == "h264"
    assert about["pix_fmt"].startswith("yuv420p")
    assert frames[:5].mean((1, 2, 3)) == pytest.approx(levels, abs=3)
    assert len(frames) == 5 + 12  # the last one stands for a second
    assert frames[5:].mean((1, 2, 3)) == pytest.approx([240.0] * 12, abs=3)
    assert os.listdir(tmp_path / "new") == ["v.mp4"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ((84, 84), (420, 420)),
        ((210, 160), (420, 320)),
        ((133, 133), (532, 532)),
        ((401, 403), (402, 404)),  # large enough, but odd
        ((200, 3), (400, 192)),  # room for the caption
        ((3, 200), (64, 400)),
        ((1, 1), (400, 400)),
    ],
)
def test_sizes(tmp_path, given, shown):
    write(tmp_path / "v.mp4", [plain(*given)], fps=1)
    assert read(tmp_path / "v.mp4")[1].shape[1:3] == shown


def test_small_pictures_are_enlarged_pixel_by_pixel():
    small = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    large = video._enlarged(small)
    assert large.shape == (268, 402, 3)  # 134 times
    assert (large[::134, ::134] == small).all()
    assert (large[133::134, 133::134] == small).all()


@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize("size", [(84, 84), (80, 200), (400, 600)])
def test_the_caption_can_be_read_on_light_and_dark_pictures(tmp_path, value, size):
    write(tmp_path / "v.mp4", [plain(*size, value)], fps=1, caption="return -123.45\nstep 1000")
    corner = read(tmp_path / "v.mp4")[1][0].mean(-1)
    ink = np.argwhere(abs(corner - value) > 100)
    assert len(ink) > 200
    assert corner.min() < 60
    assert corner.max() > 190
    # Both lines are there whole: nothing touches the border.
    assert (ink.min(0) > 0).all()
    assert (ink.max(0) < np.array(corner.shape) - 1).all()
    assert ink.max(0)[0] > 30


def test_pictures_of_another_size_are_refused(tmp_path):
    with pytest.raises(QuintetError, match=r"one size, got 12 x 8, then 8 x 12"):
        write(tmp_path / "v.mp4", [plain(8, 12), plain(12, 8)])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("frames", [0, 3])
def test_what_is_broken_off_leaves_the_file_before_it(tmp_path, error, frames):
    path = tmp_path / "v.mp4"
    path.write_bytes(b"before")

    def pictures():
        for _ in range(frames):
            yield plain()
        assert len(os.listdir(tmp_path)) == 2
        raise error

    with pytest.raises(error):
        write(path, pictures())
    assert os.listdir(tmp_path) == ["v.mp4"]
    assert path.read_bytes() == b"before"


def test_a_name_that_looks_like_a_protocol(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("12:30.mp4"), [plain()])
    assert os.listdir(tmp_path) == ["12:30.mp4"]


def test_discarded(tmp_path):
    with VideoWriter(tmp_path / "v.mp4", 10) as writer:
        writer.add(plain(), "")
        writer.discard()
    assert os.listdir(tmp_path) == []


@contextmanager
def full_disk(size):
    """No file may become larger than `size` bytes; ffmpeg inherits the limit, and is told so."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("count", [10, 60])
def test_a_full_disk(tmp_path, count):
    """It fills up while pictures come, or only as the file is finished."""
    noise = np.random.default_rng(0)
    path = tmp_path / "v.mp4"
    pictures = [noise.integers(0, 256, (400, 400, 3), np.uint8) for _ in range(count)]
    with (
        full_disk(4_000),
        pytest.raises(QuintetError, match=r"must be writable, got .*v\.mp4 \(.*space"),
    ):
        write(path, pictures)
    assert os.listdir(tmp_path) == []


def test_what_can_be_no_file(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(QuintetError, match=r"must end in \.mp4, got v\.gif: give it another name"):
        check_video(Path("v.gif"))
    with pytest.raises(QuintetError, match=r"must end in \.mp4, got v:"):
        check_video(Path("v"))
    with pytest.raises(QuintetError, match=r"got the folder .*folder\.mp4; name a file"):
        check_video(tmp_path / "folder.mp4")
    with pytest.raises(QuintetError, match=r"v\.mp4 \((Not a directory|File exists)\); free space"):
        write(tmp_path / "file" / "v.mp4", [plain()])


@pytest.mark.parametrize(
    ("module", "package"), [("imageio_ffmpeg", "imageio-ffmpeg"), ("PIL", "Pillow")]
)
def test_missing_packages_are_named(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(QuintetError, match=rf'needs {package}.*pip install "quintet-rl\[video\]"'):
        check_video(Path("v.mp4"))
