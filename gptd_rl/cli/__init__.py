"""The subcommands of ``gptd-rl``: a module each, with ``add(commands)`` and ``run(args) -> int``."""
