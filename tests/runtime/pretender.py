"""An agent that does one thing wrong. It runs inside a node, as the service account, with the agent's own Python:

    pretender.py save|restore NAME FOLDER [STEP die|stall]

It waits under NAME for the shim, and takes a container's images into FOLDER or gives them out from there; when it gets
to STEP, it kills itself or does nothing ever again. The steps are printed as they are reached.
"""

import array
import os
import shutil
import signal
import socket
import struct
import sys
import threading
from pathlib import Path

from gleaner.agent.system.ipc import Handshake

HANDSHAKES = Path("/run/gleaner-agent")
STEPS = {
    "save": ("listening", "accepted", "told", "connected", "first", "pages", "images"),
    "restore": ("listening", "accepted", "named", "told", "connected", "first", "pages", "images"),
}
LENGTH = struct.Struct("<I")
TEXTS = {"descriptors": "descriptors.json", "init": "init"}
"""The file for each field that a save's last message has."""


class Pretender:
    def __init__(self, kind: str, name: str, folder: str, step: str = "", wrong: str = "") -> None:
        self.kind, self.folder = kind, Path(folder)
        self.step, self.wrong = step, wrong
        self.listener = socket.socket(socket.AF_UNIX)
        path = HANDSHAKES / name
        path.unlink(missing_ok=True)
        self.listener.bind(str(path))
        self.listener.listen(1)

    def at(self, step: str) -> None:
        print(f"{step}\n", end="", flush=True)  # in one write, as several pumps get here at once
        if step == self.step:
            if self.wrong == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()

    def run(self) -> None:
        print("pid", os.getpid(), flush=True)
        self.at("listening")
        connection, _ = self.listener.accept()
        handshake = Handshake(connection)
        self.at("accepted")
        _, descriptor = handshake.hear()
        if self.kind == "restore":
            handshake.say({name: (self.folder / file).read_text() for name, file in TEXTS.items()})
            self.at("named")
            _, descriptor = handshake.hear()
        assert descriptor is not None
        self.at("told")
        with socket.socket(fileno=descriptor) as for_criu:
            criu, _ = for_criu.accept()
        self.at("connected")
        self.images(criu)
        self.at("images")
        last, layer = handshake.hear()
        if layer is not None:
            with os.fdopen(layer, "rb") as source, (self.folder / "layer.tar").open("wb") as sink:
                shutil.copyfileobj(source, sink)
            last, _ = handshake.hear()
        if self.kind == "save":
            for name, file in TEXTS.items():
                (self.folder / file).write_text(last[name])
        print("status", last["status"], flush=True)

    def images(self, criu: socket.socket) -> None:
        pumps = []
        while head := criu.recv(4, socket.MSG_WAITALL):
            name = criu.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)[2:].decode()
            path = self.folder / f"image.{name}"
            if self.kind == "restore":
                criu.sendall(LENGTH.pack(2) + bytes([8, int(path.exists())]))
                if not path.exists():
                    continue
            _, ancillary, _, _ = criu.recvmsg(1, socket.CMSG_SPACE(4))
            pump = threading.Thread(target=self.pump, args=(array.array("i", ancillary[0][2])[0], path))
            pump.start()
            pumps.append(pump)
            self.at("first")
        for pump in pumps:
            pump.join()

    def pump(self, pipe: int, path: Path) -> None:
        if self.kind == "save":
            with open(pipe, "rb", buffering=0) as source, path.open("wb") as sink:
                while chunk := source.read(2**16):
                    sink.write(chunk)
                    self.in_pages(path, sink.tell())
        else:
            with path.open("rb") as source, open(pipe, "wb", buffering=0) as sink:
                while chunk := source.read(2**16):
                    while chunk:
                        chunk = chunk[sink.write(chunk) :]
                    self.in_pages(path, source.tell())

    def in_pages(self, path: Path, size: int) -> None:
        if path.name.startswith("image.pages-") and size > 2**20 and self.step:
            self.at("pages")


if __name__ == "__main__":
    Pretender(*sys.argv[1:]).run()
