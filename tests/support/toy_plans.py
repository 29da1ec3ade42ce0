"""Plans of the measures of ``toy``, and how tests run them."""

from concurrent.futures import Executor, Future
from dataclasses import dataclass

from precision_eval.core.records import RecordFile
from precision_eval.fixes.catalog import Fix
from precision_eval.measure.registry import Measure
from precision_eval.run.plan import Selection, make_plan
from precision_eval.run.runner import run_plan

MEASURES = (
    Measure(name="first", title="", source="", place="toy:first", after=()),
    Measure(name="second", title="", source="", place="toy:first", after=("first",), options=("seed", "minutes")),
    Measure(name="group", title="", source="", place="toy:group", after=("first",), timed=True, grouped=True),
    Measure(name="settings", title="", source="", place="toy:settings", after=()),
)


@dataclass(frozen=True)
class Case:
    id: str = "toy"
    sizes: tuple[str, ...] = ("s",)
    default_sizes: tuple[str, ...] = ("s",)
    measures: tuple[str, ...] = ("first", "second", "group", "settings")
    digest: str = "d1"
    by_default: bool = True

    def takes(self, fix):
        return True


class Inline(Executor):
    """Runs a call at once, in this process."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.interrupt_at = interrupt_at
        self.count = 0

    def submit(self, fn, /, *args, **kwargs):
        self.count += 1
        if self.count == self.interrupt_at:
            raise KeyboardInterrupt
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def plan_of(*fixes, measures=("first", "second", "group"), case=None, **kwargs):
    return make_plan(
        Selection(measures=measures, **kwargs),
        cases=[case or Case()],
        fixes=[Fix(id=name, modes=("eager",)) for name in fixes],
        measures=MEASURES,
    )


def run(plan, run_dir, executor=None, **kwargs):
    kwargs = {"environment": "env", **kwargs}
    return run_plan(plan, executor or Inline(), RecordFile(run_dir / "records.jsonl"), **kwargs)


def ran(run_dir):
    path = run_dir / "ran.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def status(records):
    return {(record.fix, record.measure): record.status for record in records}
