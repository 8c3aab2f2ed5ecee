"""Learn to walk to the right by policy gradients (REINFORCE); the shape of PyTorch's example, with a small world."""

import argparse
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
torch.manual_seed(args.seed)
policy = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2), nn.Softmax(dim=-1))
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


for i_episode in range(1, args.episodes + 1):
    place, log_probs, rewards = 0.0, [], []
    for step in range(20):
        m = Categorical(policy(torch.tensor([place, step / 20])))
        action = m.sample()
        log_probs.append(m.log_prob(action))
        place += 0.1 * (2 * action.item() - 1)
        rewards.append(place)
    finish_episode(log_probs, rewards)
    if i_episode % 10 == 0:
        print(f"Episode {i_episode}\tLast reward: {sum(rewards):.2f}")
