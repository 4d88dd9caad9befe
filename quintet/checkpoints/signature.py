"""Signatures of files that this user's quintet wrote on this machine.

The key is 32 random bytes in ``$XDG_STATE_HOME/quintet/signing-key`` (by default
``~/.local/state``), which only its owner may read.  The first signature makes it, whole or not at
all. If it can't be made or read, files get no signature, and none is accepted.
"""

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from quintet.system import files

KEY_BYTES = 32
_VERSION = "v1:"


def sign(purpose: str, content: bytes) -> str | None:
    """The signature of `content`, valid for one purpose only; None if there is no key."""
    try:
        return _signed(_key_made(), purpose, content)
    except _NoKey:
        return None


def fault(purpose: str, content: bytes, given: object) -> str | None:
    """Reason why `given` is not this user's signature here, after "it"; None if it is."""
    if not isinstance(given, str):
        return "bears no signature"
    try:
        key = _key(_key_file())
    except FileNotFoundError:
        return "bears a signature of another user or machine"
    except _NoKey as error:
        return f"bears a signature that can't be checked ({error})"
    if hmac.compare_digest(_signed(key, purpose, content).encode(), given.encode(errors="replace")):
        return None
    return "bears a signature of another user or machine, or was changed since it was signed"


def why_no_key() -> str | None:
    """The reason why files can't be signed; None if they can. Makes the key."""
    try:
        _key_made()
    except _NoKey as error:
        return str(error)
    return None


class _NoKey(Exception):
    """The key is missing; the message says why."""


def _signed(key: bytes, purpose: str, content: bytes) -> str:
    return _VERSION + hmac.new(key, purpose.encode() + b"\0" + content, hashlib.sha256).hexdigest()


def _key_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):  # the XDG standard has others ignored
        return Path(state, "quintet", "signing-key")
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise _NoKey("there is no home folder; set HOME or XDG_STATE_HOME")
    return Path(home, ".local", "state", "quintet", "signing-key")


def _key_made() -> bytes:
    """The key, which is made if it does not exist."""
    file = _key_file()
    try:
        return _key(file)
    except FileNotFoundError:
        pass
    try:
        _make(file)
        return _key(file)
    except OSError as error:
        raise _NoKey(f"{file} can't be made: {error.strerror}") from error


def _key(file: Path) -> bytes:
    """The key in a file; raises FileNotFoundError, or _NoKey if others could read or write it."""
    try:
        # Without waiting, since opening a pipe waits for its other end.
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _NoKey(f"{file} can't be read: {error.strerror}") from error
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise _NoKey(f"{file} does not belong to this user; remove it")
        if about.st_mode & 0o077:
            raise _NoKey(f"{file} is open to other users; remove it")
        key = os.read(handle, KEY_BYTES + 1)
    except OSError as error:
        raise _NoKey(f"{file} can't be read: {error.strerror}") from error
    finally:
        os.close(handle)
    if len(key) != KEY_BYTES:
        raise _NoKey(f"{file} is damaged; remove it")
    return key


def _make(file: Path) -> None:
    """Makes the key, unless another process has done so in the meantime."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)  # whatever the umask is
            os.write(handle, secrets.token_bytes(KEY_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
        with suppress(FileExistsError):  # unlike a rename, a link replaces no other process's key
            os.link(temporary, file)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    files.sync_folder(file.parent)  # keeps signatures valid after a power cut
