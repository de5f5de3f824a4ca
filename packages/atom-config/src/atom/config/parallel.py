"""How many processes share the work, and which one this is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atom.config.errors import ConfigError
from atom.config.kinds import Integer, Number, Switch
from atom.config.setting import IN_KEY, about, outside_key
from atom.config.settings import Settings

if TYPE_CHECKING:
    from atom.config.environment import Environment

PER_RANK = "ranks have folders of their own below one key"


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(Settings):
    """Tensor- and data-parallel sizes and this process's place in them.

    Ranks are laid out with tensor-parallel neighbours next to one another:
    `rank == data_parallel_rank * tensor_parallel_size + tensor_parallel_rank`.
    """

    tensor_parallel_size: int = field(
        default=1,
        metadata=about("Processes that share each layer's weights.", Integer(), key=IN_KEY),
    )
    data_parallel_size: int = field(
        default=1,
        metadata=about("Groups of processes that serve requests of their own.", Integer(), key=IN_KEY),
    )
    enable_dp_attention: bool = field(
        default=False,
        metadata=about(
            "Attention data-parallel, experts shared by all data-parallel ranks.", Switch(), key=IN_KEY
        ),
    )
    rank: int = field(
        default=0,
        metadata=about(
            "This process among all of them.", Integer(at_least=0), key=outside_key(PER_RANK), flag=""
        ),
    )
    local_rank: int = field(
        default=0,
        metadata=about(
            "This process among those of its host; the GPU it uses.",
            Integer(at_least=0),
            key=outside_key(PER_RANK),
            flag="",
        ),
    )
    distributed_timeout_s: float = field(
        default=600.0,
        metadata=about(
            "Seconds a process waits for the others before it ends with an error.",
            Number(),
            key=outside_key("waiting time changes no code"),
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank >= self.world_size:
            raise ConfigError(
                "ParallelConfig.rank",
                self.rank,
                f"0 to {self.world_size - 1}: tensor_parallel_size * data_parallel_size is {self.world_size}",
            )

    @property
    def world_size(self) -> int:
        """Processes in all."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def tensor_parallel_rank(self) -> int:
        """This process within its tensor-parallel group."""
        return self.rank % self.tensor_parallel_size

    @property
    def data_parallel_rank(self) -> int:
        """The data-parallel group of this process."""
        return self.rank // self.tensor_parallel_size

    def at(self, environment: Environment) -> ParallelConfig:
        """The same sizes seen from the process that a launcher such as `torchrun` started.

        Raises:
            ConfigError: the launcher started another number of processes than the sizes need.
        """
        if environment.world_size != self.world_size:
            raise ConfigError(
                "WORLD_SIZE",
                environment.world_size,
                f"{self.world_size}: tensor_parallel_size {self.tensor_parallel_size} "
                f"times data_parallel_size {self.data_parallel_size}",
            )
        return self.replace(rank=environment.rank, local_rank=environment.local_rank)
