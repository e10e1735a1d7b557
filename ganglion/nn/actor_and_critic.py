"""An actor and a critic whose networks have nothing in common, encoders included."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ganglion.core import Action, EnvSpec, Memory, Model, Obs, Past
from ganglion.nn.heads import PolicyHead, ValueHead, check_mask
from ganglion.nn.layers import Body
from ganglion.nn.nets import Encoded, MLPConfig


class Half(Encoded):
    """An actor or a critic: obs [T, B, ...] -> what its head says."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, head: Callable[[Body], nn.Module]) -> None:
        super().__init__(net, spec.obs)
        self.body = net.body(self.encoder.out)
        self.head = head(self.body)

    def features(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        """What heads read, [T, B, size]."""
        features, memory = self.encoder(obs, past)
        return self.body(features)[0], memory

    def forward(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.features(obs, past)
        return self.head(features), memory


class ActorAndCritic(Model):
    """Two networks with nothing in common: a step of one leaves the other where it was."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, log_std: float) -> None:
        super().__init__()
        check_mask(spec)
        self.recurrent = net.recurrent
        self.actor = Half(net, spec, lambda body: PolicyHead(body, spec.action, net.init, log_std))
        self.critic = Half(net, spec, lambda body: ValueHead(body, net.init))

    def initial(self, slots: int) -> Memory:
        return self.actor.initial(slots) + self.critic.initial(slots)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        half = len(past.memory) // 2
        raw, memory = self.actor(obs, past._replace(memory=past.memory[:half]))
        return raw, memory + past.memory[half:]  # the critic's is as it was

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        half = len(past.memory) // 2
        value, memory = self.critic(obs, past._replace(memory=past.memory[half:]))
        return value, past.memory[:half] + memory


class ActorAndCriticWithAuxiliary(ActorAndCritic):
    """The same with a second value, read from the actor's features (Cobbe et al. 2021)."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, log_std: float) -> None:
        super().__init__(net, spec, log_std)
        self.auxiliary = ValueHead(self.actor.body, net.init)

    def action_and_auxiliary(self, obs: Obs, past: Past) -> tuple[Tensor, Tensor]:
        """Raw action parameters, and the value by the actor's features."""
        features, _ = self.actor.features(obs, past._replace(memory=past.memory[: len(past.memory) // 2]))
        return self.actor.head(features), self.auxiliary(features)
