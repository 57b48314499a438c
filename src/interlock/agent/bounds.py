"""The bounds of a run's verbs. A host keeps them as control does, since control trusts nothing that a host says."""

SERVED = ""  # the name of the agent that control serves
REPLY_BYTES = 4 * 1024 * 1024  # text per run
VALUE_BYTES = 8 * 1024 * 1024  # JSON of one tool call's arguments, or of its result
INPUT_BYTES = 8 * 1024 * 1024  # input per process
ARGUMENTS = 500_000  # arguments, or variables of the environment, of one process: more than any system takes
ARGUMENT_BYTES = 2 * 1024 * 1024  # arguments and environment of one process: no system takes more
REFUSALS = 100  # refused effects of a fallen body; after these it is not resumed
QUESTION_BYTES = 64 * 1024
CHOICES = 100  # of one question
RECORD_CHARACTERS = REPLY_BYTES  # arguments of the calls that are recorded together
OPEN_CALLS = 1_000  # tool calls without a result, per run; a fall closes them all in one step
PROGRESS_CHARACTERS = 4_096  # of a progress text or a phase; the rest is left out
