"""A worker whose only state is its block: writes one for each step, and continues from what all ranks have after a restart.

argv: a folder for notes; the number of steps; then what goes wrong: KIND RANK STEP of the first generation (kill, damage, reject)."""

import errno
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support/py"))

import block_client as blocks

N_BYTES = 100_000


def content(rank, step):
    return blocks.files(**{f"__{rank}_0.distcp": bytes([rank + 1, step % 256]) * (N_BYTES // 2), ".metadata": b"%d" % step})


def restore(client):
    """The step that all ranks continue from, -1: none, and the generation that wrote it."""
    answer = client.ask(blocks.STEP)
    while answer.bytes and answer.status == errno.EAGAIN:
        step = answer.bytes - 1
        data = client.own(step) or client.block(client.rank, step, arg=1, generation=answer.generation)
        if data is not None:
            assert data == content(client.rank, step)
        answer = client.ask(blocks.VERDICT, step=step, rank=client.rank, generation=answer.generation, status=0 if data else 74)
    assert answer.status == 0
    return answer.bytes - 1, answer.generation


def meet(client, folder, step):
    """As in a collective: no rank begins a step before all have ended the step before."""
    at = pathlib.Path(folder) / f"at{client.generation}"
    at.mkdir(exist_ok=True)
    (at / f"{client.rank}.new").write_text(str(step))
    (at / f"{client.rank}.new").rename(at / str(client.rank))
    for rank in range(client.world):
        while not (at / str(rank)).exists() or int((at / str(rank)).read_text()) < step:
            time.sleep(0.001)


def main(folder, n_steps, *wrong):
    client = blocks.Client(N_BYTES + 4096)
    if "BLOCK_FOLDER" in os.environ:
        client.send(blocks.FOLDER, text=os.environ["BLOCK_FOLDER"].encode(), arg=int(os.environ["BLOCK_EVERY"]))
    client.make_table()
    step, generation = restore(client)
    with open(f"{folder}/rank{client.rank}", "a") as notes:
        notes.write(f"{client.generation} {step}\n")
    if step >= 0:
        other = (client.rank + 1) % client.world
        if other // int(os.environ["LOCAL_WORLD_SIZE"]) == client.rank // int(os.environ["LOCAL_WORLD_SIZE"]):
            assert client.block(other, step, generation=generation) == content(other, step)
    client.clear_above(step)
    for s in range(step + 1, int(n_steps)):
        meet(client, folder, s)
        while not client.put(s, content(client.rank, s)):
            time.sleep(0.001)  # crun reads a slot
        if client.generation == 0 and wrong and (client.rank, s) == (int(wrong[1]), int(wrong[2])):
            if wrong[0] == "damage":
                os.pwrite(client.file, b"\xff", client.slots()[s % 2][3] + 7)
            if wrong[0] == "reject":
                assert client.ask(blocks.REJECT, step=s - 1).status == 0
            os.kill(os.getpid(), signal.SIGKILL)
    if "BLOCK_SLEEP" in os.environ:
        print("sleeps", flush=True)
        time.sleep(60)


main(*sys.argv[1:])
