"""A run of toy measures on an engine, in a process that tests may kill."""

import json

from toy_plans import plan_of, run

from precision_eval.core.environment import collect
from precision_eval.run.engines import EngineExecutor, NodeCall, engine_named


def main(name, run_dir, fixes):
    """Run a plan on an engine and say how many records there are."""
    engine = engine_named(name, device="cpu", threads=1, run_dir=run_dir, workers=2)
    with EngineExecutor(engine, NodeCall(device="cpu", preload=("torch",), timeout_s=60.0)) as executor:
        environment = executor.submit(collect, "cpu").result()
        executor.begin(environment, "cpu", memory_share=None, purpose="p", run_dir=run_dir)
        plan = plan_of(*fixes, measures=("first", "group"))
        records = run(plan, run_dir, executor, max_parallel=engine.lanes, lanes=True)
        executor.forget()
    (run_dir / "done.json").write_text(json.dumps({"records": len(records)}))
