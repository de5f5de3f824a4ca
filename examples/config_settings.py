"""Settings in one place: what a configuration computes, remembers and refuses.

Run: uv run python examples/config_settings.py
"""

from __future__ import annotations

from atom.config import CompilationConfig, Config, ConfigError, from_settings, settings_of


def main() -> None:
    config = Config("path/to/model", max_num_seqs=20, compilation_config=CompilationConfig(level=3))
    print("recorded batch sizes:", config.capture_sizes)
    print("graph mode:          ", config.compilation_config.cudagraph_mode)
    print("written as JSON:     ", config.to_json(indent=None))

    assert Config.from_json(config.to_json()) == config
    eager = config.replace(enforce_eager=True)
    print("the same, eager:     ", eager.compilation_config.level, eager.capture_sizes)

    by_flag = {setting.flag: setting for setting in settings_of()}
    said = {"--model": "path/to/model", "--level": "piecewise", "--max-num-seqs": "4"}
    told = from_settings({by_flag[flag].path: by_flag[flag].parse(text) for flag, text in said.items()})
    print("from a command line: ", told.capture_sizes)

    try:
        CompilationConfig(cudagraph_capture_sizes=[4, 4])
    except ConfigError as error:
        print("refused:             ", error)


if __name__ == "__main__":
    main()
