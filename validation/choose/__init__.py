"""Does ``precision-eval choose`` give the same answer again? Runs are repeated on one machine, answers compared.

Conventions: a *re-run* times all fixes of a case anew, in a fresh worker with fresh processes, as ``precision-eval
run`` does; drift and memory repeat to the bit and are measured once. A *question* is a policy with limits. Two re-runs
*agree* on a question where they take the same fix, or where one of them calls it a tie and names what the other takes.
"""
