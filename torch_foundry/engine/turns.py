"""One thread at a time, and what is left when one was interrupted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch


class Turns:
    """Changes of an engine: a thread waits for its turn; a change that an interrupt tore is mended by the next one.

    Tensors that are made meanwhile are none of inference mode or autograd, whatever the caller is in.
    """

    def __init__(self, mend: Callable[[], None]) -> None:
        self._mend, self._lock = mend, threading.RLock()
        self._torn = False  # a change has begun and not come to its end
        self._thread: int | None = None

    @property
    def mine(self) -> bool:
        """Whether this very thread is in the middle of a change, of which a signal handler would know nothing."""
        return self._thread == threading.get_ident()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """The block is a change. Exceptions leave it whole; interrupts are none, and may come anywhere."""
        with self._lock, torch.inference_mode(False), torch.no_grad():
            self._thread = threading.get_ident()
            try:
                if self._torn:
                    self._mend()
                self._torn = True
                yield
                self._torn = False
            except Exception:
                self._torn = False
                raise
            finally:
                self._thread = None
