"""What libtpu is told so that it compiles with no TPU at hand.

Nothing is imported here: `rpagen.schedule.aot`, which runs in an environment of its own, takes it
from here too.
"""

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "v7x": "tpu7x:2x2x1",
}
"""Of each TPU generation, one that has it."""

VARIABLES = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Of its process. Without them it looks for the machine's own TPU, and locks it for one process."""

DUMP_TO = "--xla_jf_dump_to="
FINAL = "final_"
"""In the names of the passes that write the final bundles, and the slots that they take."""


def dump_flags(folder: object, passes: str = FINAL) -> str:
    """The flags, as LIBTPU_INIT_ARGS has them, with which it writes some passes into a folder.

    passes: an expression for what their names hold.
    """
    return (
        f"{DUMP_TO}{folder} --xla_jf_dump_llo_text=true"
        f" --xla_jf_dump_llo_pass_label_regex=.*{passes}.*"
    )
