"""Balance a pole by policy gradients (REINFORCE); the shape of PyTorch's example, with the physics written out."""

import argparse
import math
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="PyTorch REINFORCE example")
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--episodes", type=int, default=60)
args = parser.parse_args()


class CartPole:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        return self.state

    def step(self, action):
        x, v, angle, w = self.state
        force = 10.0 if action == 1 else -10.0
        inner = (force + 0.05 * w**2 * math.sin(angle)) / 1.1
        dw = (9.8 * math.sin(angle) - math.cos(angle) * inner) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        dv = inner - 0.05 * dw * math.cos(angle) / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * dv, angle + 0.02 * w, w + 0.02 * dw])
        return self.state, 1.0, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


env = CartPole(args.seed)
torch.manual_seed(args.seed)
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2), nn.Softmax(dim=-1))
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = np.finfo(np.float32).eps.item()


def finish_episode(log_probs, rewards):
    R, returns = 0, deque()
    for r in rewards[::-1]:
        R = r + args.gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    policy_loss = torch.stack([-p * R for p, R in zip(log_probs, returns, strict=True)]).sum()
    optimizer.zero_grad()
    policy_loss.backward()
    optimizer.step()


running_reward = 10
for i_episode in range(1, args.episodes + 1):
    state, log_probs, rewards = env.reset(), [], []
    for _ in range(500):
        m = Categorical(policy(torch.from_numpy(state).float()))
        action = m.sample()
        log_probs.append(m.log_prob(action))
        state, reward, done = env.step(action.item())
        rewards.append(reward)
        if done:
            break
    running_reward = 0.05 * sum(rewards) + (1 - 0.05) * running_reward
    finish_episode(log_probs, rewards)
    if i_episode % 10 == 0:
        print(f"Episode {i_episode}\tLast reward: {sum(rewards):.2f}\tAverage reward: {running_reward:.2f}")
