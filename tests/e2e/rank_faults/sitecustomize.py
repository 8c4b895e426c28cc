"""Faults of ranks that tests start as processes: Python runs this file when its folder is on PYTHONPATH.

ZIPFEL_TEST holds JSON. record: a file for the loss of each step, in float64.  rank, step: where `fault` happens.
fault: kill (the rank dies), interrupt (Ctrl-C at the launcher), full (the rank's disk is full), or started with another
seed, version, or data (those in the folder `other`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

WANTED = json.loads(os.environ.get("ZIPFEL_TEST", "{}"))
FAULT = WANTED.get("fault") if os.environ.get("RANK") == str(WANTED.get("rank")) else None


class Patched:
    """Changes the trainer when it is imported, so that nothing is imported earlier than without tests."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "zipfel.training.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        plain = spec.loader.exec_module

        def load(module):  # type: ignore[no-untyped-def]
            plain(module)
            patch(module._Training)

        spec.loader.exec_module = load
        return spec


def patch(training) -> None:  # type: ignore[no-untyped-def]
    plain_init, plain_step, plain_finish = training.__init__, training._step, training.finish
    plain_end = training._end_epoch

    def init(self, run, stage, module, *more):  # type: ignore[no-untyped-def]
        plain_init(self, run, stage, module.double(), *more)

    def step(self, rows, epoch, number):  # type: ignore[no-untyped-def]
        sums, summed = self.sums, self.summed
        self.sums, self.summed = {}, 0
        plain_step(self, rows, epoch, number)
        losses = self._losses()
        if os.environ.get("RANK", "0") == "0":
            with Path(WANTED["record"]).open("a") as out:
                out.write(json.dumps(losses) + "\n")
        self.sums, self.summed = {name: sums.get(name, 0) + term for name, term in self.sums.items()}, summed + 1
        if FAULT in FAULTS and epoch * self.steps_an_epoch + number == WANTED["step"]:
            FAULTS[FAULT](self)

    def end_epoch(self, epoch):  # type: ignore[no-untyped-def]
        kept = {name: value.clone() for name, value in self.module.state_dict().items()}
        best = self.best_weights
        self.module.float()  # as validation expects it
        plain_end(self, epoch)
        self.module.double().load_state_dict(kept)
        self.best_weights = best if self.best_weights is best else kept

    def finish(self, interrupted=False):  # type: ignore[no-untyped-def]
        outcome = plain_finish(self, interrupted)
        self.module.float()
        return outcome

    training.__init__, training._step, training.finish = init, step, finish
    training._end_epoch = end_epoch


def kill(training) -> None:  # type: ignore[no-untyped-def]
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(training) -> None:  # type: ignore[no-untyped-def]
    os.kill(os.getppid(), signal.SIGINT)
    while not training.run.world.stopping:
        time.sleep(0.01)


def full(training) -> None:  # type: ignore[no-untyped-def]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


FAULTS = {"kill": kill, "interrupt": interrupt, "full": full}
if "record" in WANTED and ("RANK" in os.environ or "alone" in WANTED):
    sys.meta_path.insert(0, Patched())
if FAULT == "seed":
    sys.argv[sys.argv.index("--seed") + 1] = "8"
if FAULT == "data":
    sys.argv[sys.argv.index("train") + 1] = WANTED["other"]
if FAULT == "version":
    import zipfel

    zipfel.__version__ = "0.0"
