"""Balance a pole by an actor and a critic with one loss per episode; the shape of PyTorch's example."""

import math
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Categorical

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Pole:
    def reset(self):
        self.state = [0.0, 0.0, 0.05 * torch.randn(()).item(), 0.0]
        return self.state

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action else -10.0
        temp = (force + 0.05 * spin**2 * math.sin(angle)) / 1.1
        turning = (9.8 * math.sin(angle) - math.cos(angle) * temp) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        push = temp - 0.05 * turning * math.cos(angle) / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turning]
        return self.state, 1.0, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 32)
        self.action_head = nn.Linear(32, 2)
        self.value_head = nn.Linear(32, 1)
        self.saved_actions, self.rewards = [], []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


torch.manual_seed(543)
env, model = Pole(), Policy()
optimizer = optim.Adam(model.parameters(), lr=3e-2)
for i_episode in range(20):
    state, ep_reward = env.reset(), 0
    for _ in range(1, 200):
        probs, state_value = model(torch.tensor(state))
        m = Categorical(probs)
        action = m.sample()
        model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
        state, reward, done = env.step(action.item())
        model.rewards.append(reward)
        ep_reward += reward
        if done:
            break
    returns, R = [], 0
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    losses = [
        -log_prob * (R - value.item()) + F.smooth_l1_loss(value, torch.tensor([R]))
        for (log_prob, value), R in zip(model.saved_actions, returns, strict=False)
    ]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
    del model.rewards[:], model.saved_actions[:]
    print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}")
